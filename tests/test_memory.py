"""Freed memory is kept while somebody wants it kept, and goes back after that."""

import sys

import pytest
import torch

from vitreous.layers.mlp import Mlp
from vitreous.memory import memory_kept

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="settings of glibc")


@pytest.fixture
def pages_cleared():
    """By the kernel, for one pass of an MLP between whose layers are 80 MB; the last of several, when all is in place."""
    import resource

    mlp, tokens = Mlp(192, 768), torch.randn(26_000, 192)

    @torch.inference_mode()
    def last_of(passes):
        for _ in range(passes):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            mlp(tokens)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    return last_of


def test_pages_are_not_cleared_for_every_batch(pages_cleared):
    usual = pages_cleared(4)
    with memory_kept():
        assert pages_cleared(4) < 0.1 * usual
    assert pages_cleared(4) > 0.2 * usual, "afterwards memory goes back again"


def test_the_outermost_decides_whatever_happens_inside(pages_cleared):
    usual = pages_cleared(4)
    with memory_kept():
        with pytest.raises(ValueError, match="inside"), memory_kept():
            raise ValueError("inside")
        assert pages_cleared(4) < 0.1 * usual
