"""Semantic segmentation: one class per pixel.

    loss = −1/(B·Y·X) Σ log softmax(z)[t]        over the pixels whose target t is known (255 is not)

Dividing by all pixels rather than by the known ones makes the loss of a batch the mean of its micro-batches' losses,
whatever their number. The metrics are the intersection over union per class, IoU = TP / (TP + FP + FN) over all pixels
of the dataset, and its mean over the classes that occur (mIoU).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from vitreous.options import Rate
from vitreous.samples import IGNORED, Batch, Masks, Targets
from vitreous.spec import Spec
from vitreous.tasks.base import Objective, Outputs, Task
from vitreous.tasks.meter import Meter, Metric, loss_metric
from vitreous.tasks.predictions import InverseView, Segmentation


@dataclass(frozen=True, kw_only=True)
class Segment(Task):
    """Semantic segmentation with pixel-wise cross-entropy; pixels with target 255 are ignored."""

    name: ClassVar[str] = "segment"
    targets: ClassVar[type[Targets]] = Masks
    output_task: ClassVar[str] = "segment"
    needs_full_image: ClassVar[bool] = True
    smoothing: Rate = 0.0  # label smoothing

    def start(self, spec: Spec, device: str) -> Objective:
        return SegmentObjective(self.smoothing)

    @classmethod
    def decode(
        cls, outputs: Outputs, spec: Spec, views: Sequence[InverseView] = (), *, top: int = 5
    ) -> list[Segmentation]:
        logits = outputs["masks"]
        classes = tuple(spec.labels[index] for index in range(logits.shape[1]))
        masks: Any = logits.argmax(1).to(torch.uint8).cpu().numpy()
        if views:
            masks = [view.undo_mask(mask, IGNORED) for mask, view in zip(masks, views, strict=True)]
        return [Segmentation(mask, classes) for mask in masks]


class SegmentObjective(Objective):
    """Pixel-wise cross-entropy."""

    def __init__(self, smoothing: float) -> None:
        self.smoothing = smoothing

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        return {"loss": pixel_cross_entropy(outputs["masks"], mask_targets(batch), smoothing=self.smoothing)}

    def monitor(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        masks = mask_targets(batch)
        known = masks != IGNORED
        correct = (outputs["masks"].argmax(1) == masks) & known
        return {"pixel_accuracy": correct.sum() / known.sum().clamp(min=1)}

    def meter(self, classes: tuple[str, ...]) -> Meter:
        return PixelMeter(classes)


class PixelMeter(Meter):
    """Accumulates a confusion matrix over all pixels, and the loss."""

    def __init__(self, classes: tuple[str, ...]) -> None:
        self.classes = classes
        self.confusion = np.zeros((len(classes), len(classes)), dtype=np.int64)  # (true, predicted)
        self.loss, self.images = 0.0, 0

    def add(self, outputs: dict[str, Tensor], batch: Batch, indices: NDArray[np.int64]) -> None:
        logits, masks = outputs["masks"], mask_targets(batch)
        self.loss += float(pixel_cross_entropy(logits, masks)) * len(masks)
        known = masks != IGNORED
        cells = masks[known].long() * len(self.classes) + logits.argmax(1)[known]
        counts = torch.bincount(cells, minlength=len(self.classes) ** 2).cpu().numpy()
        self.confusion += counts.reshape(self.confusion.shape)
        self.images += len(masks)

    def merge(self, other: PixelMeter) -> None:
        self.confusion = self.confusion + other.confusion
        self.loss += other.loss
        self.images += other.images

    def __len__(self) -> int:
        return self.images

    def result(self) -> dict[str, Metric]:
        hits, total = np.diag(self.confusion), self.confusion.sum()
        union = self.confusion.sum(0) + self.confusion.sum(1) - hits
        occurs = union > 0
        iou = np.divide(hits, union, out=np.full(len(hits), np.nan), where=occurs)
        return {
            "miou": Metric(float(np.nanmean(iou)) if occurs.any() else float("nan")),
            "pixel_accuracy": Metric(float(hits.sum() / max(1, total))),
            "loss": loss_metric(self.loss / max(1, self.images)),
            **{f"iou/{name}": Metric(float(v)) for name, v in zip(self.classes, iou, strict=True) if not np.isnan(v)},
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"confusion": self.confusion}


def mask_targets(batch: Batch) -> UInt8[Tensor, "b y x"]:
    """Return the masks of a batch."""
    if not isinstance(batch.targets, Masks):
        raise ValueError(f"segmentation needs masks, the data has {batch.targets.description}")
    return batch.targets.values


def pixel_cross_entropy(
    logits: Float[Tensor, "b k y x"], masks: UInt8[Tensor, "b y x"], *, smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Sum the cross-entropy over the known pixels and divide by the number of all pixels."""
    if logits.shape[2:] != masks.shape[1:] or len(logits) != len(masks):
        raise ValueError(
            f"the logits have shape {tuple(logits.shape)} (images, classes, height, width), the masks "
            f"{tuple(masks.shape)}; the number of images, height and width must match"
        )
    losses = F.cross_entropy(
        logits.float(), masks.long(), ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
    )
    return losses / masks.numel()
