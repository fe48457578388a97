"""Probes and quantizers of the laboratory."""

import pytest
import torch

from vitreous.lab.instruments.probe import accuracy, edge_orientation, r_squared, ridge
from vitreous.lab.instruments.quantize import clipped_per_channel, per_channel, per_tensor, text_formula


@pytest.fixture
def draws():
    return torch.Generator().manual_seed(0)


def test_ridge_solves_the_normal_equations(draws):
    x, y = torch.randn(40, 5, generator=draws).double(), torch.randn(40, 2, generator=draws).double()
    standard = (x - x.mean(dim=0)) / x.std(dim=0)
    found = ridge(x, y, x)
    solutions = []
    for share in (1e-3, 1e-2, 1e-1, 1.0, 10.0):
        weights = torch.linalg.solve(
            standard.T @ standard + share * 40 * torch.eye(5), standard.T @ (y - y.mean(dim=0))
        )
        solutions.append(y.mean(dim=0) + standard @ weights)
    assert any(torch.allclose(found, solution) for solution in solutions)


def test_probes_find_linear_information_only(draws):
    x = torch.randn(300, 20, generator=draws)
    labels = x[:, :3].argmax(dim=1)
    assert r_squared(x, x[:, :1] - x[:, 1:2], 200) > 0.99
    assert r_squared(x, torch.randn(300, 1, generator=draws), 200) < 0.1
    assert accuracy(x, labels, 200) > 0.8
    assert accuracy(x, labels[torch.randperm(300, generator=draws)], 200) < 0.5


def test_edge_orientation_separates_vertical_from_horizontal():
    stripes = (torch.arange(16) % 4 < 2).float().expand(1, 3, 16, 16)
    assert edge_orientation(stripes)[0].tolist() == pytest.approx([1, 0])
    assert edge_orientation(stripes.transpose(2, 3))[0].tolist() == pytest.approx([-1, 0])


@pytest.mark.parametrize("quantize", [text_formula, per_tensor, per_channel, clipped_per_channel])
def test_b_bits_have_at_most_2_to_the_b_levels(quantize, draws):
    w = torch.randn(1, 4096, generator=draws)
    assert len(quantize(w, 4).unique()) <= 16


def test_a_zero_point_represents_one_sided_ranges(draws):
    w = torch.rand(8, 64, generator=draws)
    assert (per_tensor(w, 8) - w).abs().max() < 1 / 255
    assert (text_formula(w, 8) - w).abs().max() > 0.4
