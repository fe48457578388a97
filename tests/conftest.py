"""While the tests run, the shapes in the signatures of layers are checked: a (b, n, d) that is none fails."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from jaxtyping import install_import_hook

install_import_hook("vitreous.layers", "beartype.beartype")

import pytest
import torch
from hypothesis import settings

from tests.weights.hub import hub  # noqa: F401
from vitreous.layers.mixers import MIXERS

for mixer in MIXERS.values():
    type(mixer).__init__.__no_type_check__ = True  # settings check their own values, and with a message for users

# In continuous integration the same examples every time; at home new ones, which find new bugs.
settings.register_profile("ci", derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")


@pytest.fixture(autouse=True)
def _one_thread_and_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)
