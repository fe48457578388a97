"""Checks of exercise 4."""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.lab.exercises.checking import Answer, CheckFailed, is_close, require_close, require_shape
from vitreous.layers.position import SinCos, coordinates, waves
from vitreous.layers.position import resample as reference


def check_sincos_shape(sincos: Answer) -> None:
    """sincos: the shape is (rows · columns, dim)."""
    mistakes = {
        (1, 6, 8): "remove the batch axis",
        (2, 3, 8): "rows and columns are still two axes; flatten them into one",
        (8, 6): "the cells are on the last axis; swap the two axes",
        (6, 4): "half of the channels are missing: concatenate those of the rows and of the columns, do not add them",
        (6, 16): "twice the channels: dim / 2 of them are for the rows, dim / 2 for the columns",
    }
    require_shape(sincos((2, 3), 8), (6, 8), "(rows · columns, dim)", mistakes)


def check_sincos_example(sincos: Answer) -> None:
    """sincos: the example of the task is reproduced."""
    right = SinCos(4)((2, 2))[0]
    mistakes = (
        (right[:, [2, 3, 0, 1]], "the columns come first: the first half of the channels must encode the row y"),
        (right[[0, 2, 1, 3]], "the cells are ordered column by column: in the order of patches, x changes fastest"),
        (right[:, [1, 0, 3, 2]], "cosines come before sines"),
        (
            right[:, [0, 2, 1, 3]],
            "all sines come first, then all cosines: they must alternate, each sine followed by its cosine",
        ),
    )
    require_close(sincos((2, 2), 4), right, "the example is not reproduced", mistakes)


def check_sincos_waves(sincos: Answer) -> None:
    """sincos: the wavelengths are correct, on a non-square grid."""
    y, x = coordinates((3, 5))
    right = SinCos(16)((3, 5))[0]
    mistakes = (
        (
            table(y, x, lambda p: waves(p, 16, 10_000.0)[:, :8]),
            "the exponent is i/h, which is 2i/dim, instead of 2i/h: h = dim/2 channels belong to each axis",
        ),
        (
            table(x, y, lambda p: waves(p, 8, 10_000.0)),
            "rows and columns are swapped: the first half of the channels must encode the row y",
        ),
        (
            table(y, x, lambda p: waves(p, 8, 10_000.0).unflatten(-1, (4, 2)).mT.flatten(1)),
            "all sines come first, then all cosines: they must alternate, each sine followed by its cosine",
        ),
        (
            waves(torch.arange(15), 16, 10_000.0),
            "the index along the sequence was encoded instead of row and column: half of the channels belong to each",
        ),
    )
    found = require_shape(sincos((3, 5), 16), (15, 16), "(rows · columns, dim)")
    require_close(found, right, "the waves differ from the formula", mistakes)


def check_sincos_offsets(sincos: Answer) -> None:
    """sincos: the dot product of two cells depends only on their offset."""
    found = sincos((4, 4), 16)
    products = (found @ found.T).reshape(4, 4, 4, 4)
    one_step, elsewhere = products[0, 0, 1, 2], products[2, 1, 3, 3]
    if not is_close(one_step, elsewhere):
        raise CheckFailed(
            f"the offset of one down and two to the right gives {one_step:.3f} from one cell and {elsewhere:.3f} from "
            f"another: sine and cosine of a pair need the same wavelength"
        )


def check_resample_shape(resample: Answer) -> None:
    """resample: the shape is (num_prefix + m, d)."""
    mistakes = {
        (24, 8): "the class row is missing; put it back in front",
        (8, 25): "tokens are on the last axis: transpose back to (cells, d)",
        (1, 25, 8): "remove the batch axis",
        (7, 8): "the table kept its old size: interpolate to new_grid",
    }
    require_shape(resample(torch.randn(7, 8), (2, 3), (4, 6), 1), (25, 8), "(num_prefix + m, d)", mistakes)


def check_resample_example(resample: Answer) -> None:
    """resample: a class row of sevens is kept above cells of fives."""
    table = torch.cat([torch.full((1, 4), 7.0), torch.full((6, 4), 5.0)])
    found = resample(table, (2, 3), (4, 6), 1)
    if not is_close(found[1:], torch.full((24, 4), 5.0)):
        raise CheckFailed(
            "cells that are all 5 do not stay 5: the class row was interpolated with them; split it off first"
        )
    require_close(found[:1], table[:1], "the class row changed: it has no position on the grid and must be kept")


def check_resample_prefix(resample: Answer) -> None:
    """resample: any number of prefix rows is kept, including none."""
    for num_prefix in (0, 2):
        table = torch.randn(num_prefix + 6, 4)
        found = require_shape(
            resample(table, (2, 3), (4, 6), num_prefix), (num_prefix + 24, 4), f"(num_prefix + m, d) for {num_prefix}"
        )
        require_close(found[:num_prefix], table[:num_prefix], f"{num_prefix} prefix rows must not change")


def check_resample_axes(resample: Answer) -> None:
    """resample: rows stay rows, columns stay columns, channels stay channels."""
    heights = torch.arange(2.0).repeat_interleave(3)[:, None]
    found = resample(torch.cat([heights, -heights], dim=1), (2, 3), (4, 6), 0).reshape(4, 6, 2)
    if not is_close(found[..., 0], -found[..., 1]):
        raise CheckFailed(
            "channels got mixed: move them to the front with permute or .T before reshaping, not with reshape alone"
        )
    if not is_close(found[:, :1].expand(4, 6, 2), found):
        raise CheckFailed(
            "a table that varies by row only now varies by column: are rows and columns swapped somewhere?"
        )


def check_resample_values(resample: Answer) -> None:
    """resample: the values equal the library's, when enlarging and when reducing."""
    for old, new in (((2, 3), (4, 6)), ((5, 4), (3, 2)), ((3, 3), (3, 3))):
        table = torch.randn(1 + old[0] * old[1], 4)
        bare = (
            (
                interpolated(table, old, new, mode="bilinear", antialias=True),
                "bilinear, not bicubic: use mode='bicubic'",
            ),
            (interpolated(table, old, new, mode="bicubic", antialias=False), "antialias=True is missing"),
            (
                interpolated(table, old, new, mode="nearest"),
                "the nearest cell is copied: use mode='bicubic', antialias=True",
            ),
        )
        right = reference(table[None], old, new, 1)[0]
        require_close(resample(table, old, new, 1), right, f"from {old} to {new} cells the values differ", bare)


def table(first: Tensor, second: Tensor, encode: Answer) -> Tensor:
    return torch.cat([encode(first), encode(second)], dim=-1)


def interpolated(table: Tensor, old: tuple[int, int], new: tuple[int, int], **options: object) -> Tensor:
    """Keep the class row and interpolate the cells with the given options."""
    cells = table[1:].T.reshape(1, -1, *old)
    scaled = torch.nn.functional.interpolate(cells, size=new, **options)  # type: ignore[arg-type]
    return torch.cat([table[:1], scaled.flatten(2)[0].T])
