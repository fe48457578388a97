"""Shifting windows once per stage leaves most of the map unconnected; Swin shifts them in every second block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import Estimate, exactly
from vitreous.lab.instruments.dependence import dependency_mask
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import AtLeast, Near, near
from vitreous.lab.trial import Trial
from vitreous.layers.block import PreNormBlock
from vitreous.layers.mixer import MixerContext
from vitreous.layers.window import Window

CLAIM = Claim(
    title="Which windows are shifted",
    statement="Swin Transformer carries information from window to window by shifting the windows: in the first block "
    "of every second stage, while all other blocks keep the same windows. A shift is a cyclic shift of the map.",
    sources=(Source.MODERN, Source.FOUNDATIONS),
    formula=r"\mathrm{SW}(z) = \mathrm{W}(\mathrm{CyclicShift}(z))",
    right="In every stage blocks alternate, the even ones unshifted, the odd ones shifted by half a window. "
    "Cells that only the cyclic shift made adjacent are masked, and the map is shifted back afterwards.",
    right_formula="",
    meaning="With one shift per stage, or none, most cells of a large map never exchange information, however deep "
    "the stage: the window borders show in the features. Alternate, mask, and shift back.",
    axes=Axes("blocks of the stage", "share of the map that a cell depends on"),
)
SIDE, WINDOW, DIM = 16, 4, 8
CONTEXT = MixerContext(dim=DIM, num_heads=1, grid=(SIDE, SIDE))
PROBES = range(0, SIDE, WINDOW + 1)  # rows and columns that together cover every position within a window


def document(odd_stage: bool, depth: int) -> list[bool]:
    """Which blocks are shifted, by the text's code."""
    return [odd_stage, *([False] * (depth - 1))]


def right(depth: int) -> list[bool]:
    """Which blocks are shifted in Swin."""
    return [index % 2 == 1 for index in range(depth)]


def reach(shifted: Sequence[bool]) -> float:
    """Expected share of the map that influences a cell: each block expands it to whole windows, per axis."""
    sizes = []
    for cell in PROBES:
        seen = {cell}
        for is_shifted in reversed(shifted):
            windows = {window_of(one, is_shifted) for one in seen}
            seen = {one for one in range(SIDE) if window_of(one, is_shifted) in windows}
        sizes.append(len(seen))
    return (sum(sizes) / len(sizes) / SIDE) ** 2


def window_of(cell: int, is_shifted: bool) -> int:
    return (cell - (WINDOW // 2 if is_shifted else 0)) // WINDOW


def windows(is_shifted: bool) -> nn.Module:
    """Window attention with or without a shift, independent of its position in the stage."""
    return Window(size=WINDOW, shift="alternate" if is_shifted else "never").build(replace(CONTEXT, index=1))


def swin_stage(depth: int) -> list[nn.Module]:
    """The attention layers of a stage as built by the library."""
    return [Window(size=WINDOW).build(replace(CONTEXT, index=index)) for index in range(depth)]


def measure(mixers: Sequence[nn.Module], cells: list[int]) -> float:
    """Mean number of cells that one of ``cells`` depends on through the blocks."""
    blocks = [PreNormBlock(DIM, mixer, nn.Identity()).double() for mixer in mixers]

    def stage(x: Tensor) -> Tensor:
        for block in blocks:
            x = block(x, CONTEXT.grid)
        return x

    return float(dependency_mask(stage, torch.randn(SIDE**2, DIM, dtype=torch.float64), cells).sum(-1).double().mean())


def measured_share(mixers: Sequence[nn.Module]) -> Estimate:
    return exactly(measure(mixers, [row * SIDE + column for row in PROBES for column in PROBES]) / SIDE**2)


def cases(trial: Trial) -> Iterator[Case]:
    depths = trial.choose(quick=(2, 4, 6), full=(2, 4, 6, 12, 18))
    with seeded(0):
        for depth in depths:
            share, expected = measured_share(swin_stage(depth)), near(reach(right(depth)), share=0.02)
            yield Case(f"alternating, {depth} blocks", share, right=expected, at=depth, group="alternating, as in Swin")
        for odd, name in ((True, "stages 2 and 4"), (False, "stages 1 and 3")):
            for depth in depths:
                shifted = document(odd, depth)
                yield Case(
                    f"the text's {name}, {depth} blocks",
                    measured_share([windows(is_shifted) for is_shifted in shifted]),
                    document=AtLeast(reach(right(depth))),
                    right=near(reach(shifted), share=0.02),
                    at=depth,
                    group=f"the text's {name}",
                )
        yield Case(
            "cells that the corner cell attends to in a shifted block",
            exactly(measure([windows(is_shifted=True)], [0])),
            document=Near(WINDOW**2, 0.5),
            right=Near((WINDOW // 2) ** 2, 0.5),
        )
