"""From pixels to tokens: cut the image into patches, project each to a vector."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.position import Grid


def patchify(images: Float[Tensor, "b c y x"], patch_size: tuple[int, int]) -> Float[Tensor, "b n p"]:
    """Each patch as one row of its pixels, channel by channel; sides must be multiples of the patch."""
    return rearrange(images, "b c (y p) (x q) -> b (y x) (c p q)", p=patch_size[0], q=patch_size[1])


class PatchEmbed(nn.Module):
    """token = W · patch + b, as a strided convolution or as a matrix product: the same numbers.

    Images whose sides are no multiples of the patch are padded with zeros (the mean colour, after
    normalisation) at the bottom and on the right, so that no pixel is lost.
    """

    def __init__(
        self, patch_size: tuple[int, int], num_channels: int, dim: int, *, method: Literal["conv", "linear"] = "conv"
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.method = method
        self.proj = nn.Conv2d(num_channels, dim, kernel_size=patch_size, stride=patch_size)

    def grid(self, image_size: tuple[int, int]) -> Grid:
        (height, width), (p, q) = image_size, self.patch_size
        return -(-height // p), -(-width // q)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        below, right = (-images.shape[2]) % self.patch_size[0], (-images.shape[3]) % self.patch_size[1]
        if below or right:
            images = F.pad(images, (0, right, 0, below))
        if self.method == "conv":
            return rearrange(self.proj(images), "b d y x -> b (y x) d")
        return F.linear(patchify(images, self.patch_size), self.proj.weight.flatten(1), self.proj.bias)
