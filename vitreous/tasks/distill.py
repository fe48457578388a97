"""Learning from labels and from a teacher.

    loss = (1 − w) · CE(labels, z) + w · D(teacher, z′)

    soft:  D = T² · KL(softmax(teacher / T) ‖ softmax(z′ / T))       T² keeps the gradient's size whatever T
    hard:  D = CE(argmax(teacher), z′)

"Distilling the Knowledge in a Neural Network", Hinton et al. 2015 (arXiv 1503.02531), where z′ = z is the only head;
"Training data-efficient image transformers & distillation through attention", Touvron et al. 2020 (2012.12877), where
z′ is the head of a token of its own (``distilled=True``) and z the class head. DeiT's best is ``kind="hard"`` with
w = ½; for soft ones it names w = 0.1 and T = 3.

The teacher sees the very pictures that the student sees, augmented and mixed, normalised anew as it is used to and
resized where its image size is another. That keeps the student's crop, not the teacher's.
"""

from __future__ import annotations

import copy
import hashlib
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.models.base import Backbone
from vitreous.spec import Batch, Preprocess
from vitreous.tasks.base import Forward, Task, check_share, combine
from vitreous.tasks.classify import class_measures, cross_entropy, head_losses
from vitreous.weights.load import load

Kind = Literal["soft", "hard"]


@dataclass(frozen=True)
class Distill(Task):
    """Each picture belongs to one class, and a trained model helps to learn which.

    >>> Distill(teacher="teacher.safetensors", kind="hard")
    >>> Distill.with_teacher(model, temperature=1.0)
    """

    teacher: str = ""  # a weights file, or the name of a public weight
    kind: Kind = "soft"  # learn the teacher's probabilities, or only its best class
    weight: float = 0.5  # share of the teacher in the loss, the rest is the labels'; 0: no teacher
    temperature: float = 3.0  # of soft: higher shows more of what the teacher thinks of the other classes
    smoothing: float = 0.0  # of the labels: share of every target that is spread evenly over all classes

    def __post_init__(self) -> None:
        check_share("smoothing", self.smoothing, below_one=True)
        check_share("weight", self.weight)
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}; got {self.kind!r}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be a positive number, got {self.temperature}")

    @classmethod
    def with_teacher(cls, model: Backbone, **settings: Any) -> Distill:
        """With a teacher at hand instead of one in a file; it is copied, so that the caller's stays as it is."""
        task = cls(**settings)
        object.__setattr__(task, "_model", copy.deepcopy(model))
        return task

    def prepare(self, device: str, preprocess: Preprocess) -> None:
        if not self.weight:
            return
        model: Backbone | None = getattr(self, "_model", None)
        if model is None and not self.teacher:
            raise ValueError("distillation needs a teacher: give task.teacher, a weights file or a public weight")
        teacher = Teacher(model if model is not None else load(self.teacher), preprocess)
        object.__setattr__(self, "_teacher", teacher.to(device))  # no field: settings stay frozen and comparable

    @property
    def prepared(self) -> Teacher:
        teacher: Teacher | None = getattr(self, "_teacher", None)
        if teacher is None:
            raise ValueError("the teacher is not there yet; call task.prepare(device, preprocess) first")
        return teacher

    @property
    def teacher_hash(self) -> str:
        """SHA-256 of the teacher's weights, to tell in a run's record which teacher it was."""
        return hash_of(self.prepared.model)

    def facts(self) -> dict[str, str]:
        return {"teacher_sha256": self.teacher_hash} if self.weight else {}

    def loss(self, forward: Forward, batch: Batch) -> tuple[Tensor, Tensor]:
        heads = forward(batch.images)
        if not self.weight:
            return head_losses(heads, batch.targets, smoothing=self.smoothing), combine(heads).detach()
        from_labels = cross_entropy(heads["class"], batch.targets, smoothing=self.smoothing)
        pupil = heads.get("distill", heads["class"])
        advice = self.prepared(batch.images)
        if advice.shape != pupil.shape:
            raise ValueError(
                f"the teacher knows {advice.shape[1]} classes, the student {pupil.shape[1]}; "
                "distillation needs the same classes in the same order"
            )
        from_teacher = self.disagreement(pupil.float(), advice.float())
        return (1 - self.weight) * from_labels + self.weight * from_teacher, combine(heads).detach()

    def disagreement(self, pupil: Float[Tensor, "b k"], advice: Float[Tensor, "b k"]) -> Float[Tensor, ""]:
        if self.kind == "hard":
            return F.cross_entropy(pupil, advice.argmax(dim=1))
        believed, known = ((logits / self.temperature).log_softmax(dim=1) for logits in (pupil, advice))
        return self.temperature**2 * F.kl_div(believed, known, log_target=True, reduction="batchmean")

    def measure(self, logits: Tensor, targets: Tensor, classes: tuple[str, ...]) -> dict[str, float]:
        return class_measures(logits, targets)


class Teacher(nn.Module):
    """A frozen model that answers for pictures prepared for another one."""

    def __init__(self, model: Backbone, given: Preprocess) -> None:
        super().__init__()
        wanted = model.spec.preprocess
        if model.config.num_classes == 0:
            raise ValueError("the teacher has no classifier (num_classes is 0), so there is nothing to learn from it")
        if wanted.num_channels != given.num_channels:
            raise ValueError(
                f"the teacher takes {wanted.num_channels} channels, the student's pictures have {given.num_channels}; "
                "choose a teacher with the same"
            )
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
