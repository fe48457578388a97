"""GELU by a hyperbolic tangent is near enough to the exact one that a model does not notice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.prediction import AtMost, near
from vitreous.lab.trial import Trial
from vitreous.layers.mlp import Mlp
from vitreous.models.vit import ViTConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import Outcome

CLAIM = Claim(
    title="GELU by a hyperbolic tangent",
    statement="GELU, x times the normal distribution's Φ(x), is well approximated by a formula with a hyperbolic tangent.",
    sources=(Source.DEEP_DIVE, Source.FOUNDATIONS),
    formula=r"\mathrm{GELU}(x) \approx \frac{x}{2} \left( 1 + \tanh \left( \sqrt{2 / \pi} \,"
    r" (x + 0.044715 \, x^3) \right) \right)",
    right="It is: the two differ by 0.0005 at most, near |x| = 2.3, and their slopes by 0.0011.",
    right_formula=r"\mathrm{GELU}(x) = x \, \Phi(x) = \frac{x}{2} \left( 1 + \mathrm{erf}(x / \sqrt{2}) \right)",
    meaning="Train with either, but keep the one that weights were trained with when you compare outputs with a reference: "
    "a difference of 0.0005 in every MLP is far more than rounding.",
)
LARGEST_ERROR, LARGEST_SLOPE_ERROR = 4.73e-4, 1.13e-3  # found by a search over a fine grid, in double precision


def document(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def values_and_slopes() -> tuple[Tensor, Tensor, Tensor]:
    """Places, how far the text's formula lies above our MLP's activation there, and the same for the slopes."""
    x = torch.linspace(-6, 6, 24_001, dtype=torch.float64, requires_grad=True)
    difference = document(x) - Mlp(1, 1).act(x)
    (slope,) = torch.autograd.grad(difference.sum(), x)
    return x.detach(), difference.detach(), slope


def changed_output(seed: int) -> float:
    """A whole small ViT with the approximation in every MLP: the change of its logits, as a share of their length."""
    config = ViTConfig(image_size=(32, 32), patch_size=(8, 8), dim=64, depth=6, num_heads=2, num_classes=10)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        exact, approximate = config.build().eval(), config.override(mlp="gelu_tanh").build().eval()
        approximate.load_state_dict(exact.state_dict())
        images = torch.randn(8, 3, 32, 32)
        answer = exact(images)
        return float((approximate(images) - answer).norm() / answer.norm())
