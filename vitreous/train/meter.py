"""Running numbers between two lines of the log."""

from __future__ import annotations

import time
from collections.abc import Mapping

from torch import Tensor


class Meter:
    """Loss, accuracy and speed since it was last read."""

    def __init__(self, batch_size: int, *, one_label: bool = True) -> None:
        self.batch_size, self.one_label = batch_size, one_label
        self.restart()

    def restart(self) -> None:
        self.begin, self.steps, self.pictures = time.monotonic(), 0, 0
        self.loss: Tensor | float = 0.0
        self.right: Tensor | float = 0.0
        self.norm: Tensor | float = 0.0
        self.lr = 0.0

    def saw(self, logits: Tensor, targets: Tensor) -> None:
        self.right = self.right + (logits.argmax(1) == targets.argmax(1)).sum()
        self.pictures += len(logits)

    def learned(self, loss: Tensor, norm: Tensor, lr: float) -> None:
        self.loss, self.norm, self.lr, self.steps = self.loss + loss, self.norm + norm, lr, self.steps + 1

    def values(self) -> Mapping[str, float]:
        seconds = time.monotonic() - self.begin
        values = {
            "loss": float(self.loss) / self.steps,
            "accuracy": float(self.right) / self.pictures,
            "gradient": float(self.norm) / self.steps,
            "lr": self.lr,
            "images_per_second": self.steps * self.batch_size / seconds,
        }
        if not self.one_label:
            del values["accuracy"]  # the best of several labels says nothing
        self.restart()
        return values


def describe(values: Mapping[str, float]) -> str:
    speed = f"{values['images_per_second']:,.0f} images/s"
    right = f"accuracy {values['accuracy']:.1%}  " if "accuracy" in values else ""
    return f"loss {values['loss']:.3f}  {right}{speed}"
