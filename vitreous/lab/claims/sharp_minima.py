"""Whether a ViT ends in sharper minima than a CNN, starts more slowly and ends better."""

from __future__ import annotations

from collections.abc import Iterator
from math import log10

import torch

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly, mean_of
from vitreous.lab.instruments.curvature import curvature_along, largest_eigenvalue, moved
from vitreous.lab.instruments.examined import learned, pooled_accuracy
from vitreous.lab.prediction import AtLeast, Near
from vitreous.lab.sweep import seeds
from vitreous.lab.trained import Trained, trained
from vitreous.lab.trial import Trial
from vitreous.tasks.classify import cross_entropy, values_of

CLAIM = Claim(
    title="Sharper minima, a slower start",
    statement="Compared with CNNs, vision transformers have a loss surface with sharper minima; they converge more "
    "slowly at first and end better.",
    sources=(Source.FOUNDATIONS,),
    formula=r"\lambda_{\max}(\nabla^2 L_{\mathrm{ViT}}) > \lambda_{\max}(\nabla^2 L_{\mathrm{CNN}})",
    right="Sharpness depends on how it is measured: the largest eigenvalue of the Hessian changes when weights are "
    "merely rescaled, the rise of the loss under noise in proportion to the weights does not. Compare both.",
    right_formula=r"\lambda = v^\top \nabla^2 L \, v = \frac{L(w + s v) - 2 L(w) + L(w - s v)}{s^2}",
    meaning="Trained from scratch on little data for a short time, a small ViT starts slowly and stays behind: plan "
    "warm-up and more steps for it, or take a CNN. Do not read eigenvalues across architectures as a verdict on them.",
)


def document() -> float:
    """Each difference ViT less CNN is positive."""
    return 0.0


def right() -> float:
    """The eigenvalue and the loss's own second difference along its vector are one thing."""
    return 1.0


def sharpness(run: Trained, number: int, steps: int) -> tuple[float, float, float]:
    """The largest eigenvalue, its ratio to the second difference of the loss, and the loss's rise under 5 % noise."""
    batch, model = learned(run, number), run.model
    parameters = list(model.parameters())

    def loss() -> torch.Tensor:
        return cross_entropy(model(batch.images), values_of(batch))

    value, vector = largest_eigenvalue(loss, parameters, steps=steps)
    seen = curvature_along(loss, parameters, vector, step=0.1 / value**0.5)
    draws = torch.Generator().manual_seed(0)
    rises = []
    for _ in range(4):
        noise = [torch.randn(each.shape, generator=draws) * each.square().mean().sqrt() for each in parameters]
        rises.append(float(moved(loss, parameters, noise, 0.05) - moved(loss, parameters, noise, 0.0)))
    return value, seen / value, sum(rises) / len(rises)


def early_loss(run: Trained) -> float:
    """After a tenth of the training, averaged over as many steps again."""
    tenth = len(run.losses) // 10
    window = run.losses[tenth : 2 * tenth]
    return sum(window) / len(window)


def cases(trial: Trial) -> Iterator[Case]:
    number, steps = trial.choose((64, 12), (128, 16))
    pairs = [[trained(trial, name, seed) for name in ("base", "cnn")] for seed in seeds(trial, "base")]
    found = [[sharpness(run, number, steps) for run in pair] for pair in pairs]
    for which, kind in enumerate(("ViT", "CNN")):
        accuracy = pooled_accuracy([pair[which] for pair in pairs], 300)
        yield Case(f"{kind}: accuracy on unseen images", accuracy, right=AtLeast(0.2))
        ratio = exactly(sum(pair[which][1] for pair in found) / len(found))
        yield Case(f"{kind}: second difference of the loss / eigenvalue", ratio, right=Near(right(), 0.15))
    differences = {
        "sharper: log₁₀ of the largest eigenvalue": [log10(vit[0] / cnn[0]) for vit, cnn in found],
        "sharper: rise of the loss under 5 % noise": [vit[2] - cnn[2] for vit, cnn in found],
        "slower start: loss after a tenth of the training": [early_loss(vit) - early_loss(cnn) for vit, cnn in pairs],
        "better end: accuracy": [vit.accuracy - cnn.accuracy for vit, cnn in pairs],
    }
    for what, values in differences.items():
        yield Case(f"{what}, ViT less CNN", mean_of(values), document=AtLeast(document()))
