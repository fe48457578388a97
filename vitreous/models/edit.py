"""Edits: recorded changes to a model's structure, which weights files store and loading replays.

``config.build()`` followed by the edits in order reproduces the structure of any model: ``model.edit(Fold())`` applies
an edit and appends it to ``model.edits``. ``compress/edits.py`` registers the edits that a file may contain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vitreous.options import Options

if TYPE_CHECKING:
    from vitreous.models.base import Model, ModelConfig


@dataclass(frozen=True, kw_only=True)
class Edit(Options, ABC):
    """A change to a model's structure, with all options needed to replay it."""

    name: ClassVar[str]

    @abstractmethod
    def apply(self, model: Model) -> None:
        """Change the model in place; must also work on the meta device.

        The resulting modules and shapes may depend only on the options. Weights may be transformed, since files store
        the result, but anything derived from them that affects the structure (such as which heads to remove) must be an
        option.
        """

    def to_json(self) -> dict[str, Any]:
        return {"edit": self.name, **super().to_json()}


def rebuild(config: ModelConfig, edits: Iterable[Edit]) -> Model:
    """Build a fresh model and replay edits on it."""
    model = config.build()
    for edit in edits:
        model.edit(edit)
    return model
