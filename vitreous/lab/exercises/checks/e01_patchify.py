"""Checks of exercise 1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange

from vitreous.lab.exercises.checking import Answer, Wrong, agree, shaped
from vitreous.layers.patch import PatchEmbed
from vitreous.layers.patch import patchify as reference


def check_shape(patchify: Answer) -> None:
    """The shape is (b, n, c·p·p)."""
    mistakes = {
        (2, 48, 6): "the patches lie along the last axis; turn the last two axes round",
        (6, 48): "the batch is gone; keep its axis in front",
        (12, 48): "batch and patches are one axis; keep the batch apart",
        (2, 6, 3, 4, 4): "flatten channels and pixels of a patch into one axis",
        (2, 2, 3, 48): "rows and columns of patches are still two axes; flatten them into one",
        (2, 6, 16): "the channels are missing from the rows",
    }
    shaped(patchify(torch.randn(2, 3, 8, 12), 4), (2, 6, 48), "(b, n, c·p·p)", mistakes)


def check_example(patchify: Answer) -> None:
    """The example of the task comes out."""
    image = torch.arange(16.0).reshape(1, 1, 4, 4)
    found = patchify(image, 2)
    mistakes = (
        (
            rearrange(image, "b c y x -> b c (y x)").reshape(1, 4, 4),
            "the pixels were only cut into rows of four, as they lie in memory: a patch takes 2 pixels of one row and "
            "2 of the row below it; split y and x into (rows, p) and (columns, p), and permute before you flatten",
        ),
        (
            rearrange(image, "b c (y p) (x q) -> b (x y) (c p q)", p=2, q=2),
            "the patches go down the columns; words on a page go along the rows: columns of patches must be the "
            "faster axis",
        ),
        (
            rearrange(image, "b c (y p) (x q) -> b (y x) (c q p)", p=2, q=2),
            "inside a patch the pixels go down the columns (patch 0 is [0, 4, 1, 5]): turn its two pixel axes round",
        ),
    )
    agree(found, reference(image, (2, 2)), "the example does not come out", mistakes)


def check_order_of_patches(patchify: Answer) -> None:
    """In an image that is not square, patches follow each other along the rows."""
    numbers = torch.arange(6.0).reshape(1, 1, 2, 3)
    found = patchify(F.interpolate(numbers, scale_factor=4), 4)
    inside = found.amax(dim=-1) != found.amin(dim=-1)
    if inside.any():
        raise Wrong(
            "in an image of 2 × 3 patches, each of one color, a row of the answer mixes colors of several patches: "
            "does the reshape keep (rows, p) and (columns, p) apart, in this order, with rows = y/p and columns = x/p?"
        )
    if found[0, :, 0].tolist() == [0, 3, 1, 4, 2, 5]:
        raise Wrong("the patches go down the columns: 0, 3, 1, 4, 2, 5; make columns the faster axis")
    agree(found[..., 0], numbers.flatten(1), "the patches stand in another order")


def check_order_of_channels(patchify: Answer) -> None:
    """Inside a patch, the pixels of one channel stand together."""
    images = torch.randn(1, 3, 4, 4)
    colors_together = rearrange(images, "b c (y p) (x q) -> b (y x) (p q c)", p=2, q=2)
    mistakes = (
        (
            colors_together,
            "the colors of each pixel stand together (red, green, blue, red, …); all of red comes first, then all of "
            "green: put the channel axis before the pixel axes of a patch",
        ),
    )
    agree(patchify(images, 2), reference(images, (2, 2)), "the numbers inside a patch stand in another order", mistakes)


def check_batch(patchify: Answer) -> None:
    """Every image of a batch is cut by itself."""
    images = torch.randn(3, 2, 4, 4)
    alone = torch.cat([reference(image[None], (2, 2)) for image in images])
    agree(
        patchify(images, 2),
        alone,
        "alone and in a batch, an image gives different patches: the batch axis was mixed in",
    )


def check_projection(patchify: Answer) -> None:
    """Rows times a matrix are what a convolution with stride p gives."""
    embed = PatchEmbed((4, 4), 3, 5)
    images = torch.randn(2, 3, 8, 12)
    tokens = F.linear(patchify(images, 4), embed.proj.weight.flatten(1), embed.proj.bias)
    agree(tokens, embed(images), "the rows do not fit the flattened filters of a convolution, which are (c, p, p)")
