"""Whether a ViT converges to sharper minima than a CNN, starts more slowly and ends better."""

from __future__ import annotations

from collections.abc import Iterator
from math import log10

import torch

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly, mean_of
from vitreous.lab.instruments.curvature import curvature_along, largest_eigenvalue, loss_at
from vitreous.lab.instruments.run_evaluation import pooled_accuracy, training_batch
from vitreous.lab.prediction import AtLeast, Near
from vitreous.lab.sweep import run_seeds
from vitreous.lab.trained import Trained, trained_run
from vitreous.lab.trial import Trial
from vitreous.tasks.classify import class_targets, cross_entropy

CLAIM = Claim(
    title="Sharp minima and slow starts",
    statement="Compared with CNNs, vision transformers have a loss surface with sharper minima; they converge more "
    "slowly at first and end better.",
    sources=(Source.FOUNDATIONS,),
    formula=r"\lambda_{\max}(\nabla^2 L_{\mathrm{ViT}}) > \lambda_{\max}(\nabla^2 L_{\mathrm{CNN}})",
    right="Sharpness depends on its definition: the largest eigenvalue of the Hessian changes when weights are "
    "merely rescaled, the increase of the loss under noise proportional to the weights does not. Compare both.",
    right_formula=r"\lambda = v^\top \nabla^2 L \, v = \frac{L(w + s v) - 2 L(w) + L(w - s v)}{s^2}",
    meaning="Trained from scratch on little data for a short time, a small ViT starts slowly and stays behind: "
    "plan warm-up and more steps for it, or use a CNN. Do not compare eigenvalues across architectures to judge them.",
)


def document() -> float:
    """Lower bound on each difference ViT − CNN."""
    return 0.0


def right() -> float:
    """Ratio of the loss's second difference along the eigenvector to the eigenvalue."""
    return 1.0


def sharpness(run: Trained, number: int, steps: int) -> tuple[float, float, float]:
    """Largest eigenvalue, second difference of the loss ÷ eigenvalue, and increase of the loss under 5 % noise."""
    batch, model = training_batch(run, number), run.model
    parameters = list(model.parameters())

    def loss() -> torch.Tensor:
        return cross_entropy(model(batch.images), class_targets(batch))

    value, vector = largest_eigenvalue(loss, parameters, steps=steps)
    curvature = curvature_along(loss, parameters, vector, step=0.1 / value**0.5)
    draws = torch.Generator().manual_seed(0)
    rises = []
    for _ in range(4):
        noise = [torch.randn(each.shape, generator=draws) * each.square().mean().sqrt() for each in parameters]
        rises.append(float(loss_at(loss, parameters, noise, 0.05) - loss_at(loss, parameters, noise, 0.0)))
    return value, curvature / value, sum(rises) / len(rises)


def early_loss(run: Trained) -> float:
    """Mean loss over the second tenth of the training."""
    tenth = len(run.losses) // 10
    window = run.losses[tenth : 2 * tenth]
    return sum(window) / len(window)


def cases(trial: Trial) -> Iterator[Case]:
    number, steps = trial.choose((64, 12), (128, 16))
    pairs = [[trained_run(trial, name, seed) for name in ("base", "cnn")] for seed in run_seeds(trial, "base")]
    found = [[sharpness(run, number, steps) for run in pair] for pair in pairs]
    for which, kind in enumerate(("ViT", "CNN")):
        accuracy = pooled_accuracy([pair[which] for pair in pairs], 300)
        yield Case(f"{kind}: accuracy on unseen images", accuracy, right=AtLeast(0.2))
        ratio = exactly(sum(pair[which][1] for pair in found) / len(found))
        yield Case(f"{kind}: second difference of the loss / eigenvalue", ratio, right=Near(right(), 0.15))
    differences = {
        "sharper: log₁₀ of the largest eigenvalue": [log10(vit[0] / cnn[0]) for vit, cnn in found],
        "sharper: increase of the loss under 5 % noise": [vit[2] - cnn[2] for vit, cnn in found],
        "slower start: loss after a tenth of the training": [early_loss(vit) - early_loss(cnn) for vit, cnn in pairs],
        "better end: accuracy": [vit.accuracy - cnn.accuracy for vit, cnn in pairs],
    }
    for what, values in differences.items():
        yield Case(f"{what}, ViT less CNN", mean_of(values), document=AtLeast(document()))
