"""The learning rate as a formula of the step, so that a resumed run needs no state of it.

    warm-up    s ≤ W     (s + 1) / W
    cosine     s > W     f + (1 − f) · ½ (1 + cos π p)        p = (s − W) / (S − W)
    linear     s > W     f + (1 − f) · (1 − p)
    steps      s > W     1, ⅒, 1⁄100, … at each third of S (ResNet's)

with S steps in all, W of them warm-up, and f the share of the rate where the schedule ends. The cosine falls to zero
once and stays positive: without the ½(1 + …) it would turn negative halfway.
"""

from __future__ import annotations

import math
from typing import Literal

Kind = Literal["cosine", "linear", "steps", "constant"]


def rate(step: int, total: int, *, warmup: int, kind: Kind = "cosine", final: float = 0.0) -> float:
    """The share of the highest learning rate at a step, counted from 0."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    match kind:
        case "constant":
            return 1.0
        case "cosine":
            return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))
        case "linear":
            return final + (1 - final) * (1 - progress)
        case "steps":
            return 10.0 ** -min(2, 3 * step // total)
