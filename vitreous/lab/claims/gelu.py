"""The tanh approximation of GELU is close enough to the exact function that a model's outputs barely change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.real import deit_tiny, photos
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import AtMost, near
from vitreous.lab.trial import Trial
from vitreous.layers.mlp import Mlp
from vitreous.models.vit import ViT, ViTConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="The tanh approximation of GELU",
    statement="GELU, x times the normal distribution's Φ(x), is well approximated by a formula with a hyperbolic "
    "tangent.",
    sources=(Source.DEEP_DIVE, Source.FOUNDATIONS),
    formula=r"\mathrm{GELU}(x) \approx \frac{x}{2} \left( 1 + \tanh \left( \sqrt{2 / \pi} \,"
    r" (x + 0.044715 \, x^3) \right) \right)",
    right="It is: the two differ by 0.0005 at most, near |x| = 2.7, and their slopes by 0.0009, near |x| = 2.",
    right_formula=r"\mathrm{GELU}(x) = x \, \Phi(x) = \frac{x}{2} \left( 1 + \mathrm{erf}(x / \sqrt{2}) \right)",
    meaning="Train with either, but keep the variant that the weights were trained with when you compare outputs "
    "with a reference: a difference of 0.0005 in every MLP is far larger than rounding errors.",
)


def document(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def right() -> float:
    """Largest difference between both formulas, by numerical search, with scipy's Φ instead of the MLP's."""
    from scipy.optimize import minimize_scalar
    from scipy.special import ndtr

    found = minimize_scalar(
        lambda x: -abs(float(document(torch.tensor(x, dtype=torch.float64))) - x * ndtr(x)),
        bounds=(2, 4),
        method="bounded",
    )
    return float(-found.fun)


def differences() -> tuple[Tensor, Tensor, Tensor]:
    """Return x, the text's formula minus the library's activation at x, and the difference of their slopes."""
    x = torch.linspace(-6, 6, 2401, dtype=torch.float64, requires_grad=True)
    difference = document(x) - Mlp(1, 1).act(x)
    (slope,) = torch.autograd.grad(difference.sum(), x)
    return x.detach(), difference.detach(), slope


def with_tanh_gelu(model: ViT) -> ViT:
    """Copy the model with the tanh approximation in every MLP."""
    other = ViT(model.config.override(mlp="gelu_tanh")).eval()
    other.load_state_dict(model.state_dict())
    return other


@torch.no_grad()
def changed_output(seed: int) -> float:
    """Relative change of the logits of an untrained small ViT."""
    with seeded(seed):
        model = ViT(ViTConfig(image_size=(32, 32), patch_size=(8, 8), dim=64, depth=6, num_heads=2, num_classes=10))
        images = torch.randn(8, 3, 32, 32)
        exact, approximate = model.eval()(images), with_tanh_gelu(model)(images)
        return float((approximate - exact).norm() / exact.norm())


@torch.no_grad()
def changed_predictions(trial: Trial) -> float:
    """Share of images for which DeiT-Tiny's top-1 class changes."""
    model = deit_tiny(trial)
    images, _ = photos(trial, trial.choose(quick=16, full=200))
    both = [torch.cat([each(some).argmax(1) for some in images.split(16)]) for each in (model, with_tanh_gelu(model))]
    return float((both[0] != both[1]).double().mean())


def cases(trial: Trial) -> Iterator[Case]:
    x, values, slopes = differences()
    for name, series in (("x", x), ("values", values), ("slopes", slopes)):
        trial.keep(name, series[::10].tolist())
    yield Case("largest error of the value", exactly(float(values.abs().max())),
               document=AtMost(1e-3), right=near(right(), share=0.01))  # fmt: skip
    yield Case("largest error of the slope", exactly(float(slopes.abs().max())), document=AtMost(1e-3))
    yield Case("change of the logits of a ViT of six blocks, as a share", trial.repeat(changed_output),
               document=AtMost(1e-3))  # fmt: skip
    if trial.has("weights"):
        yield Case("DeiT-Tiny: share of changed predictions", exactly(changed_predictions(trial)),
                   document=AtMost(0.01))  # fmt: skip


def draw(outcome: ClaimOutcome) -> Figure:
    """Plot the error of the value and of the slope over x."""
    from vitreous.draw.style import BLUE, INK, ORANGE, side_by_side, style_axis

    figure, (axis,) = side_by_side(1, width=6.4, height=3.0)
    for name, color in (("values", ORANGE), ("slopes", BLUE)):
        label = {"values": "value", "slopes": "slope"}[name]
        axis.plot(outcome.series["x"], outcome.series[name], color=color, linewidth=1.4, label=label)
    axis.set_xlabel("x")
    axis.set_ylabel("approximate − exact GELU")
    style_axis(axis)
    axis.legend(frameon=False, labelcolor=INK, fontsize=8)
    return figure
