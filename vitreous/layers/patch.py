"""Patch embedding and convolutional stems: from pixels to tokens."""

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
    """Flatten each patch to a row of pixels, channel-major; sides must be multiples of the patch size."""
    return rearrange(images, "b c (y p) (x q) -> b (y x) (c p q)", p=patch_size[0], q=patch_size[1])


def grid_of(image_size: tuple[int, int], patch_size: tuple[int, int]) -> Grid:
    """Compute the number of patches along each axis, rounded up."""
    return -(-image_size[0] // patch_size[0]), -(-image_size[1] // patch_size[1])


def pad_to_patches(images: Float[Tensor, "b c y x"], patch_size: tuple[int, int]) -> Float[Tensor, "b c v w"]:
    """Pad with zeros (the mean color, after normalization) below and on the right to a multiple of the patch size."""
    below, right = (-images.shape[2]) % patch_size[0], (-images.shape[3]) % patch_size[1]
    return F.pad(images, (0, right, 0, below)) if below or right else images


class PatchMatmul(nn.Conv2d):
    """A convolution whose stride equals its kernel size, computed as a matrix product of flattened patches.

    On a CPU this is mostly faster for images, whose patch rows are contiguous in memory. For large channels-last maps a
    convolution is faster.
    """

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        height, width = self.kernel_size
        tokens = F.linear(patchify(images, (height, width)), self.weight.flatten(1), self.bias)
        return rearrange(tokens, "b (y x) d -> b d y x", y=images.shape[2] // height)


class PatchEmbed(nn.Module):
    """Patch embedding, token = W · patch + b, as a matrix product or as a strided convolution, with equal results."""

    def __init__(
        self, patch_size: tuple[int, int], num_channels: int, dim: int, *, method: Literal["linear", "conv"] = "linear"
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        make = PatchMatmul if method == "linear" else nn.Conv2d
        self.proj = make(num_channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        return rearrange(self.proj(pad_to_patches(images, self.patch_size)), "b d y x -> b (y x) d")


class ConvStem(nn.Module):
    """Convolutional stem: log₂(patch) convolutions of 3×3 with stride 2, each doubling the width, then a projection.

    "Early Convolutions Help Transformers See Better", Xiao et al. 2021 (arXiv 2106.14881). It speeds up early training
    and adds 7 % to the MACs of ``vit_tiny_16``.
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
    """Whitening layer: standardized cosine-transform (DCT) coefficients of 2×2 neighborhoods across all channels.

    Neighboring pixels are highly correlated, which slows down training of the first layer. The DCT coefficients of
    natural images are nearly uncorrelated, for any dataset (Jordan 2024, arXiv 2404.00498, fits such filters to the
    data). Both signs pass through GELU, so that no direction is lost: 8 output channels per input channel.
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
        square, colors = dct_basis(2, like), dct_basis(self.num_channels, like)
        return torch.einsum("kc,vy,wx->kvwcyx", colors, square, square).flatten(0, 2)


def dct_basis(size: int, like: Tensor) -> Float[Tensor, "k n"]:
    """Compute the orthonormal DCT basis, from the constant to the highest frequency."""
    waves = torch.arange(size, device=like.device, dtype=like.dtype)
    basis = torch.cos(math.pi / size * waves[:, None] * (waves + 0.5))
    return basis / basis.norm(dim=1, keepdim=True)


class ResidualStem(nn.Module):
    """Residual convolutional stem: whitening, then :class:`ResidualStemStage` until a cell is a patch.

    More expensive than :class:`ConvStem`; meant for small images, whose content is mostly local.
    """

    def __init__(self, patch_size: tuple[int, int], num_channels: int, dim: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        widths = stem_widths(patch_size, dim, narrowest=32)
        self.whiten = Whiten(num_channels)
        self.stages = nn.ModuleList(
            ResidualStemStage(a, b) for a, b in itertools.pairwise([8 * num_channels, *widths])
        )  # fmt: skip

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        x = self.whiten(pad_to_patches(images, self.patch_size))
        for stage in self.stages:
            x = stage(x)
        return rearrange(x, "b d y x -> b (y x) d")


class ResidualStemStage(nn.Module):
    """y = GELU(norm(maxpool(conv(x)))); y + GELU(norm(conv(y))), with half the sides."""

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
    """Compute the width after each halving from pixels to patches: doubling up to ``dim``."""
    side = patch_size[0]
    if patch_size != (side, side) or side < 2 or side & (side - 1):
        raise ValueError(f"a convolutional stem needs square patches with a side of 2, 4, 8 … pixels, got {patch_size}")
    num_halvings = side.bit_length() - 1
    return [min(dim, max(narrowest, dim >> (num_halvings - 1 - i))) for i in range(num_halvings)]
