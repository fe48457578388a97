"""Embedding n patches costs n·p²·c·D multiply-accumulates; the text omits the embedding width D."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.counting import forward_flops, power
from vitreous.lab.prediction import Near
from vitreous.lab.trial import Trial
from vitreous.layers.patch import PatchEmbed

CLAIM = Claim(
    title="The cost of the patch embedding",
    statement="Embedding n patches of p × p pixels and c channels takes O(np²c) operations.",
    sources=(Source.MODERN,),
    formula=r"O(n p^2 c)",
    right="np²c is the number of values in the image. Each of them contributes to all D outputs of its patch.",
    right_formula=r"O(n p^2 c D)",
    meaning="The text's number is the cost of reading the image. The embedding is still cheap, 0.7 % of ViT-B/16; "
    "since np² is the number of pixels, smaller patches do not make it more expensive, only the blocks after it.",
)


class Setting(NamedTuple):
    """A map of rows × columns patches of p × p pixels and c channels, embedded in D dimensions."""

    rows: int = 14
    columns: int = 14
    p: int = 16
    c: int = 3
    dim: int = 768


def document(rows: int, columns: int, p: int, c: int, dim: int) -> int:
    return rows * columns * p**2 * c


def right(rows: int, columns: int, p: int, c: int, dim: int) -> int:
    return rows * columns * p**2 * c * dim


def measure(rows: int, columns: int, p: int, c: int, dim: int) -> int:
    """Multiply-accumulates of the library's patch embedding, counted."""
    embed = PatchEmbed((p, p), c, dim).to("meta")
    return forward_flops(embed, torch.empty(1, c, rows * p, columns * p, device="meta")) // 2


def cases(trial: Trial) -> Iterator[Case]:
    for start in trial.choose(quick=(Setting(),), full=(Setting(), Setting(24, 24, 8, 1, 192))):
        doubled = {
            "patches n": start._replace(columns=2 * start.columns),
            "side of a patch p": start._replace(p=2 * start.p),
            "channels c": start._replace(c=2 * start.c),
            "width of the embedding D": start._replace(dim=2 * start.dim),
        }
        for name, setting in doubled.items():
            yield Case(
                f"from p = {start.p}, c = {start.c}, D = {start.dim}: power of the {name}",
                exactly(power(2, measure(*start), measure(*setting))),
                document=Near(power(2, document(*start), document(*setting)), 0.05),
                right=Near(power(2, right(*start), right(*setting)), 0.05),
            )
