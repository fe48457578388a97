"""A wide enough ViT fits a function of a picture as closely as one likes; without positions it cannot."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.prediction import AtLeast, AtMost
from vitreous.lab.trial import Trial
from vitreous.layers.patch import patchify
from vitreous.models.vit import ViT, ViTConfig

CLAIM = Claim(
    title="Universal approximation",
    statement="For any continuous function of a picture and any ε there is a ViT, wide and deep enough, whose largest "
    "error over all pictures is below ε.",
    sources=(Source.FOUNDATIONS,),
    formula=r"\sup_{x \in [0,1]^{H \times W}} \| f(x) - F(x) \| < \epsilon",
    right="It holds for a ViT that knows where its patches are. Without positions it gives two pictures with swapped "
    "patches the same answer, so for a function that tells them apart the error never falls below half of its range.",
    right_formula=r"\sup_x | f(x) - F(x) | \geq \frac{1}{2} ( \max f - \min f ) \quad \mathrm{without\ positions}",
    meaning="Capacity is rarely what a small ViT lacks: the theorem says that suitable weights exist, not that training "
    "finds them or how much data it takes. Leave positions out only if the answer must not depend on place.",
    axes=Axes("width of the model", "largest error / range of the function", log="x"),
)
EPSILON = 0.05  # of the function's range


def document(epsilon: float) -> float:
    return epsilon


def right() -> float:
    """The least error, as a share of the range, of a model that cannot tell a picture from its swapped twin."""
    return 0.5


def function(pictures: Tensor) -> Tensor:
    """(b, 1, 4, 4) → (b, 1): smooth, and its sign changes when first and last, second and third patch swap places."""
    a, b, c, d = patchify(pictures, (2, 2)).mean(dim=2).T
    return (torch.sin(3 * (a - d)) + (b - c) * (a + d)).unsqueeze(1)


def swapped(pictures: Tensor) -> Tensor:
    """The four patches in the opposite order."""
    return pictures.roll((2, 2), dims=(2, 3))


def largest_error(width: int, depth: int, position: str, *, steps: int, seed: int) -> float:
    """Over fresh pictures and their swapped twins, after fitting as many random ones as there is time for."""
    dice = torch.Generator().manual_seed(seed)
    pictures = torch.rand(1024, 1, 4, 4, generator=dice)
    pictures = torch.cat([pictures, swapped(pictures)])
    truth = function(pictures)
    model = fitted(width, depth, position, steps=steps, seed=seed, dice=dice)
    with torch.no_grad():
        return float((model(pictures) - truth).abs().max() / (truth.max() - truth.min()))


def fitted(width: int, depth: int, position: str, *, steps: int, seed: int, dice: torch.Generator) -> ViT:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        small = {"image_size": (4, 4), "patch_size": (2, 2), "num_channels": 1, "num_classes": 1}
        config = ViTConfig().override(**small, dim=width, depth=depth, num_heads=2, position=position, pool="mean")
        model = config.build()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=5e-3, total_steps=steps)
    for _ in range(steps):
        pictures = torch.rand(256, 1, 4, 4, generator=dice)
        loss = (model(pictures) - function(pictures)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()


def cases(trial: Trial) -> Iterator[Case]:
    steps, seeds = trial.choose(150, 800), range(trial.choose(2, 4))
    widths = trial.choose((4, 32), (4, 8, 16, 32, 64))
    for depth, position in ((1, "learned"), (2, "learned"), (2, "none")):
        blind = position == "none"
        for width in widths:
            yield Case(
                f"width {width}, {depth} block{'s' * (depth > 1)}{', no positions' * blind}",
                trial.repeat(lambda seed, w=width, d=depth, p=position: largest_error(w, d, p, steps=steps, seed=seed), seeds),
                right=AtLeast(right()) if blind else AtMost(right()),
                document=AtMost(document(EPSILON)) if not blind and width == widths[-1] else None,
                at=width,
                group=f"{depth} block{'s' * (depth > 1)}{', no positions' * blind}",
            )
