"""A sufficiently wide ViT approximates a function of an image arbitrarily well; without positions it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.prediction import AtLeast, AtMost
from vitreous.lab.trial import Trial
from vitreous.models.vit import ViT, ViTConfig

CLAIM = Claim(
    title="Universal approximation",
    statement="For any continuous function of an image and any ε there is a ViT, wide and deep enough, whose largest "
    "error over all images is below ε.",
    sources=(Source.FOUNDATIONS,),
    formula=r"\sup_{x \in [0,1]^{H \times W}} \| f(x) - F(x) \| < \epsilon",
    right="It holds for a ViT with position embeddings. Without positions it gives two images with swapped "
    "patches the same output, so for a function that distinguishes them the error never falls below half of its range.",
    right_formula=r"\sup_x | f(x) - F(x) | \geq \frac{1}{2} ( \max f - \min f ) \quad \mathrm{without\ positions}",
    meaning="Capacity is rarely the limit of a small ViT: the theorem states that suitable weights exist, not that "
    "training finds them or how much data it takes. Leave positions out only if the output must not depend on "
    "position.",
    axes=Axes("width of the model", "largest error / range of the function", log="xy"),
)
WITH_AND_WITHOUT = ((2, "sincos_2d"), (2, "none"))
EPSILON = 0.1  # of the function's range


def document(epsilon: float) -> float:
    return epsilon


def right() -> float:
    """Least error, as a share of the range, of a model that cannot distinguish an image from its swapped twin."""
    return 0.5


def function(images: Tensor) -> Tensor:
    """A sine of the difference of two pixels, which changes sign when they are swapped; (n, 1, 1, 2) → (n, 1)."""
    left, right = images.flatten(1).T
    return torch.sin(4 * (left - right)).unsqueeze(1)


def all_images(shades: int) -> Tensor:
    """Every image of two pixels, each its own patch, in ``shades`` gray levels between 0 and 1."""
    shade = torch.linspace(0, 1, shades)
    return torch.cartesian_prod(shade, shade).view(-1, 1, 1, 2)


def largest_error(width: int, depth: int, position: str, *, steps: int, seed: int) -> float:
    """Largest error as a share of the range, on a grid three times as fine as the training images."""
    model = build_model(width, depth, position, seed)
    fit(model, all_images(13), steps)
    images = all_images(37)
    truth = function(images)
    with torch.no_grad():
        return float((model(images) - truth).abs().max() / (truth.max() - truth.min()))


def build_model(width: int, depth: int, position: str, seed: int) -> ViT:
    """A ViT of two tokens, one pixel each, with a single output."""
    two_pixels: dict[str, Any] = {"image_size": (1, 2), "patch_size": (1, 1), "num_channels": 1, "num_classes": 1}
    inside: dict[str, Any] = {"dim": width, "depth": depth, "num_heads": 2, "mlp_ratio": 2.0, "position": position}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ViTConfig(**two_pixels, **inside, pool="mean", class_token=False).build()


def fit(model: ViT, images: Tensor, steps: int) -> None:
    truth = function(images)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.99), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(images) - truth).square().mean().backward()
        optimizer.step()
        schedule.step()


def cases(trial: Trial) -> Iterator[Case]:
    """Measure the best of several fits, since the theorem states that suitable weights exist."""
    steps, seeds, widths = trial.choose(160, 500), range(trial.choose(1, 2)), trial.choose((4, 16), (4, 8, 16, 32, 64))
    for depth, position in trial.choose(WITH_AND_WITHOUT, ((1, "sincos_2d"), *WITH_AND_WITHOUT)):
        no_positions = position == "none"
        group = f"{depth} block{'s' * (depth > 1)}{', no positions' * no_positions}"
        for width in widths[no_positions:]:
            found = [
                largest_error(width, depth, position, steps=steps // (1 + 3 * no_positions), seed=seed)
                for seed in seeds
            ]
            yield Case(
                f"{group}, width {width}",
                exactly(min(found)),
                document=AtMost(document(EPSILON)) if width == widths[-1] and not no_positions else None,
                right=AtLeast(right()) if no_positions else AtMost(right() if width == widths[-1] else 1.0),
                at=width,
                group=group,
            )
