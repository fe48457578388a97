"""The table of edits that a file may name, and how one is read back from JSON.

An edit of one's own is saved and loaded like any other once it stands in the table: ``EDITS[Mine.name] = Mine``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitreous.compress.fold import Fold
from vitreous.compress.replace_activation import ReplaceActivation
from vitreous.models.edit import Edit
from vitreous.options import did_you_mean

EDITS: dict[str, type[Edit]] = {kind.name: kind for kind in (Fold, ReplaceActivation)}


def find_edit(value: Any) -> Edit:
    """Return an edit given as such, by its name, or by the JSON of its options."""
    if isinstance(value, Edit):
        return value
    options: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {"edit": value}
    kind = options.pop("edit", None)
    if kind not in EDITS:
        raise ValueError(
            f"unknown edit {kind!r}{did_you_mean(str(kind), EDITS)}; it was written by a newer Vitreous (upgrade), "
            "or is one of your own (add it to vitreous.compress.edits.EDITS)"
        )
    return EDITS[kind].given("edit", options)
