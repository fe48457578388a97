"""Files of former formats load and give the logits that they gave when they were written.

``golden/*.safetensors`` were written by format version 1: tiny models whose every weight matters, with named classes.
"""

import json
from pathlib import Path

import pytest
import torch

import vitreous as vt

GOLDEN = Path(__file__).parent / "golden"
LOGITS = json.loads((GOLDEN / "logits.json").read_text())


def images(side):
    """The same without any random generator, which may change with torch."""
    return torch.sin(torch.arange(2 * 3 * side * side, dtype=torch.float64) * 0.37).reshape(2, 3, side, side).float()


@pytest.mark.parametrize("name", LOGITS)
def test_format_1_gives_the_logits_it_gave(name):
    model = vt.load(GOLDEN / f"{name}.safetensors").eval()
    assert model.spec.labels.names == ("cat", "dog", "owl")
    with torch.no_grad():
        logits = model(images(model.config.image_size[0]))
    torch.testing.assert_close(logits, torch.tensor(LOGITS[name]), rtol=1e-5, atol=1e-6)
