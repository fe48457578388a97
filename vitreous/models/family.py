"""The record at the bottom of every model file: all that the rest of the library knows of a family of models.

From it follow the names that :func:`vitreous.create_model` takes, the name of the config in a weights file, the paper
in the catalog, the rows of the map of the family, the recipe that trains one of each, and which models tests run.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field

from vitreous.models.base import Config, ModelConfig


@dataclass(frozen=True)
class Paper:
    """What to cite for some models of a family, and what these models are called in a table."""

    family: str
    title: str
    authors: str
    year: int
    arxiv: str = ""

    def __str__(self) -> str:
        return f"{self.authors} {self.year}" + (f", arXiv {self.arxiv}" if self.arxiv else "")


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models: one file in ``models/``, and a key map of the same name if public weights exist."""

    name: str  # of the model file, of the key map file, and of the config in weights files
    config: type[ModelConfig]
    variants: Mapping[str, Config]
    papers: Mapping[str, Paper]  # by shell patterns of the variants' names; the first that matches counts
    smallest: tuple[str, ...] = ()  # variants that every test runs; by default the first variant
    drawn: tuple[str, ...] = ()  # variants in docs/map.md, about as large as ResNet-50; by default the smallest
    shrunk: Mapping[str, Config] = field(default_factory=dict)  # by title: for 64 pixels, under 2 M parameters
    exports_any_size: bool = False  # torch.export traces it within seconds with height and width as symbols

    def __post_init__(self) -> None:
        object.__setattr__(self, "smallest", self.smallest or tuple(self.variants)[:1])
        object.__setattr__(self, "drawn", self.drawn or self.smallest)

    def paper_of(self, variant: str) -> Paper:
        return next(paper for pattern, paper in self.papers.items() if fnmatch.fnmatchcase(variant, pattern))
