"""Position embeddings and first filters are those of the model, and missing ones are reported."""

import pytest
import torch

from tests.family import tiny
from vitreous.explain.parameters import first_filters, positions_of


def test_position_embeddings_and_first_filters():
    model = tiny("vit_tiny_16")
    table, grid = positions_of(model)
    assert grid == (4, 4)
    assert torch.equal(table, model.position.table[0, 1:])
    assert first_filters(model).shape == (192, 3, 16, 16)
    waves, grid = positions_of(tiny("vit_tiny_16", position="sincos_2d"))
    assert (waves.shape, grid) == ((16, 192), (4, 4))
    with pytest.raises(ValueError, match="adds no position embedding"):
        positions_of(tiny("resnet18"))
    with pytest.raises(ValueError, match="is not applied to pixels"):
        first_filters(tiny("vit_tiny_16", stem="residual"))
