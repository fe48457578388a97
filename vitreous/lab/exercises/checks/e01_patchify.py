"""Checks of exercise 1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange

from vitreous.lab.exercises.checking import Answer, CheckFailed, require_close, require_shape
from vitreous.layers.patch import PatchEmbed
from vitreous.layers.patch import patchify as reference


def check_shape(patchify: Answer) -> None:
    """The shape is (b, n, c·p·p)."""
    mistakes = {
        (2, 48, 6): "the patches are on the last axis; swap the last two axes",
        (6, 48): "the batch axis is missing; keep it first",
        (12, 48): "batch and patches are merged into one axis; keep the batch axis separate",
        (2, 6, 3, 4, 4): "flatten channels and pixels of a patch into one axis",
        (2, 2, 3, 48): "rows and columns of patches are still two axes; flatten them into one",
        (2, 6, 16): "the channels are missing from the rows",
    }
    require_shape(patchify(torch.randn(2, 3, 8, 12), 4), (2, 6, 48), "(b, n, c·p·p)", mistakes)


def check_example(patchify: Answer) -> None:
    """The example of the task is reproduced."""
    image = torch.arange(16.0).reshape(1, 1, 4, 4)
    found = patchify(image, 2)
    mistakes = (
        (
            rearrange(image, "b c y x -> b c (y x)").reshape(1, 4, 4),
            "the pixels were only cut into rows of four in memory order: a patch takes 2 pixels of one row and "
            "2 of the row below it; split y and x into (rows, p) and (columns, p), and permute before you flatten",
        ),
        (
            rearrange(image, "b c (y p) (x q) -> b (x y) (c p q)", p=2, q=2),
            "the patches are ordered column by column, not row by row: the columns of patches must be the faster axis",
        ),
        (
            rearrange(image, "b c (y p) (x q) -> b (y x) (c q p)", p=2, q=2),
            "within a patch the pixels are ordered column by column (patch 0 is [0, 4, 1, 5]): swap its two pixel axes",
        ),
    )
    require_close(found, reference(image, (2, 2)), "the example is not reproduced", mistakes)


def check_order_of_patches(patchify: Answer) -> None:
    """In a non-square image, patches are ordered row by row."""
    numbers = torch.arange(6.0).reshape(1, 1, 2, 3)
    found = patchify(F.interpolate(numbers, scale_factor=4), 4)
    inside = found.amax(dim=-1) != found.amin(dim=-1)
    if inside.any():
        raise CheckFailed(
            "in an image of 2 × 3 patches, each of one color, a row of the answer mixes the colors of several patches: "
            "does the reshape split y into (rows, p) and x into (columns, p), with rows = y/p and columns = x/p?"
        )
    if found[0, :, 0].tolist() == [0, 3, 1, 4, 2, 5]:
        raise CheckFailed("the patches are ordered column by column: 0, 3, 1, 4, 2, 5; make columns the faster axis")
    require_close(found[..., 0], numbers.flatten(1), "the patches are in the wrong order")


def check_order_of_channels(patchify: Answer) -> None:
    """Within a patch, the pixels of one channel are contiguous."""
    images = torch.randn(1, 3, 4, 4)
    colors_together = rearrange(images, "b c (y p) (x q) -> b (y x) (p q c)", p=2, q=2)
    mistakes = (
        (
            colors_together,
            "the channels of each pixel are interleaved (red, green, blue, red, …); all of red comes first, then "
            "all of green: put the channel axis before the pixel axes of a patch",
        ),
    )
    require_close(
        patchify(images, 2), reference(images, (2, 2)), "the values within a patch are in the wrong order", mistakes
    )


def check_batch(patchify: Answer) -> None:
    """Every image of a batch is cut separately."""
    images = torch.randn(3, 2, 4, 4)
    alone = torch.cat([reference(image[None], (2, 2)) for image in images])
    require_close(
        patchify(images, 2),
        alone,
        "an image gives different patches alone and in a batch: the batch axis was mixed in",
    )


def check_projection(patchify: Answer) -> None:
    """The rows times a matrix equal a convolution with stride p."""
    embed = PatchEmbed((4, 4), 3, 5)
    images = torch.randn(2, 3, 8, 12)
    tokens = F.linear(patchify(images, 4), embed.proj.weight.flatten(1), embed.proj.bias)
    require_close(tokens, embed(images), "the rows do not match the flattened filters of a convolution, (c, p, p)")
