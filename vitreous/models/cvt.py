"""CvT: three stages with convolutional token embedding and convolutional projection of queries, keys and values.

"CvT: Introducing Convolutions to Vision Transformers", Wu et al. 2021 (arXiv 2103.15808).

    x = norm(conv(x)),  overlapping patches             at the start of each stage
    x = x + attention(norm(x));   x = x + mlp(norm(x))               × depth; layers/conv_projection.py
    y = head(norm([class; x])[class])                                the class token is added in the last stage

There is no position embedding: the convolutions' zero padding encodes position. Peculiarities of the authors' code that
are kept: logits are divided by the root of the stage's width, not of a head's; the first convolution, 7×7, is padded by
2 instead of 3; stochastic depth increases from 0 within the last stage and is absent before; and since the class token
bypasses the convolutions, the query convolution of the last block receives no gradient from the classifier.

The published weights were trained with x·σ(1.702 x) in the MLPs (``mlp="quick_gelu"``); transformers, the reference of
this implementation, runs them with the exact GELU. Differences: images of any size are accepted (padded where the
reference crops), and ``class_token=False`` classifies the mean of the last map.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.block import PreNormBlock
from vitreous.layers.conv_projection import ConvProjection
from vitreous.layers.downsample import OverlapEmbed
from vitreous.layers.init import init_deit, trunc_normal_
from vitreous.layers.mixer import Mixer
from vitreous.layers.mlp import Mlp
from vitreous.layers.patch import grid_of
from vitreous.layers.position import Grid
from vitreous.models.base import FeatureMap, Features, check_stages, drop_path_rates
from vitreous.models.family import Family, Paper
from vitreous.models.pyramid import Pyramid, Stage, StagedConfig

KERNELS, STRIDES, PADDINGS = (7, 3, 3), (4, 2, 2), (2, 1, 1)


@dataclass(frozen=True, kw_only=True)
class CvTConfig(StagedConfig):
    """Configuration of a CvT; the defaults are CvT-13."""

    depths: tuple[int, ...] = (1, 2, 10)
    dims: tuple[int, ...] = (64, 192, 384)
    num_heads: tuple[int, ...] = (1, 3, 6)
    mixer: Mixer = ConvProjection()
    mlp_ratio: float = 4.0
    mlp: Literal["gelu", "quick_gelu"] = "gelu"
    class_token: bool = True  # False: classify the mean of the last map
    drop_path_rate: float = 0.0  # of the last block, increasing linearly from 0 at the first of the last stage

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(len(STRIDES), depths=self.depths, dims=self.dims)

    def build(self) -> CvT:
        return CvT(self)


class QuickGELU(nn.Module):
    """Approximate GELU, x · σ(1.702 x)."""

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        return x * (1.702 * x).sigmoid()


class CvT(Pyramid):
    """Convolutional vision transformer."""

    config: CvTConfig

    def __init__(self, config: CvTConfig) -> None:
        norm = nn.LayerNorm(config.dims[-1], eps=config.norm_eps)
        super().__init__(config, list(make_stages(config)), dims=config.dims, norm=norm)
        self.class_token = nn.Parameter(torch.empty(1, 1, config.dims[-1])) if config.class_token else None
        if self.class_token is not None:
            trunc_normal_(self.class_token, std=0.02)
        self.stages.apply(init_deit)

    def features(self, images: Float[Tensor, "b c y x"]) -> Features:
        self.check_images(images, smallest=(1, 1))
        x, maps = images, []
        *before, last = self.stages
        for stage, stride in zip(before, self.strides[:-1], strict=True):
            x = stage(x)
            maps.append(FeatureMap(x, stride))
        assert isinstance(last, Stage)
        tokens, grid = self.forward_last_stage(last, x)
        num_prefix = int(self.config.class_token)
        values = rearrange(tokens[:, num_prefix:], "b (y x) d -> b d y x", y=grid[0])
        return Features(tokens, grid, num_prefix, (*maps, FeatureMap(values, self.strides[-1])))

    def forward_last_stage(self, stage: Stage, x: Float[Tensor, "b c y x"]) -> tuple[Float[Tensor, "b n d"], Grid]:
        """Run the last stage with the class token before the cells, and normalize all tokens."""
        grid = grid_of((x.shape[2], x.shape[3]), stage.stride)
        tokens = stage.downsample(x)
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        for block in stage.blocks:
            tokens = block(tokens, grid, int(self.config.class_token))
        return self.norm(tokens), grid

    def pooled(self, features: Features) -> Float[Tensor, "b d"]:
        return features.tokens[:, 0] if self.config.class_token else super().pooled(features)


def make_stages(config: CvTConfig) -> Iterator[Stage]:
    grid, widths = config.image_size, (config.num_channels, *config.dims)
    for number, (kernel, stride, padding) in enumerate(zip(KERNELS, STRIDES, PADDINGS, strict=True)):
        grid = grid_of(grid, (stride, stride))
        embed = OverlapEmbed(
            widths[number], widths[number + 1], kernel, stride=stride, padding=padding, norm_eps=config.norm_eps
        )
        yield Stage(embed, make_blocks(config, number, grid), stride=(stride, stride))


def make_blocks(config: CvTConfig, number: int, grid: Grid) -> list[PreNormBlock]:
    is_last = number == len(STRIDES) - 1
    dim = config.dims[number]
    (rates,) = drop_path_rates(config.drop_path_rate if is_last else 0.0, (config.depths[number],))
    blocks = []
    for index, rate in enumerate(rates):
        context = config.block_context(number, grid, index, num_prefix=int(is_last and config.class_token))
        mixer, mlp = config.mixer.build(context), make_mlp(config, dim)
        blocks.append(PreNormBlock(dim, mixer, mlp, norm_eps=config.norm_eps, drop_path_rate=rate))
    return blocks


def make_mlp(config: CvTConfig, dim: int) -> Mlp:
    act = QuickGELU if config.mlp == "quick_gelu" else nn.GELU
    return Mlp(dim, round(dim * config.mlp_ratio), act=act, drop_rate=config.drop_rate)


VARIANTS: dict[str, CvTConfig] = {
    "cvt_13": CvTConfig(),
    "cvt_21": CvTConfig(depths=(1, 4, 16)),
    "cvt_w24": CvTConfig(depths=(2, 2, 20), dims=(192, 768, 1024), num_heads=(3, 12, 16)),
}

FAMILY = Family(
    name="cvt",
    config=CvTConfig,
    variants=VARIANTS,
    papers={"*": Paper("CvT", "CvT: Introducing Convolutions to Vision Transformers", "Wu et al.", 2021, "2103.15808")},
    shrunk={"CvT": CvTConfig(dims=(32, 64, 128), depths=(1, 1, 3), num_heads=(1, 2, 4))},
)
