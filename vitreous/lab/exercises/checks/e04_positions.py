"""Checks of exercise 4."""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.lab.exercises.checking import Answer, Wrong, agree, alike, shaped
from vitreous.layers.position import SinCos, coordinates, waves
from vitreous.layers.position import resample as reference


def check_sincos_shape(sincos: Answer) -> None:
    """sincos: the shape is (rows · columns, dim)."""
    mistakes = {
        (1, 6, 8): "leave out the axis of images",
        (2, 3, 8): "rows and columns are still two axes; flatten them into one",
        (8, 6): "the cells lie along the last axis; turn the two axes round",
        (6, 4): "half of the channels are missing: those of the rows and of the columns stand side by side, not added",
        (6, 16): "twice the channels: dim / 2 of them are for the rows, dim / 2 for the columns",
    }
    shaped(sincos((2, 3), 8), (6, 8), "(rows · columns, dim)", mistakes)


def check_sincos_example(sincos: Answer) -> None:
    """sincos: the example of the task comes out."""
    right = SinCos(4)((2, 2))[0]
    mistakes = (
        (right[:, [2, 3, 0, 1]], "the columns come first: the first half of the channels must follow the row y"),
        (right[[0, 2, 1, 3]], "the cells go down the columns: in the order of patches, x changes fastest"),
        (right[:, [1, 0, 3, 2]], "cosines come before sines"),
        (right[:, [0, 2, 1, 3]], "all sines come first, then all cosines: each sine has its cosine next to it"),
    )
    agree(sincos((2, 2), 4), right, "the example does not come out", mistakes)


def check_sincos_waves(sincos: Answer) -> None:
    """sincos: the waves have the right lengths, on a grid that is not square."""
    y, x = coordinates((3, 5))
    right = SinCos(16)((3, 5))[0]
    mistakes = (
        (
            table(y, x, lambda p: waves(p, 16, 10_000.0)[:, :8]),
            "the exponent is i/h, which is 2i/dim, instead of 2i/h: h = dim/2 channels belong to each axis",
        ),
        (
            table(x, y, lambda p: waves(p, 8, 10_000.0)),
            "rows and columns are swapped: the first half of the channels must follow the row y",
        ),
        (
            table(y, x, lambda p: waves(p, 8, 10_000.0).unflatten(-1, (4, 2)).mT.flatten(1)),
            "all sines come first, then all cosines: each sine has its cosine next to it",
        ),
        (
            waves(torch.arange(15), 16, 10_000.0),
            "one row of places was encoded instead of rows and columns: half of the channels belong to each",
        ),
    )
    found = shaped(sincos((3, 5), 16), (15, 16), "(rows · columns, dim)")
    agree(found, right, "the waves differ from the formula", mistakes)


def check_sincos_offsets(sincos: Answer) -> None:
    """sincos: the product of two cells' rows depends only on the way from one to the other."""
    found = sincos((4, 4), 16)
    products = (found @ found.T).reshape(4, 4, 4, 4)
    one_step, elsewhere = products[0, 0, 1, 2], products[2, 1, 3, 3]
    if not alike(one_step, elsewhere):
        raise Wrong(
            f"one down and two to the right gives {one_step:.3f} from one cell and {elsewhere:.3f} from another: "
            f"sine and cosine of a pair need the same wave length"
        )


def check_resample_shape(resample: Answer) -> None:
    """resample: the shape is (num_prefix + m, d)."""
    mistakes = {
        (24, 8): "the class row is gone; put it back in front",
        (8, 25): "tokens lie along the last axis: turn back to (cells, d)",
        (1, 25, 8): "leave out the axis of images",
        (7, 8): "the table kept its old size: interpolate to new_grid",
    }
    shaped(resample(torch.randn(7, 8), (2, 3), (4, 6), 1), (25, 8), "(num_prefix + m, d)", mistakes)


def check_resample_example(resample: Answer) -> None:
    """resample: a class row of sevens stays above cells of fives."""
    table = torch.cat([torch.full((1, 4), 7.0), torch.full((6, 4), 5.0)])
    found = resample(table, (2, 3), (4, 6), 1)
    if not alike(found[1:], torch.full((24, 4), 5.0)):
        raise Wrong("cells that are all 5 do not stay 5: the class row was scaled along with them; split it off first")
    agree(found[:1], table[:1], "the class row changed: it has no place on the grid and stays as it is")


def check_resample_prefix(resample: Answer) -> None:
    """resample: any number of prefix rows is kept, none as well."""
    for num_prefix in (0, 2):
        table = torch.randn(num_prefix + 6, 4)
        found = shaped(
            resample(table, (2, 3), (4, 6), num_prefix), (num_prefix + 24, 4), f"(num_prefix + m, d) for {num_prefix}"
        )
        agree(found[:num_prefix], table[:num_prefix], f"{num_prefix} prefix rows must stay as they are")


def check_resample_axes(resample: Answer) -> None:
    """resample: rows stay rows, columns stay columns, channels stay channels."""
    heights = torch.arange(2.0).repeat_interleave(3)[:, None]
    found = resample(torch.cat([heights, -heights], dim=1), (2, 3), (4, 6), 0).reshape(4, 6, 2)
    if not alike(found[..., 0], -found[..., 1]):
        raise Wrong("channels got mixed: put them in front with permute or .T before reshaping, not with reshape alone")
    if not alike(found[:, :1].expand(4, 6, 2), found):
        raise Wrong("a table that only knows rows came out with columns too: are rows and columns swapped somewhere?")


def check_resample_values(resample: Answer) -> None:
    """resample: the numbers are the library's, larger and smaller."""
    for old, new in (((2, 3), (4, 6)), ((5, 4), (3, 2)), ((3, 3), (3, 3))):
        table = torch.randn(1 + old[0] * old[1], 4)
        bare = (
            (plain(table, old, new, mode="bilinear", antialias=True), "bilinear, not bicubic: say mode='bicubic'"),
            (plain(table, old, new, mode="bicubic", antialias=False), "antialias=True is missing"),
            (plain(table, old, new, mode="nearest"), "the nearest cell is copied: say mode='bicubic', antialias=True"),
        )
        right = reference(table[None], old, new, 1)[0]
        agree(resample(table, old, new, 1), right, f"from {old} to {new} cells the numbers differ", bare)


def table(first: Tensor, second: Tensor, encode: Answer) -> Tensor:
    return torch.cat([encode(first), encode(second)], dim=-1)


def plain(table: Tensor, old: tuple[int, int], new: tuple[int, int], **options: object) -> Tensor:
    """The class row above the cells scaled in one way or another."""
    cells = table[1:].T.reshape(1, -1, *old)
    scaled = torch.nn.functional.interpolate(cells, size=new, **options)  # type: ignore[arg-type]
    return torch.cat([table[:1], scaled.flatten(2)[0].T])
