"""A claim, and its cases: predictions compared with a measurement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vitreous.lab.estimate import Estimate
from vitreous.lab.prediction import Prediction


class Source(StrEnum):
    """The five teaching texts whose claims are tested."""

    PRINCIPLES = "Vision Transformers: principles and mechanisms"
    DEEP_DIVE = "Vision Transformer (ViT) deep dive"
    FOUNDATIONS = "Vision Transformers: architecture and mathematical foundations"
    PIXELS = "Vision Transformers: from pixels to patches"
    MODERN = "Vision Transformers and modern computer vision: theory"


@dataclass(frozen=True)
class Axes:
    """Axis labels of a figure, and which axes are logarithmic: "", "x", "y" or "xy"."""

    x: str
    y: str
    log: str = ""


@dataclass(frozen=True)
class Claim:
    """A textbook claim: its statement, sources, correction and practical meaning."""

    title: str  # the subject in a few words
    statement: str  # as in the text, self-contained
    sources: tuple[Source, ...]
    formula: str  # the text's formula in matplotlib's TeX; empty if there is none
    right: str  # the correct statement, in a sentence or two
    right_formula: str  # the correct formula in TeX; empty if it is the text's or there is none
    meaning: str  # the consequence for building models
    axes: Axes | None = None  # for cases with an x value; without axes, cases are drawn as rows


@dataclass(frozen=True)
class Case:
    """One situation in which the claim is tested.

    ``document`` is the text's prediction, ``right`` the correct one: a measurement that disagrees with ``right`` means
    that the experiment is broken, not the text.
    """

    label: str
    measured: Estimate
    document: Prediction | None = None
    right: Prediction | None = None
    at: float | None = None  # x value in the figure
    group: str = ""  # cases of a group are connected by a line

    def __post_init__(self) -> None:
        if self.document is None and self.right is None:
            raise ValueError(f"the case {self.label!r} tests nothing: give it document=, right= or both")
