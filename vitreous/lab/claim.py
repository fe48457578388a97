"""A claim, and a case: one prediction beside its measurement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vitreous.lab.estimate import Estimate
from vitreous.lab.prediction import Prediction


class Source(StrEnum):
    """The five teaching texts whose claims are tested here."""

    PRINCIPLES = "Vision Transformers: principles and mechanisms"
    DEEP_DIVE = "Vision Transformer (ViT) deep dive"
    FOUNDATIONS = "Vision Transformers: architecture and mathematical foundations"
    PIXELS = "Vision Transformers: from pixels to patches"
    MODERN = "Vision Transformers and modern computer vision: theory"


@dataclass(frozen=True)
class Axes:
    """What a figure's axes are called, and which of them are logarithmic: "", "x", "y" or "xy"."""

    x: str
    y: str
    log: str = ""


@dataclass(frozen=True)
class Claim:
    """What is said, where, and what it comes to."""

    title: str  # a few words that name the subject
    statement: str  # as the text makes it: a reader needs nothing else
    sources: tuple[Source, ...]
    formula: str  # of the text, in TeX that matplotlib renders; empty where the claim is in words
    right: str  # what is right, in a sentence or two
    right_formula: str  # in TeX; empty where the text's own is right or there is none
    meaning: str  # for somebody who builds a model
    axes: Axes | None = None  # for cases that have a place on a line; the others are drawn as rows


@dataclass(frozen=True)
class Case:
    """One situation in which the claim can be tested.

    ``document`` is what the text predicts, ``right`` what we hold to be right: a measurement that disagrees with *that*
    means that the experiment is broken, not the text.
    """

    label: str
    measured: Estimate
    document: Prediction | None = None
    right: Prediction | None = None
    at: float | None = None  # its place on the x axis
    group: str = ""  # cases of one group are joined by a line

    def __post_init__(self) -> None:
        if self.document is None and self.right is None:
            raise ValueError(f"the case {self.label!r} tests nothing: give it document=, right= or both")
