"""Parity that can fail: fill every weight with values that matter, compare, and prove that every block is seen."""

import pytest
import torch
from torch import Tensor, nn


def fill(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter and buffer seeded and large enough to matter: biases, norms, LayerScale, tables, tokens."""
    generator = torch.Generator().manual_seed(seed)

    def draw(tensor: Tensor, mean: float, std: float) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std + mean)

    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                continue
            if tensor.ndim in (2, 4):
                draw(tensor, 0.0, tensor[0].numel() ** -0.5)
            elif name.endswith(("weight", "gamma", "lambda1")):
                draw(tensor, 1.0, 0.2)
            elif name.endswith("running_var"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
            else:
                draw(tensor, 0.0, 0.5)
    return model.eval()


def error(actual: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the output's scale."""
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} is not {tuple(expected.shape)}"
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def large_ones_slowly(names):
    """Model names as test parameters; the large ones run with the slow tests."""
    large = ("large", "huge", "giant", "gigantic")
    return [pytest.param(n, marks=[pytest.mark.slow] * any(size in n for size in large)) for n in names]


class Skip(nn.Module):
    """A block that does nothing."""

    def forward(self, x, *args, **kwargs):
        return x


def assert_every_block_matters(model, run) -> None:
    """The proof of sight: with any one block replaced by the identity the output moves by more than 1e-2."""
    expected = run()
    for index, block in enumerate(model.blocks()):
        original, block.forward = block.forward, Skip().forward
        moved = error(run(), expected)
        block.forward = original
        assert moved > 1e-2, f"block {index} could be removed and nobody would notice ({moved:.1e})"
    assert error(run(), expected) == 0
