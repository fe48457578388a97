"""The soft distillation loss needs a factor T², and DeiT's teacher trains a separate distillation token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import Near, near
from vitreous.lab.trial import Trial
from vitreous.models import base
from vitreous.models.vit import ViTConfig
from vitreous.samples import Batch, Classes, Inputs
from vitreous.tasks import distill
from vitreous.tasks.distill import Distill

CLAIM = Claim(
    title="The losses of distillation",
    statement="Distillation adds the divergence of the softened outputs, KL(σ(z_s/T), σ(z_t/T)), to the "
    "cross-entropy. DeiT does the same without a temperature: both terms compare the same output y, with the labels "
    "and the teacher.",
    sources=(Source.FOUNDATIONS,),
    formula=r"L = \alpha \, L_{CE}(y, y_{gt}) + (1 - \alpha) \, L_{KL}(\sigma(z_s / T), \sigma(z_t / T))",
    right="The divergence is multiplied by T², since its gradient decreases as 1/T², and in the usual form the "
    "teacher comes first. In DeiT the labels train the class token's head and the teacher the distillation token's; "
    "the prediction is their mean.",
    right_formula=r"L = \alpha \, L_{CE}(y, y_{gt}) + (1 - \alpha) \, T^2"
    r" \, L_{KL}(\sigma(z_t / T) \, \| \, \sigma(z_s / T))",
    meaning="Without T² a temperature of 4 leaves a sixteenth of the teacher's gradient, so that tuning T also "
    "changes the weight α. With a distillation token, the labels train one head and the teacher the other, and "
    "evaluation averages both.",
    axes=Axes("temperature T", "gradient at the student's logits", log="xy"),
)
IMAGES, CLASSES = 256, 10


def document(student: NDArray[np.float64], teacher: NDArray[np.float64], temperature: float) -> float:
    """Mean norm of the gradient of the plain divergence, (softmax(z_s/T) − softmax(z_t/T)) / T."""
    difference = softmax(student / temperature) - softmax(teacher / temperature)
    return float(np.linalg.norm(difference, axis=1).mean() / temperature)


def right(student: NDArray[np.float64], teacher: NDArray[np.float64], temperature: float) -> float:
    return temperature**2 * document(student, teacher, temperature)


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def gradient(student: Tensor, teacher: Tensor, temperature: float) -> float:
    """Mean norm of the gradient of the library's loss with respect to an image's logits."""
    trainable = student.clone().requires_grad_()
    distill.distillation_loss(trainable, teacher, Distill(temperature=temperature)).backward()
    assert trainable.grad is not None
    return float(trainable.grad.norm(dim=1).mean()) * len(trainable)


def two_heads() -> tuple[float, float]:
    """Share of the teacher's gradient at the class head, and share of the distillation head in the prediction."""
    with seeded(0):
        teacher = ViTConfig(image_size=(8, 8), patch_size=(8, 8), dim=8, depth=1, num_heads=1, num_classes=2).build()
    objective = Distill(teacher=teacher, weight=1.0).start(teacher.spec, "cpu")
    heads = {"class": torch.zeros(2, 2, requires_grad=True), "distill": torch.ones(2, 2, requires_grad=True)}
    batch = Batch(Inputs(torch.ones(2, 3, 8, 8)), Classes(torch.eye(2)))
    loss, prediction = objective.loss(heads, batch)["loss"], base.mean_logits(heads).detach()
    gradients = torch.autograd.grad(loss, tuple(heads.values()))
    to_class, to_distill = (float(gradient.norm()) for gradient in gradients)
    return to_class / (to_class + to_distill), float(prediction.mean())


def cases(trial: Trial) -> Iterator[Case]:
    draws = torch.Generator().manual_seed(0)
    student, teacher = (3 * torch.randn(IMAGES, CLASSES, generator=draws, dtype=torch.float64) for _ in range(2))
    for temperature in trial.choose(quick=(1.0, 4.0, 16.0), full=(1.0, 2.0, 4.0, 8.0, 16.0)):
        expected, correct = (formula(student.numpy(), teacher.numpy(), temperature) for formula in (document, right))
        yield Case(f"gradient at T = {temperature:g}", exactly(gradient(student, teacher, temperature)),
                   document=near(expected, share=0.05), right=near(correct, share=0.05), at=temperature)  # fmt: skip
    to_class, in_prediction = two_heads()
    yield Case("DeiT: share of the teacher's gradient that reaches the class head", exactly(to_class),
               document=Near(1.0, 0.01), right=Near(0.0, 0.01))  # fmt: skip
    yield Case("DeiT: share of the distillation head in the prediction", exactly(in_prediction),
               document=Near(0.0, 0.01), right=Near(0.5, 0.01))  # fmt: skip
