"""Learning from labels and from a teacher.

    loss = (1 − w) · CE(labels, z) + w · D(teacher, z′)

    soft:  D = T² · KL(softmax(teacher / T) ‖ softmax(z′ / T))       T² keeps the gradient's size whatever T
    hard:  D = CE(argmax(teacher), z′)

"Distilling the Knowledge in a Neural Network", Hinton et al. 2015 (arXiv 1503.02531), where z′ = z is the only head;
"Training data-efficient image transformers & distillation through attention", Touvron et al. 2020 (2012.12877), where
z′ is the head of a token of its own (``distilled=True``) and z the class head. DeiT's best is ``kind="hard"`` with
w = ½; for soft ones it names w = 0.1 and T = 3.

The teacher sees the very images that the student sees, augmented and mixed, normalized anew as it is used to and
resized where its image size is another. That keeps the student's crop, not the teacher's.
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
from vitreous.tasks.classify import Classify, LabelLoss, cross_entropy, values_of
from vitreous.tasks.predictions import ClassScores, Undoes
from vitreous.weights.load import load

Kind = Literal["soft", "hard"]


@dataclass(frozen=True, kw_only=True)
class Distill(Task):
    """Each image belongs to one class, and a trained model helps to learn which.

    >>> Distill(teacher="teacher.safetensors", kind="hard")
    >>> Distill(teacher=model, temperature=1.0)
    """

    name: ClassVar[str] = "distill"
    targets: ClassVar[type[Targets]] = Classes
    meaning: ClassVar[str] = "classify"
    teacher: Any = ""  # a weights file, the name of a public weight, or a model
    kind: Kind = "soft"  # learn the teacher's probabilities, or only its best class
    weight: Share = 0.5  # share of the teacher in the loss, the rest is the labels'; 0: no teacher
    temperature: Positive = 3.0  # of soft: higher shows more of what the teacher thinks of the other classes
    smoothing: Rate = 0.0  # of the labels: share of every target that is spread evenly over all classes

    def start(self, spec: Spec, device: str) -> Objective:
        if not self.weight:
            return LabelLoss(self.smoothing)
        if isinstance(self.teacher, str) and not self.teacher:
            raise ValueError("distillation needs a teacher: give task.teacher, a weights file or a public weight")
        model = copy.deepcopy(self.teacher) if isinstance(self.teacher, Model) else load(self.teacher)
        if not isinstance(model, Backbone):
            raise ValueError(f"the teacher must be a classifier, got a {type(model).__name__}")
        return TeacherLoss(self, Teacher(model, spec.preprocess).to(device))

    @classmethod
    def decode(cls, outputs: Outputs, spec: Spec, views: Sequence[Undoes] = (), *, top: int = 5) -> list[ClassScores]:
        return Classify.decode(outputs, spec, views, top=top)

    def to_json(self) -> dict[str, Any]:
        teacher = self.teacher if isinstance(self.teacher, str) else f"a {type(self.teacher).__name__} in memory"
        return {**super().to_json(), "teacher": teacher}


class TeacherLoss(LabelLoss):
    """Cross-entropy with the labels, and disagreement with the teacher."""

    def __init__(self, task: Distill, teacher: Teacher) -> None:
        super().__init__(task.smoothing)
        self.task, self.teacher = task, teacher

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        task = self.task
        from_labels = cross_entropy(outputs["class"], values_of(batch), smoothing=self.smoothing)
        student = outputs.get("distill", outputs["class"])
        advice = self.teacher(batch.images)
        if advice.shape != student.shape:
            raise ValueError(
                f"the teacher knows {advice.shape[1]} classes, the student {student.shape[1]}; "
                "distillation needs the same classes in the same order"
            )
        from_teacher = disagreement(student.float(), advice.float(), task)
        total = (1 - task.weight) * from_labels + task.weight * from_teacher
        return {"loss": total, "label_loss": from_labels, "teacher_loss": from_teacher}

    def facts(self) -> dict[str, str]:
        """SHA-256 of the teacher's weights, to tell which teacher it was."""
        return {"teacher_sha256": hash_of(self.teacher.model)}


def disagreement(student: Float[Tensor, "b k"], advice: Float[Tensor, "b k"], task: Distill) -> Float[Tensor, ""]:
    """How far a student's logits are from what the teacher advises."""
    if task.kind == "hard":
        return F.cross_entropy(student, advice.argmax(dim=1))
    believed, known = ((logits / task.temperature).log_softmax(dim=1) for logits in (student, advice))
    return task.temperature**2 * F.kl_div(believed, known, log_target=True, reduction="batchmean")


class Teacher(nn.Module):
    """A frozen model that is given images prepared for another one."""

    def __init__(self, model: Backbone, given: Preprocess) -> None:
        super().__init__()
        wanted = model.spec.preprocess
        if model.config.num_classes == 0:
            raise ValueError("the teacher has no classifier (num_classes is 0), so there is nothing to learn from it")
        if wanted.num_channels != given.num_channels:
            raise ValueError(
                f"the teacher takes {wanted.num_channels} channels, the student's images have {given.num_channels}; "
                "choose a teacher with the same"
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


def hash_of(model: nn.Module) -> str:
    """SHA-256 over the names and values of all weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
