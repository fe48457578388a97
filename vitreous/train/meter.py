"""Running numbers between two lines of the log."""

from __future__ import annotations

import time
from collections.abc import Mapping

from torch import Tensor


class Meter:
    """Loss, accuracy and speed since it was last read."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
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
        self.restart()
        return values


def describe(values: Mapping[str, float]) -> str:
    speed = f"{values['images_per_second']:,.0f} images/s"
    return f"loss {values['loss']:.3f}  accuracy {values['accuracy']:.1%}  {speed}"
