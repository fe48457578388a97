"""Relative maps and the cell at a point, by hand."""

import pytest
import torch

from vitreous.explain.maps import cell_at, denormalized, relative_to_mean
from vitreous.spec import Preprocess


def test_uniform_maps_are_one_everywhere():
    assert torch.equal(relative_to_mean(torch.full((2, 3, 4), 0.07)), torch.ones(2, 3, 4))
    assert torch.equal(relative_to_mean(torch.zeros(1, 1)), torch.zeros(1, 1))
    uneven = relative_to_mean(torch.tensor([[0.1, 0.3]], dtype=torch.float16))
    assert torch.allclose(uneven, torch.tensor([[0.5, 1.5]]), atol=1e-3)


@pytest.mark.parametrize(
    ("place", "grid", "cell"),
    [((0.0, 0.0), (5, 7), (0, 0)), ((1.0, 1.0), (5, 7), (4, 6)), ((0.5, 0.2), (2, 5), (1, 1))],
)
def test_the_cell_that_contains_a_point(place, grid, cell):
    assert cell_at(place, grid) == cell


def test_an_image_survives_normalization():
    """Every value of every byte comes back, whatever the channels' mean and std."""
    preprocess = Preprocess(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25))
    pixels = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
    mean, std = (torch.tensor(values)[:, None, None] for values in (preprocess.mean, preprocess.std))
    assert torch.equal(denormalized((pixels / 255 - mean) / std, preprocess), pixels)
