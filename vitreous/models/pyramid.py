"""Hierarchical backbones: stages of downsampling and transformer blocks. Base of Swin, PVT, ConvNeXt and others.

    x = image
    x = norm(block(… block(downsample(x) + position)))        for every stage
    y = head(mean over the last map)

:class:`Pyramid` is what the hierarchical papers share; their files define the stages. :class:`PyramidConfig` combines
any stem, stages and mixers into a custom backbone; its registered variants are a ViT that downsamples between stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, TypeVar

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import FullAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.downsample import ConvDownsample, PatchMerging
from vitreous.layers.init import init_deit
from vitreous.layers.mixer import Mixer, MixerContext, check_heads
from vitreous.layers.mlp import Mlp
from vitreous.layers.patch import ConvStem, PatchEmbed, ResidualStem, grid_of
from vitreous.layers.position import Grid, Learned, LearnedAxes, SinCos
from vitreous.models.base import (
    Backbone,
    Config,
    FeatureMap,
    Features,
    check_stages,
    drop_path_rates,
)
from vitreous.models.family import Family, Paper
from vitreous.options import Options
from vitreous.spec import Size


@dataclass(frozen=True, kw_only=True)
class StagedConfig(Config):
    """Fields shared by hierarchical families, with one number per stage, the finest first."""

    depths: tuple[int, ...] = (2, 2, 6, 2)
    dims: tuple[int, ...] = (96, 192, 384, 768)
    num_heads: tuple[int, ...] = (3, 6, 12, 24)
    mixer: Mixer = FullAttention()
    qkv_bias: bool = True
    norm_eps: float = 1e-5
    drop_rate: float = 0.0
    attention_drop_rate: float = 0.0
    drop_path_rate: float = 0.0  # of the last block, increasing linearly from 0 at the first

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(len(self.dims), depths=self.depths, num_heads=self.num_heads)
        for dim, num_heads in zip(self.dims, self.num_heads, strict=True):
            check_heads(dim, num_heads)

    @property
    def depth(self) -> int:
        """Total number of blocks."""
        return sum(self.depths)

    def block_context(self, stage: int, grid: Grid, index: int, *, num_prefix: int = 0) -> MixerContext:
        """Create the context of a block's mixer."""
        dim, num_heads = self.dims[stage], self.num_heads[stage]
        return self.context(dim=dim, num_heads=num_heads, grid=grid, num_prefix=num_prefix, stage=stage, index=index)


Staged = TypeVar("Staged", bound=StagedConfig)


class Stage(nn.Module):
    """One stage: ``downsample`` (map → tokens), optional position embedding, blocks, optional norm; returns a map."""

    def __init__(
        self,
        downsample: nn.Module,
        blocks: Sequence[nn.Module],
        *,
        stride: Size,
        position: Learned | LearnedAxes | SinCos | None = None,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.stride = stride
        self.downsample = downsample
        self.position = position
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.Identity() if norm is None else norm

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        grid = grid_of((x.shape[2], x.shape[3]), self.stride)
        tokens = self.downsample(x)
        if self.position is not None:
            tokens = tokens + self.position(grid, tokens.device).to(tokens.dtype)
        for block in self.blocks:
            tokens = block(tokens, grid)
        return rearrange(self.norm(tokens), "b (y x) d -> b d y x", y=grid[0])


def build_stages(
    config: Staged,
    patch_size: Size,
    make_downsample: Callable[[Staged, int], nn.Module],
    make_block: Callable[[Staged, MixerContext, float], nn.Module],
) -> Iterator[Stage]:
    """Build stages of which the first has stride ``patch_size`` and every other halves the sides of its input.

    A family supplies ``make_downsample(config, stage)`` and ``make_block(config, context, drop_path_rate)``.
    """
    grid = config.image_size
    for stage, rates in enumerate(drop_path_rates(config.drop_path_rate, config.depths)):
        stride = (2, 2) if stage else patch_size
        grid = grid_of(grid, stride)
        blocks = [make_block(config, config.block_context(stage, grid, i), rate) for i, rate in enumerate(rates)]
        yield Stage(make_downsample(config, stage), blocks, stride=stride)


class Pyramid(Backbone):
    """Stages from fine to coarse, final norm, mean pooling, linear classifier."""

    def __init__(self, config: Config, stages: Sequence[Stage], *, dims: Sequence[int], norm: nn.Module) -> None:
        super().__init__(config)
        self.stages = nn.ModuleList(stages)
        self.dims = tuple(dims)
        self.strides = tuple(accumulate((stage.stride for stage in stages), lambda a, b: (a[0] * b[0], a[1] * b[1])))
        self.norm = norm
        self.head = self.make_head(config.num_classes)

    def features(self, images: Float[Tensor, "b c y x"]) -> Features:
        self.check_images(images, smallest=(1, 1))
        x, maps = images, []
        for stage, stride in zip(self.stages, self.strides, strict=True):
            x = stage(x)
            maps.append(FeatureMap(x, stride))
        tokens, grid = self.norm(rearrange(x, "b d y x -> b (y x) d")), (x.shape[2], x.shape[3])
        last = rearrange(tokens, "b (y x) d -> b d y x", y=grid[0])
        return Features(tokens, grid, 0, (*maps[:-1], FeatureMap(last, self.strides[-1])))

    def pooled(self, features: Features) -> Float[Tensor, "b d"]:
        return features.tokens[:, features.num_prefix :].mean(dim=1)

    @property
    def blocks(self) -> list[nn.Module]:
        return [block for stage in self.stages if isinstance(stage, Stage) for block in stage.blocks]


@dataclass(frozen=True, kw_only=True)
class StageConfig(Options):
    """One stage of a :class:`PyramidConfig`; ``downsample`` is ignored in the first stage, which has the stem."""

    dim: int
    depth: int
    num_heads: int
    mixer: Mixer = FullAttention()
    mlp_ratio: float = 4.0
    downsample: Literal["conv", "merge", "patch"] = "conv"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.dim, self.num_heads)


@dataclass(frozen=True, kw_only=True)
class PyramidConfig(Config):
    """Configuration of a custom backbone: any stem, then stages with any mixers.

    >>> stages = (
    ...     StageConfig(dim=96, depth=2, num_heads=3, mixer="window"),
    ...     StageConfig(dim=192, depth=6, num_heads=6, mixer="attention"),
    ... )
    >>> model = create_model(PyramidConfig(stages=stages), num_classes=10)
    """

    stem: Literal["patch", "conv", "residual"] = "patch"
    patch_size: Size = (4, 4)
    stages: tuple[StageConfig, ...] = (StageConfig(dim=192, depth=12, num_heads=3),)
    position: Literal["none", "learned", "sincos_2d", "relative", "rope"] = (
        "learned"  # learned and sincos_2d: added in the first stage
    )
    qkv_bias: bool = True
    norm_eps: float = 1e-6
    layer_scale: float | None = None
    drop_rate: float = 0.0
    attention_drop_rate: float = 0.0
    drop_path_rate: float = 0.0  # of the last block, increasing linearly from 0 at the first

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(len(self.stages), depths=tuple(stage.depth for stage in self.stages))

    @property
    def depth(self) -> int:
        """Total number of blocks."""
        return sum(stage.depth for stage in self.stages)

    def build(self) -> Pyramid:
        model = Pyramid(
            self,
            list(make_stages(self)),
            dims=[stage.dim for stage in self.stages],
            norm=nn.LayerNorm(self.stages[-1].dim, eps=self.norm_eps),
        )
        model.stages.apply(init_deit)
        return model


def make_stages(config: PyramidConfig) -> Iterator[Stage]:
    grid = grid_of(config.image_size, config.patch_size)
    rates = drop_path_rates(config.drop_path_rate, tuple(stage.depth for stage in config.stages))
    make_stem = {"patch": PatchEmbed, "conv": ConvStem, "residual": ResidualStem}[config.stem]
    stem = make_stem(config.patch_size, config.num_channels, config.stages[0].dim)
    yield Stage(
        stem, make_blocks(config, 0, grid, rates[0]), stride=config.patch_size, position=make_position(config, grid)
    )
    for number, (before, stage) in enumerate(pairwise(config.stages), start=1):
        grid = grid_of(grid, (2, 2))
        yield Stage(
            make_downsample(stage.downsample, before.dim, stage.dim),
            make_blocks(config, number, grid, rates[number]),
            stride=(2, 2),
        )


def make_position(config: PyramidConfig, grid: Grid) -> Learned | SinCos | None:
    if config.position == "learned":
        return Learned(grid, config.stages[0].dim)
    return SinCos(config.stages[0].dim) if config.position == "sincos_2d" else None


def make_downsample(kind: str, dim_in: int, dim_out: int) -> nn.Module:
    if kind == "patch":
        return PatchEmbed((2, 2), dim_in, dim_out, method="conv")
    return ConvDownsample(dim_in, dim_out) if kind == "conv" else PatchMerging(dim_in, dim_out)


def make_blocks(config: PyramidConfig, number: int, grid: Grid, rates: Sequence[float]) -> list[PreNormBlock]:
    stage = config.stages[number]
    return [
        PreNormBlock(
            stage.dim,
            stage.mixer.build(
                config.context(
                    dim=stage.dim,
                    num_heads=stage.num_heads,
                    grid=grid,
                    position=config.position if config.position in ("relative", "rope") else "added",
                    stage=number,
                    index=index,
                )
            ),
            Mlp(stage.dim, round(stage.dim * stage.mlp_ratio), drop_rate=config.drop_rate),
            norm_eps=config.norm_eps,
            layer_scale=config.layer_scale,
            drop_path_rate=rate,
        )
        for index, rate in enumerate(rates)
    ]


def downsampling_vit(dim: int, num_heads: int) -> PyramidConfig:
    """Create a ViT of twelve blocks that halves the grid and doubles the width after the fifth and ninth."""
    stages = tuple(
        StageConfig(dim=dim << stage, depth=depth, num_heads=num_heads << stage)
        for stage, depth in enumerate((5, 4, 3))
    )
    return PyramidConfig(patch_size=(16, 16), stages=stages)


VARIANTS: dict[str, PyramidConfig] = {
    "vit_down_tiny_16": downsampling_vit(192, 3),
    "vit_down_small_16": downsampling_vit(384, 6),
    "vit_down_base_16": downsampling_vit(768, 12),
}

FAMILY = Family(
    name="pyramid",
    config=PyramidConfig,
    variants=VARIANTS,
    papers={"*": Paper("ViT with downsampling", "A ViT that halves its grid between layers", "Vitreous", 2026)},
    plotted=("vit_down_small_16",),
    shrunk={
        "ViT with downsampling": PyramidConfig(
            patch_size=(8, 8), stages=tuple(StageConfig(dim=64 << i, depth=2, num_heads=2 << i) for i in range(2))
        )
    },
)
