"""Some hundred cases of all kinds, the same ones each time; ``make fuzz`` runs others, and more of them."""

from pathlib import Path

import pytest

from tests.fuzz.kinds import KINDS
from tests.fuzz.runner import run

CASES = 120  # of each kind; all of them take less than a minute


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks of memory come from Linux")
def test_every_input_is_answered_or_refused_in_a_line():
    summary = run((kind, 0, index) for index in range(CASES) for kind in KINDS)
    assert summary["inputs"] == CASES * len(KINDS)
    assert not summary["failures"]
    assert summary["refused"] > CASES
    assert summary["accepted"] > CASES
