"""Convert tensors to nested lists for JSON."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

SIGNIFICANT_DIGITS = 4  # finer than any figure shows, at a third of the bytes


def round_significant(value: float) -> float | None:
    """Round to four significant digits; None for NaN and infinity, which JSON lacks."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else None


def to_json_list(values: Tensor) -> Any:
    """Convert a tensor to nested lists of numbers with four significant digits."""
    return round_nested(values.detach().cpu().tolist())


def round_nested(values: Any) -> Any:
    return [round_nested(value) for value in values] if isinstance(values, list) else round_significant(values)
