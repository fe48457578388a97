"""Numerical routines of the laboratory against known results."""

from pathlib import Path

import numpy as np
import torch

from vitreous.lab.instruments.curvature import curvature_along, largest_eigenvalue
from vitreous.lab.instruments.halves import COLORS, draw_half_disks, gap_widths
from vitreous.lab.instruments.run_evaluation import convnet_receptive_field
from vitreous.lab.trial import Trial
from vitreous.layers.patch import ResidualStem


def test_the_largest_eigenvalue_of_a_quadratic():
    draws = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=draws))[0]
    matrix = turn @ torch.diag(torch.tensor([-3.0, 0.1, 0.5, 1.0, 2.0, 7.0])) @ turn.T
    first, second = (
        torch.randn(2, generator=draws, requires_grad=True),
        torch.randn(4, generator=draws, requires_grad=True),
    )

    def loss() -> torch.Tensor:
        both = torch.cat([first, second])
        return both @ matrix @ both / 2

    value, vector = largest_eigenvalue(loss, [first, second], steps=60)
    torch.testing.assert_close(value, 7.0, rtol=1e-4, atol=0.0)
    torch.testing.assert_close(torch.cat(vector).dot(turn[:, 5]).abs(), torch.tensor(1.0), rtol=1e-3, atol=0.0)
    before = first.detach().clone()
    assert abs(curvature_along(loss, [first, second], vector, step=1.0) - 7.0) < 1e-3
    assert torch.equal(first, before)


def test_the_receptive_field_of_the_convnet():
    stem = ResidualStem((4, 4), 3, 16).eval()
    images = torch.randn(8, 3, 64, 64, requires_grad=True)
    stem(images)[:, 16 * 8 + 8].square().sum().backward()
    seen = (images.grad != 0).any(dim=0).any(dim=0).any(dim=0)
    assert int(seen.sum()) == convnet_receptive_field(2)


def test_halves_of_one_object_share_a_color_and_have_the_stated_gap():
    trial = Trial(quick=True, folder=Path("unused"))
    data = draw_half_disks(trial, 60, seed=3)
    for image, target, gap in zip(data.images, data.all_targets.values, gap_widths(trial, 60), strict=True):
        shown = [(image == color[:, None, None]).all(axis=0) for color in COLORS]
        assert sum(mask.any() for mask in shown) == 1 + target.argmax()
        columns = np.flatnonzero(np.any(shown, axis=0).any(axis=0))
        assert columns[-1] - columns[0] + 1 == 6 + gap
