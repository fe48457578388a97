"""Knowledge distillation: training on labels and on the outputs of a teacher.

    loss = (1 − w) · CE(labels, z) + w · D(teacher, z′)

    soft:  D = T² · KL(softmax(teacher / T) ‖ softmax(z′ / T))       T² keeps the gradient scale independent of T
    hard:  D = CE(argmax(teacher), z′)

"Distilling the Knowledge in a Neural Network", Hinton et al. 2015 (arXiv 1503.02531), where z′ = z is the only head;
"Training data-efficient image transformers & distillation through attention", Touvron et al. 2020 (2012.12877), where
z is the class head and z′ the head of a separate distillation token (``distilled=True``). DeiT's best setting is
``kind="hard"`` with w = ½; for soft distillation it uses w = 0.1 and T = 3.

The teacher receives the student's augmented and mixed images, renormalized with its own mean and deviation, and resized
if its image size differs. The crop remains the student's.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.models.base import Backbone, Model
from vitreous.models.last_block import shorten_last_block
from vitreous.options import Positive, Rate, Share
from vitreous.samples import Batch, Classes, Targets
from vitreous.spec import Preprocess, Spec
from vitreous.tasks.base import Objective, Outputs, Task
from vitreous.tasks.classify import Classify, ClassifyObjective, class_targets, cross_entropy
from vitreous.tasks.predictions import ClassScores, InverseView
from vitreous.weights.load import load

Kind = Literal["soft", "hard"]


@dataclass(frozen=True, kw_only=True)
class Distill(Task):
    """Classification with knowledge distillation from a trained teacher.

    >>> Distill(teacher="teacher.safetensors", kind="hard")
    >>> Distill(teacher=model, temperature=1.0)
    """

    name: ClassVar[str] = "distill"
    targets: ClassVar[type[Targets]] = Classes
    output_task: ClassVar[str] = "classify"
    teacher: Any = ""  # a weights file, a published name such as deit_tiny_16.in1k, or a model
    kind: Kind = "soft"  # match the teacher's probabilities, or only its predicted class
    weight: Share = 0.5  # weight of the teacher loss; 1 − weight for the label loss; 0: no teacher
    temperature: Positive = 3.0  # softmax temperature of soft distillation
    smoothing: Rate = 0.0  # label smoothing

    def start(self, spec: Spec, device: str) -> Objective:
        if not self.weight:
            return ClassifyObjective(self.smoothing)
        if isinstance(self.teacher, str) and not self.teacher:
            raise ValueError("distillation needs a teacher: set task.teacher to a weights file or a published name")
        model = copy.deepcopy(self.teacher) if isinstance(self.teacher, Model) else load(self.teacher)
        if not isinstance(model, Backbone):
            raise ValueError(f"the teacher must be a classifier, got a {type(model).__name__}")
        return DistillObjective(self, Teacher(model, spec.preprocess).to(device))

    @classmethod
    def decode(
        cls, outputs: Outputs, spec: Spec, views: Sequence[InverseView] = (), *, top: int = 5
    ) -> list[ClassScores]:
        return Classify.decode(outputs, spec, views, top=top)

    def to_json(self) -> dict[str, Any]:
        teacher = self.teacher if isinstance(self.teacher, str) else f"a {type(self.teacher).__name__} in memory"
        return {**super().to_json(), "teacher": teacher}


class DistillObjective(ClassifyObjective):
    """Weighted sum of the cross-entropy with the labels and the distillation loss."""

    def __init__(self, task: Distill, teacher: Teacher) -> None:
        super().__init__(task.smoothing)
        self.task, self.teacher = task, teacher

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        task = self.task
        label_loss = cross_entropy(outputs["class"], class_targets(batch), smoothing=self.smoothing)
        student = outputs.get("distill", outputs["class"])
        teacher_logits = self.teacher(batch.images)
        if teacher_logits.shape != student.shape:
            raise ValueError(
                f"the teacher has {teacher_logits.shape[1]} classes, the student {student.shape[1]}; "
                "distillation needs the same classes in the same order"
            )
        teacher_loss = distillation_loss(student.float(), teacher_logits.float(), task)
        total = (1 - task.weight) * label_loss + task.weight * teacher_loss
        return {"loss": total, "label_loss": label_loss, "teacher_loss": teacher_loss}

    def facts(self) -> dict[str, str]:
        """Return the SHA-256 of the teacher's weights, which identifies the teacher."""
        return {"teacher_sha256": weights_sha256(self.teacher.model)}


def distillation_loss(
    student: Float[Tensor, "b k"], teacher_logits: Float[Tensor, "b k"], task: Distill
) -> Float[Tensor, ""]:
    """Compute the soft or hard distillation loss, averaged over the batch."""
    if task.kind == "hard":
        return F.cross_entropy(student, teacher_logits.argmax(dim=1))
    student_log, teacher_log = ((logits / task.temperature).log_softmax(dim=1) for logits in (student, teacher_logits))
    return task.temperature**2 * F.kl_div(student_log, teacher_log, log_target=True, reduction="batchmean")


class Teacher(nn.Module):
    """A frozen model that accepts images preprocessed for another one (``given``)."""

    def __init__(self, model: Backbone, given: Preprocess) -> None:
        super().__init__()
        wanted = model.spec.preprocess
        if model.config.num_classes == 0:
            raise ValueError("the teacher has no classifier (num_classes is 0); choose one with a classification head")
        if wanted.num_channels != given.num_channels:
            raise ValueError(
                f"the teacher takes {wanted.num_channels} channels, the student's images have {given.num_channels}; "
                "choose a teacher with the same number"
            )
        shorten_last_block(model)
        self.model = model.eval().requires_grad_(False)
        self.image_size = model.config.image_size
        old_mean, old_std, mean, std = (
            torch.tensor(values).view(-1, 1, 1) for values in (given.mean, given.std, wanted.mean, wanted.std)
        )
        self.scale: Tensor
        self.shift: Tensor
        self.register_buffer("scale", old_std / std)
        self.register_buffer("shift", (old_mean - mean) / std)

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        images = images * self.scale + self.shift
        if images.shape[2:] != self.image_size:
            images = F.interpolate(images, self.image_size, mode="bilinear", antialias=True)
        return self.model(images)


def weights_sha256(model: nn.Module) -> str:
    """Return the SHA-256 of the names and values of all weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
