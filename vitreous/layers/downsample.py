"""Downsampling layers between the stages of a pyramid: from a map to the tokens of a coarser one."""

from __future__ import annotations

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.patch import pad_to_patches


class ConvDownsample(nn.Module):
    """Downsample by a 3×3 convolution with stride 2, whose windows overlap."""

    def __init__(self, dim_in: int, dim_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim_in, dim_out, 3, stride=2, padding=1)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        return rearrange(self.conv(x), "b d y x -> b (y x) d")


class PatchMerging(nn.Module):
    """Patch merging (Swin): concatenate 2×2 tokens, normalize and project. Odd sides are padded with zeros."""

    def __init__(self, dim_in: int, dim_out: int, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim_in, eps=norm_eps)
        self.proj = nn.Linear(4 * dim_in, dim_out, bias=False)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        four = rearrange(pad_to_patches(x, (2, 2)), "b c (y p) (x q) -> b (y x) (q p c)", p=2, q=2)
        return self.proj(self.norm(four))


class OverlapEmbed(nn.Module):
    """Overlapping patch embedding, norm(conv(x)) with a kernel wider than its stride.

    ``padding`` defaults to half the kernel; sides are first zero-padded to a multiple of the stride.
    """

    def __init__(
        self,
        dim_in: int,
        dim_out: int,
        kernel: int,
        *,
        stride: int,
        padding: int | None = None,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.stride = stride
        padding = kernel // 2 if padding is None else padding
        self.conv = nn.Conv2d(dim_in, dim_out, kernel, stride=stride, padding=padding)
        self.norm = nn.LayerNorm(dim_out, eps=norm_eps)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        x = self.conv(pad_to_patches(x, (self.stride, self.stride)))
        return self.norm(rearrange(x, "b d y x -> b (y x) d"))
