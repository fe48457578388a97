"""Tensors as plain numbers that JSON can hold."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

DIGITS = 4  # that are significant: finer than any figure shows, and a third of the bytes


def rounded(value: float) -> float | None:
    """A number with four significant digits; None for NaN and infinity, which JSON does not know."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def listed(values: Tensor) -> Any:
    """A tensor as nested lists, its numbers with four significant digits."""
    return nested(values.detach().cpu().tolist())


def nested(values: Any) -> Any:
    return [nested(value) for value in values] if isinstance(values, list) else rounded(values)
