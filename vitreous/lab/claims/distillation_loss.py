"""The soft part of a distillation loss needs T², and DeiT's teacher speaks to a token of its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.chance import seeded
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
    right="The divergence is multiplied by T², since its gradient falls as 1/T², and in the usual form the teacher "
    "comes first. In DeiT the labels teach the class token's head and the teacher that of the distillation token; "
    "their mean is the answer.",
    right_formula=r"L = \alpha \, L_{CE}(y, y_{gt}) + (1 - \alpha) \, T^2"
    r" \, L_{KL}(\sigma(z_t / T) \, \| \, \sigma(z_s / T))",
    meaning="Without T² a temperature of 4 leaves a sixteenth of the teacher's pull, and whoever tunes T tunes the "
    "weight α too. With a distillation token, the labels teach one head and the teacher the other, and evaluation "
    "averages both.",
    axes=Axes("temperature T", "gradient at the student's logits", log="xy"),
)
IMAGES, CLASSES = 256, 10


def document(student: NDArray[np.float64], teacher: NDArray[np.float64], temperature: float) -> float:
    """The gradient of the bare divergence is (softmax(z_s/T) − softmax(z_t/T)) / T: its mean length."""
    difference = softmax(student / temperature) - softmax(teacher / temperature)
    return float(np.linalg.norm(difference, axis=1).mean() / temperature)


def right(student: NDArray[np.float64], teacher: NDArray[np.float64], temperature: float) -> float:
    return temperature**2 * document(student, teacher, temperature)


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def gradient(student: Tensor, teacher: Tensor, temperature: float) -> float:
    """The mean length of the gradient that the library's loss sends to the logits of an image."""
    pupil = student.clone().requires_grad_()
    distill.disagreement(pupil, teacher, Distill(temperature=temperature)).backward()
    assert pupil.grad is not None
    return float(pupil.grad.norm(dim=1).mean()) * len(pupil)


def two_heads() -> tuple[float, float]:
    """How much of the teacher's gradient reaches the class head, and how much of the answer the other head gives."""
    with seeded(0):
        teacher = ViTConfig(image_size=(8, 8), patch_size=(8, 8), dim=8, depth=1, num_heads=1, num_classes=2).build()
    objective = Distill(teacher=teacher, weight=1.0).start(teacher.spec, "cpu")
    heads = {"class": torch.zeros(2, 2, requires_grad=True), "distill": torch.ones(2, 2, requires_grad=True)}
    batch = Batch(Inputs(torch.ones(2, 3, 8, 8)), Classes(torch.eye(2)))
    loss, answer = objective.loss(heads, batch)["loss"], base.combine(heads).detach()
    gradients = torch.autograd.grad(loss, tuple(heads.values()))
    to_class, to_distill = (float(gradient.norm()) for gradient in gradients)
    return to_class / (to_class + to_distill), float(answer.mean())


def cases(trial: Trial) -> Iterator[Case]:
    draws = torch.Generator().manual_seed(0)
    student, teacher = (3 * torch.randn(IMAGES, CLASSES, generator=draws, dtype=torch.float64) for _ in range(2))
    for temperature in trial.choose(quick=(1.0, 4.0, 16.0), full=(1.0, 2.0, 4.0, 8.0, 16.0)):
        said, known = (formula(student.numpy(), teacher.numpy(), temperature) for formula in (document, right))
        yield Case(f"gradient at T = {temperature:g}", exactly(gradient(student, teacher, temperature)),
                   document=near(said, share=0.05), right=near(known, share=0.05), at=temperature)  # fmt: skip
    to_class, in_answer = two_heads()
    yield Case("DeiT: share of the teacher's gradient that reaches the class head", exactly(to_class),
               document=Near(1.0, 0.01), right=Near(0.0, 0.01))  # fmt: skip
    yield Case("DeiT: share of the distillation head in the answer", exactly(in_answer),
               document=Near(0.0, 0.01), right=Near(0.5, 0.01))  # fmt: skip
