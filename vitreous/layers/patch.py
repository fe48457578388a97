"""From pixels to tokens: cut the image into patches, project each to a vector."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.position import Grid


def patchify(images: Float[Tensor, "b c y x"], patch_size: tuple[int, int]) -> Float[Tensor, "b n p"]:
    """Each patch as one row of its pixels, channel by channel; sides must be multiples of the patch."""
    return rearrange(images, "b c (y p) (x q) -> b (y x) (c p q)", p=patch_size[0], q=patch_size[1])


def grid_of(image_size: tuple[int, int], patch_size: tuple[int, int]) -> Grid:
    """Cells of an image, the last ones padded."""
    return -(-image_size[0] // patch_size[0]), -(-image_size[1] // patch_size[1])


def pad_to_patches(images: Float[Tensor, "b c y x"], patch_size: tuple[int, int]) -> Float[Tensor, "b c v w"]:
    """Zeros below and on the right (the mean color, after normalization), so that no pixel is lost."""
    below, right = (-images.shape[2]) % patch_size[0], (-images.shape[3]) % patch_size[1]
    return F.pad(images, (0, right, 0, below)) if below or right else images


class PatchProduct(nn.Conv2d):
    """A convolution whose kernel is as large as its stride, computed as what it is: a matrix product of the patches.

    The same numbers, and on a CPU mostly the faster way to them where a patch's rows lie whole in memory, as in an
    image. Maps made of tokens have their channels there; for large ones of those a convolution is faster.
    """

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        height, width = self.kernel_size
        tokens = F.linear(patchify(images, (height, width)), self.weight.flatten(1), self.bias)
        return rearrange(tokens, "b (y x) d -> b d y x", y=images.shape[2] // height)


class PatchEmbed(nn.Module):
    """token = W · patch + b, as a matrix product or, for maps, as a strided convolution: the same numbers."""

    def __init__(
        self, patch_size: tuple[int, int], num_channels: int, dim: int, *, method: Literal["linear", "conv"] = "linear"
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        make = PatchProduct if method == "linear" else nn.Conv2d
        self.proj = make(num_channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        return rearrange(self.proj(pad_to_patches(images, self.patch_size)), "b d y x -> b (y x) d")


class ConvStem(nn.Module):
    """Small convolutions of stride 2 instead of one large patch ("Early Convolutions Help Transformers See Better",
    Xiao et al. 2021, arXiv 2106.14881): log₂(patch) of them, each doubling the width, then a projection.

    Made to learn faster early on; in ``vit_tiny_16`` it adds 7 % to the MACs.
    """

    def __init__(self, patch_size: tuple[int, int], num_channels: int, dim: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        widths = stem_widths(patch_size, dim, narrowest=16)
        self.convs = nn.Sequential(*(conv_norm_relu(a, b) for a, b in itertools.pairwise([num_channels, *widths])))
        self.proj = nn.Conv2d(widths[-1], dim, 1)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        x = self.convs(pad_to_patches(images, self.patch_size))
        return rearrange(self.proj(x), "b d y x -> b (y x) d")


def conv_norm_relu(width_in: int, width_out: int) -> nn.Sequential:
    conv = nn.Conv2d(width_in, width_out, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width_out), nn.ReLU())


class Whiten(nn.Module):
    """2×2 neighborhoods of all channels as a cosine transform sees them, each coefficient with mean 0 and variance 1.

    Neighboring pixels say nearly the same, which makes the first layer of a network slow to learn. The coefficients of
    natural images are nearly uncorrelated, whatever the data (Jordan 2024, arXiv 2404.00498, learns such filters from
    the data). Both signs go through GELU, so that no direction is lost: 8 channels for every one.
    """

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.norm = nn.BatchNorm2d(4 * num_channels, affine=False)
        self.act = nn.GELU()

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d y x"]:
        padded = F.pad(images, (0, 1, 0, 1), mode="replicate")
        x = self.norm(F.conv2d(padded, self.filters(images)))
        return self.act(torch.cat([x, -x], dim=1))

    def filters(self, like: Tensor) -> Float[Tensor, "k c 2 2"]:
        square, colors = cosines(2, like), cosines(self.num_channels, like)
        return torch.einsum("kc,vy,wx->kvwcyx", colors, square, square).flatten(0, 2)


def cosines(size: int, like: Tensor) -> Float[Tensor, "k n"]:
    """The orthonormal basis of the cosine transform: the mean first, then ever faster waves."""
    waves = torch.arange(size, device=like.device, dtype=like.dtype)
    basis = torch.cos(math.pi / size * waves[:, None] * (waves + 0.5))
    return basis / basis.norm(dim=1, keepdim=True)


class ResidualStem(nn.Module):
    """A small convolutional network as the stem: whitened pixels, then at each halving a convolution at full
    resolution, pooled by maximum, and a second one beside a residual.

    Costs more than :class:`ConvStem`; made for small images, where most of what there is to see is local.
    """

    def __init__(self, patch_size: tuple[int, int], num_channels: int, dim: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        widths = stem_widths(patch_size, dim, narrowest=32)
        self.whiten = Whiten(num_channels)
        self.stages = nn.ModuleList(
            PoolThenRefine(a, b) for a, b in itertools.pairwise([8 * num_channels, *widths])
        )  # fmt: skip

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        x = self.whiten(pad_to_patches(images, self.patch_size))
        for stage in self.stages:
            x = stage(x)
        return rearrange(x, "b d y x -> b (y x) d")


class PoolThenRefine(nn.Module):
    """y = GELU(norm(maxpool(conv(x)))); y + GELU(norm(conv(y)))"""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.widen = nn.Conv2d(width_in, width_out, 3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.norm1 = nn.BatchNorm2d(width_out)
        self.act = nn.GELU()
        self.refine = nn.Conv2d(width_out, width_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width_out)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        x = self.act(self.norm1(self.pool(self.widen(x))))
        return x + self.act(self.norm2(self.refine(x)))


def stem_widths(patch_size: tuple[int, int], dim: int, *, narrowest: int) -> list[int]:
    """Widths after each halving from 1 pixel to a patch: doubling up to ``dim``."""
    side = patch_size[0]
    if patch_size != (side, side) or side < 2 or side & (side - 1):
        raise ValueError(f"a convolutional stem needs a square patch of 2, 4, 8 … pixels, got {patch_size}")
    num_halvings = side.bit_length() - 1
    return [min(dim, max(narrowest, dim >> (num_halvings - 1 - i))) for i in range(num_halvings)]
