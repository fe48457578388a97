"""Edits: changes to a model's structure that it remembers, so that a file stores them and loading replays them.

``config.build()`` followed by the edits in order gives the structure of any model: ``model.edit(Fold())`` applies one
and keeps it in ``model.edits``. ``compress/edits.py`` is the table of those that a file may name.
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
    """One change to a model's structure, with all that is needed to make it again."""

    name: ClassVar[str]

    @abstractmethod
    def apply(self, model: Model) -> None:
        """Change the model in place, on the meta device as well; what follows may depend on the options alone.

        Weights may be used, since a file holds the result, but not to decide which modules and shapes there are: what
        was decided by them (which heads to remove, say) belongs into the options.
        """

    def to_json(self) -> dict[str, Any]:
        return {"edit": self.name, **super().to_json()}


def rebuild(config: ModelConfig, edits: Iterable[Edit]) -> Model:
    """Build a fresh model and replay edits on it."""
    model = config.build()
    for edit in edits:
        model.edit(edit)
    return model
