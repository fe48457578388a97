"""PVT v2: Pyramid Vision Transformer with overlapping patch embedding and convolutional MLPs.

"PVT v2: Improved Baselines with Pyramid Vision Transformer", Wang et al. 2021 (arXiv 2106.13797).

    x = norm(conv(x))                                         first in each stage: 7×7 stride 4, later 3×3 stride 2
    x = x + attention(norm(x), keys = reduce(norm(x)))        × depth, as in PVT
    x = x + W₂ · GELU(depthwise(W₁ · norm(x)))
    x = norm(x)
    y = head(mean over the last map)

There is no position embedding: the zero padding of the depthwise convolutions encodes position, for any image size. The
linear variant (``pvt_v2_b2_li``) pools keys to 7×7 cells and has a ReLU before the convolution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.block import Block
from vitreous.layers.downsample import OverlapEmbed
from vitreous.layers.init import init_deit, init_efficient
from vitreous.layers.patch import grid_of
from vitreous.layers.position import Grid
from vitreous.layers.reduction import Reduction
from vitreous.models.base import drop_path_rates
from vitreous.models.family import Family, Paper
from vitreous.models.pvt import PVTConfig
from vitreous.models.pyramid import Pyramid, Stage


@dataclass(frozen=True, kw_only=True)
class PVTv2Config(PVTConfig):
    """Configuration of a PVT v2."""

    mlp: Literal["conv", "relu_conv"] = "conv"  # relu_conv: a ReLU before the convolution

    def build(self) -> PVTv2:
        return PVTv2(self)


class ConvMlp(nn.Module):
    """Convolutional MLP, W₂ · GELU(conv(W₁ x)), depthwise 3×3; ``relu`` adds a ReLU before the convolution."""

    def __init__(self, dim: int, hidden_dim: int, *, relu: bool = False, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.relu = nn.ReLU() if relu else nn.Identity()
        self.conv = nn.Conv2d(hidden_dim, hidden_dim, 3, padding=1, groups=hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid) -> Float[Tensor, "b n d"]:
        hidden = rearrange(self.relu(self.fc1(x)), "b (y x) d -> b d y x", y=grid[0])
        hidden = rearrange(self.conv(hidden), "b d y x -> b (y x) d")
        return self.drop(self.fc2(self.drop(self.act(hidden))))


class ConvBlock(Block):
    """Pre-norm block whose MLP is convolutional and takes the grid."""

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        x = x + self.drop_path(self.mixer(self.norm1(x), grid, num_prefix))
        return x + self.drop_path(self.mlp(self.norm2(x), grid))


class PVTv2(Pyramid):
    """Stages from fine to coarse, each with a final norm; mean pooling, linear classifier."""

    config: PVTv2Config

    def __init__(self, config: PVTv2Config) -> None:
        super().__init__(config, list(make_stages(config)), dims=config.dims, norm=nn.Identity())
        for init in (init_deit, init_efficient):
            self.stages.apply(init)


def make_stages(config: PVTv2Config) -> Iterator[Stage]:
    grid = config.image_size
    for number, (dim_in, dim) in enumerate(pairwise((config.num_channels, *config.dims))):
        kernel, stride = (3, 2) if number else (7, 4)
        grid = grid_of(grid, (stride, stride))
        yield Stage(
            OverlapEmbed(dim_in, dim, kernel, stride=stride, norm_eps=config.embed_norm_eps),
            make_blocks(config, number, grid),
            stride=(stride, stride),
            norm=nn.LayerNorm(dim, eps=config.norm_eps),
        )


def make_blocks(config: PVTv2Config, number: int, grid: Grid) -> list[ConvBlock]:
    dim = config.dims[number]
    hidden_dim = round(dim * config.mlp_ratios[number])
    return [
        ConvBlock(
            dim,
            config.mixer.build(config.block_context(number, grid, index)),
            ConvMlp(dim, hidden_dim, relu=config.mlp == "relu_conv", drop_rate=config.drop_rate),
            norm_eps=config.norm_eps,
            drop_path_rate=rate,
        )
        for index, rate in enumerate(drop_path_rates(config.drop_path_rate, config.depths)[number])
    ]


VARIANTS: dict[str, PVTv2Config] = {
    "pvt_v2_b0": PVTv2Config(depths=(2, 2, 2, 2), dims=(32, 64, 160, 256)),
    "pvt_v2_b1": PVTv2Config(depths=(2, 2, 2, 2)),
    "pvt_v2_b2": PVTv2Config(depths=(3, 4, 6, 3)),
    "pvt_v2_b2_li": PVTv2Config(depths=(3, 4, 6, 3), mixer=Reduction(method="pool"), mlp="relu_conv"),
    "pvt_v2_b3": PVTv2Config(depths=(3, 4, 18, 3)),
    "pvt_v2_b4": PVTv2Config(depths=(3, 8, 27, 3)),
    "pvt_v2_b5": PVTv2Config(depths=(3, 6, 40, 3), mlp_ratios=(4.0, 4.0, 4.0, 4.0)),
}

FAMILY = Family(
    name="pvt_v2",
    config=PVTv2Config,
    variants=VARIANTS,
    papers={
        "*": Paper(
            "PVTv2", "PVT v2: Improved Baselines with Pyramid Vision Transformer", "Wang et al.", 2021, "2106.13797"
        )
    },
    plotted=("pvt_v2_b2",),
    shrunk={
        "PVTv2": PVTv2Config(
            dims=(32, 64, 96, 128), depths=(1, 1, 2, 1), num_heads=(1, 2, 3, 4), mixer=Reduction(ratios=(4, 2, 1, 1))
        )
    },
)
