"""Pyramid Vision Transformer (PVT): a hierarchical transformer with spatial-reduction attention.

"Pyramid Vision Transformer: A Versatile Backbone for Dense Prediction without Convolutions", Wang et al. 2021
(arXiv 2102.12122).

    x = norm(patches(x)) + position                           at the start of each stage: patches of 4×4, later 2×2
    x = x + attention(norm(x), keys = reduce(norm(x)))        × depth, ratios 8, 4, 2 and 1 by stage
    x = x + mlp(norm(x))
    y = head(norm(class token))                               which is added in the last stage

The norms of patch embedding and keys have a different ε, as in the authors' code (transformers has the same for all).
Differences: position embeddings are resampled bicubically rather than bilinearly, and not followed by dropout.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.block import PreNormBlock
from vitreous.layers.init import init_deit, trunc_normal_
from vitreous.layers.mixer import Mixer
from vitreous.layers.mlp import Mlp
from vitreous.layers.patch import PatchEmbed, grid_of
from vitreous.layers.position import Grid, Learned
from vitreous.layers.reduction import Reduction
from vitreous.models.base import FeatureMap, Features, check_stages, drop_path_rates
from vitreous.models.family import Family, Paper
from vitreous.models.pyramid import Pyramid, Stage, StagedConfig
from vitreous.spec import Size


@dataclass(frozen=True, kw_only=True)
class PVTConfig(StagedConfig):
    """Configuration of a PVT; the defaults are PVT-Tiny."""

    depths: tuple[int, ...] = (2, 2, 2, 2)
    dims: tuple[int, ...] = (64, 128, 320, 512)
    num_heads: tuple[int, ...] = (1, 2, 5, 8)
    mlp_ratios: tuple[float, ...] = (8.0, 8.0, 4.0, 4.0)
    mixer: Mixer = Reduction(ratios=(8, 4, 2, 1))
    norm_eps: float = 1e-6
    embed_norm_eps: float = 1e-5  # of the norm after each patch embedding; that of keys is an option of the mixer

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(len(self.dims), depths=self.depths, mlp_ratios=self.mlp_ratios)

    def build(self) -> Pyramid:
        return PVT(self)


class ClassStage(Stage):
    """A stage with a class token before its cells; returns tokens rather than a map."""

    position: Learned

    def __init__(self, downsample: nn.Module, blocks: Sequence[nn.Module], *, stride: Size, position: Learned) -> None:
        super().__init__(downsample, blocks, stride=stride, position=position)
        self.class_token = nn.Parameter(torch.empty(1, 1, position.table.shape[2]))
        trunc_normal_(self.class_token, std=0.02)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        grid = grid_of((x.shape[2], x.shape[3]), self.stride)
        cells = self.downsample(x)
        tokens = torch.cat([self.class_token.expand(cells.shape[0], -1, -1), cells], dim=1)
        tokens = tokens + self.position(grid, tokens.device).to(tokens.dtype)
        for block in self.blocks:
            tokens = block(tokens, grid, 1)
        return tokens


class PVT(Pyramid):
    """Stages from fine to coarse; the normalized class token of the last stage is classified."""

    config: PVTConfig

    def __init__(self, config: PVTConfig) -> None:
        norm = nn.LayerNorm(config.dims[-1], eps=config.norm_eps)
        super().__init__(config, list(make_stages(config)), dims=config.dims, norm=norm)
        self.stages.apply(init_deit)

    def features(self, images: Float[Tensor, "b c y x"]) -> Features:
        self.check_images(images, smallest=(1, 1))
        *finer, last = self.stages
        x, maps = images, []
        for stage, stride in zip(finer, self.strides[:-1], strict=True):
            x = stage(x)
            maps.append(FeatureMap(x, stride))
        tokens, grid = self.norm(last(x)), grid_of((images.shape[2], images.shape[3]), self.strides[-1])
        cells = rearrange(tokens[:, 1:], "b (y x) d -> b d y x", y=grid[0])
        return Features(tokens, grid, 1, (*maps, FeatureMap(cells, self.strides[-1])))

    def pooled(self, features: Features) -> Float[Tensor, "b d"]:
        return features.tokens[:, 0]


def make_stages(config: PVTConfig) -> Iterator[Stage]:
    grid, last = config.image_size, len(config.dims) - 1
    for number, (dim_in, dim) in enumerate(pairwise((config.num_channels, *config.dims))):
        patch_size = (2, 2) if number else (4, 4)
        grid = grid_of(grid, patch_size)
        embed = PatchEmbed(patch_size, dim_in, dim, method="conv" if number else "linear")
        norm = nn.LayerNorm(dim, eps=config.embed_norm_eps)
        make_stage = ClassStage if number == last else Stage
        yield make_stage(
            nn.Sequential(OrderedDict(embed=embed, norm=norm)),
            make_blocks(config, number, grid, num_prefix=int(number == last)),
            stride=patch_size,
            position=Learned(grid, dim, num_prefix=int(number == last)),
        )


def make_blocks(config: PVTConfig, number: int, grid: Grid, *, num_prefix: int) -> list[PreNormBlock]:
    dim = config.dims[number]
    hidden_dim = round(dim * config.mlp_ratios[number])
    return [
        PreNormBlock(
            dim,
            config.mixer.build(config.block_context(number, grid, index, num_prefix=num_prefix)),
            Mlp(dim, hidden_dim, drop_rate=config.drop_rate),
            norm_eps=config.norm_eps,
            drop_path_rate=rate,
        )
        for index, rate in enumerate(drop_path_rates(config.drop_path_rate, config.depths)[number])
    ]


VARIANTS: dict[str, PVTConfig] = {
    "pvt_tiny": PVTConfig(depths=(2, 2, 2, 2)),
    "pvt_small": PVTConfig(depths=(3, 4, 6, 3)),
    "pvt_medium": PVTConfig(depths=(3, 4, 18, 3)),
    "pvt_large": PVTConfig(depths=(3, 8, 27, 3)),
}

FAMILY = Family(
    name="pvt",
    config=PVTConfig,
    variants=VARIANTS,
    papers={"*": Paper("PVT", "Pyramid Vision Transformer", "Wang et al.", 2021, "2102.12122")},
    plotted=("pvt_small",),
    shrunk={
        "PVT": PVTConfig(
            dims=(32, 64, 96, 128), depths=(1, 1, 2, 1), num_heads=(1, 2, 3, 4), mixer=Reduction(ratios=(4, 2, 1, 1))
        )
    },
)
