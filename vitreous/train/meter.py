"""Running averages between two log entries."""

from __future__ import annotations

import time
from collections.abc import Mapping

from torch import Tensor


class RunMeter:
    """Accumulate losses, quick metrics and throughput; reading the values resets the meter."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.restart()

    def restart(self) -> None:
        self.begin, self.steps, self.lr = time.monotonic(), 0, 0.0
        self.sums: dict[str, Tensor] = {}

    def add(self, values: Mapping[str, Tensor], share: float) -> None:
        """Add the means over a micro-batch, which is the fraction ``share`` of its batch."""
        for name, value in values.items():
            found = value.detach() * share
            self.sums[name] = self.sums[name] + found if name in self.sums else found

    def end_step(self, norm: Tensor, lr: float) -> None:
        """Add the gradient norm and learning rate of a completed step."""
        self.add({"gradient": norm}, 1.0)
        self.lr, self.steps = lr, self.steps + 1

    def values(self) -> dict[str, float]:
        """Return the means per step, the learning rate and the images per second, and reset."""
        seconds = time.monotonic() - self.begin
        means = {name: float(total) / self.steps for name, total in self.sums.items()}
        speed = {"lr": self.lr, "images_per_second": self.steps * self.batch_size / seconds}
        self.restart()
        return means | speed


def format_progress(values: Mapping[str, float]) -> str:
    shown = [f"{name.replace('_', ' ')} {value:.1%}" for name, value in values.items() if name.endswith("accuracy")]
    parts = [f"{name.replace('_', ' ')} {value:.3f}" for name, value in values.items() if name.endswith("loss")]
    return "  ".join([*parts, *shown, f"{values['images_per_second']:,.0f} images/s"])
