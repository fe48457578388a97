"""Model families: the ``FAMILY`` record at the end of every model file, which registers the family's models.

The rest of the library derives from it the names accepted by :func:`vitreous.create_model`, the config's name in
weights files, the papers in the catalog, the models in docs/concepts/map.md, the family recipe, and the test models.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field

from vitreous.models.base import Config, ModelConfig


@dataclass(frozen=True)
class Paper:
    """The paper to cite for models of a family; ``family`` is what tables call these models."""

    family: str
    title: str
    authors: str
    year: int
    arxiv: str = ""

    def __str__(self) -> str:
        return f"{self.authors} {self.year}" + (f", arXiv {self.arxiv}" if self.arxiv else "")


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model family: one file in ``models/``, and a key map of the same name if public weights exist."""

    name: str  # of the model file, the key map file and the config in weights files
    config: type[ModelConfig]
    variants: Mapping[str, Config]
    papers: Mapping[str, Paper]  # by shell pattern of the variant names; the first match counts
    smallest: tuple[str, ...] = ()  # variants used by tests; by default the first one
    plotted: tuple[str, ...] = ()  # variants in docs/concepts/map.md, about the size of ResNet-50
    shrunk: Mapping[str, Config] = field(
        default_factory=dict
    )  # by title: configs for 64 pixels with under 2 M parameters
    exports_any_size: bool = False  # torch.export handles dynamic height and width within seconds

    def __post_init__(self) -> None:
        object.__setattr__(self, "smallest", self.smallest or tuple(self.variants)[:1])
        object.__setattr__(self, "plotted", self.plotted or self.smallest)

    def paper_of(self, variant: str) -> Paper:
        return next(paper for pattern, paper in self.papers.items() if fnmatch.fnmatchcase(variant, pattern))
