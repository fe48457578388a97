"""CoAtNet: two stages of MBConv blocks, then two of attention with relative position bias.

"CoAtNet: Marrying Convolution and Attention for All Data Sizes", Dai et al. 2021 (arXiv 2106.04803).

    x = conv(act(norm(conv(image))))                                       half the image's resolution
    x = shortcut(x) + mbconv(x)                                            two stages
    x = x + attention(norm(x));   x = x + mlp(norm(x))                     two stages
    y = head(tanh(W · norm(mean over the map)))

with logits q·k/√k + b(Δy, Δx). The first block of every stage halves the map in both branch and shortcut; with
attention, y = W · mean₂ₓ₂(x) + attention(mean₂ₓ₂(norm(x))), which also changes the width.

The paper leaves some details open; this follows timm, both its models after the paper and those it trained itself
(``_rw``), whose small differences are options here. Differences from timm: images of any size are accepted (pooling
excludes padding on odd sides, biases are resampled). A mixer without support for relative position bias is used
without: the zero padding of the convolutions before it encodes position.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import Attend, FullAttention
from vitreous.layers.block import Block, PreNormBlock
from vitreous.layers.init import init_efficient, init_vit
from vitreous.layers.layout import Layout
from vitreous.layers.mbconv import ACTIVATIONS, MBConv, MBConvOptions, mean_pool_2x2
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.mlp import Mlp
from vitreous.layers.patch import grid_of
from vitreous.layers.position import Grid, RelativeBias
from vitreous.layers.tokens import Tokens
from vitreous.models.base import Backbone, Config, FeatureMap, Features, check_stages, classifier, drop_path_rates
from vitreous.models.family import Family, Paper

NUM_CONV_STAGES, NUM_STAGES = 2, 4


@dataclass(frozen=True, kw_only=True)
class CoAtNetConfig(Config):
    """Configuration of a CoAtNet; the defaults are close to CoAtNet-0."""

    stem_dims: tuple[int, ...] = (64, 64)
    dims: tuple[int, ...] = (96, 192, 384, 768)
    depths: tuple[int, ...] = (2, 3, 5, 2)
    conv: MBConvOptions = MBConvOptions()
    mixer: Mixer = FullAttention()
    head_dim: int = 32  # channels per attention head
    mlp_ratio: float = 4.0
    widen: Literal["before", "after"] = "before"  # a stage's first attention: in qkv or in its output projection
    shortcut_bias: bool = True  # of the projection in the shortcut of that attention
    hidden_head: bool = True  # mean, norm, tanh(W ·) before the classifier; False: norm, mean
    norm_eps: float = 1e-6
    layer_scale: float | None = None  # initial γ in the attention stages; None: no LayerScale
    drop_rate: float = 0.0
    attention_drop_rate: float = 0.0
    drop_path_rate: float = 0.0  # of the last block, increasing linearly from 0 at the first

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(NUM_STAGES, depths=self.depths, dims=self.dims)
        if len(self.stem_dims) != 2:
            raise ValueError(f"stem_dims must have 2 numbers, one per convolution; got {self.stem_dims}")
        for dim in self.dims[1 if self.widen == "after" else 2 :]:
            if dim % self.head_dim:
                raise ValueError(f"the attention stages' dims must be multiples of head_dim={self.head_dim}, got {dim}")

    @property
    def depth(self) -> int:
        """Total number of blocks."""
        return sum(self.depths)

    def build(self) -> CoAtNet:
        return CoAtNet(self)


class WideningAttention(nn.Module):
    """Self-attention with relative position bias from width ``dim_in`` to ``dim_out``; ``context.dim`` is its own."""

    def __init__(self, context: MixerContext, *, dim_in: int, dim_out: int, temperature: float) -> None:
        super().__init__()
        self.num_heads = context.num_heads
        self.qkv = nn.Linear(dim_in, 3 * context.dim)
        self.relative = RelativeBias(context.grid, context.num_heads)
        self.attend = Attend(temperature=temperature, drop_rate=context.attention_drop_rate)
        self.proj = nn.Linear(context.dim, dim_out)
        self.drop = nn.Dropout(context.drop_rate)

    def forward(self, x: Float[Tensor, "b n c"], grid: Grid, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        q, k, v = rearrange(self.qkv(x), "b n (three h k) -> three b h n k", three=3, h=self.num_heads)
        tokens = Tokens(grid, num_prefix)
        out = self.attend(q, k, v, bias=self.relative(grid, num_prefix), layout=Layout(tokens, tokens))
        return self.drop(self.proj(rearrange(out, "b h n k -> b n (h k)")))


class ProjectedMixer(nn.Module):
    """Any other mixer, after a linear projection to its width."""

    def __init__(self, dim_in: int, dim: int, mixer: nn.Module) -> None:
        super().__init__()
        self.widen = nn.Linear(dim_in, dim)
        self.mixer = mixer

    def forward(self, x: Float[Tensor, "b n c"], grid: Grid, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        return self.mixer(self.widen(x), grid, num_prefix)


class HalvingBlock(Block):
    """Downsampling block, x = W · mean₂ₓ₂(x) + mixer(mean₂ₓ₂(norm(x))); x + mlp(norm(x)): from a map to tokens."""

    def __init__(
        self, dim_in: int, dim: int, mixer: nn.Module, mlp: nn.Module, *, shortcut_bias: bool, **options: Any
    ) -> None:
        super().__init__(dim, mixer, mlp, **options)
        self.norm1 = nn.LayerNorm(dim_in, eps=self.norm2.eps)
        self.pool = mean_pool_2x2()
        self.shortcut = nn.Linear(dim_in, dim, bias=shortcut_bias) if dim_in != dim else nn.Identity()

    def forward(self, x: Float[Tensor, "b c y x"], grid: Grid) -> Float[Tensor, "b n d"]:
        normed = rearrange(self.norm1(rearrange(x, "b c y x -> b y x c")), "b y x c -> b c y x")
        means, normed_means = (rearrange(self.pool(part), "b c y x -> b (y x) c") for part in (x, normed))
        y = self.shortcut(means) + self.drop_path(self.scale1(self.mixer(normed_means, grid)))
        return y + self.drop_path(self.scale2(self.mlp(self.norm2(y))))


class AttentionStage(nn.Sequential):
    """A downsampling block (map → tokens), then blocks on tokens; returns a map."""

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        grid = grid_of((x.shape[2], x.shape[3]), (2, 2))
        for block in self:
            x = block(x, grid)
        return rearrange(x, "b (y x) d -> b d y x", y=grid[0])


class CoAtNet(Backbone):
    """CoAtNet."""

    config: CoAtNetConfig

    def __init__(self, config: CoAtNetConfig) -> None:
        super().__init__(config)
        dim = config.dims[-1]
        self.strides = tuple((4 << stage, 4 << stage) for stage in range(NUM_STAGES))
        self.dims = config.dims
        self.stem = make_stem(config)
        self.stages = nn.ModuleList(make_stages(config))
        self.norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.hidden = nn.Linear(dim, dim) if config.hidden_head else None
        self.head = classifier(dim, config.num_classes)
        self.stem.apply(init_efficient)
        for number, stage in enumerate(self.stages):
            stage.apply(init_efficient if number < NUM_CONV_STAGES else init_vit)

    def features(self, images: Float[Tensor, "b c y x"]) -> Features:
        self.check_images(images, smallest=(1, 1))
        x, maps = self.stem(images), []
        for stage, stride in zip(self.stages, self.strides, strict=True):
            x = stage(x)
            maps.append(FeatureMap(x, stride))
        tokens, grid = rearrange(x, "b d y x -> b (y x) d"), (x.shape[2], x.shape[3])
        if self.hidden is None:
            tokens = self.norm(tokens)
            maps[-1] = FeatureMap(rearrange(tokens, "b (y x) d -> b d y x", y=grid[0]), self.strides[-1])
        return Features(tokens, grid, 0, tuple(maps))

    def pooled(self, features: Features) -> Float[Tensor, "b d"]:
        mean = features.tokens.mean(dim=1)
        return mean if self.hidden is None else torch.tanh(self.hidden(self.norm(mean)))

    @property
    def blocks(self) -> list[nn.Module]:
        return [block for stage in self.stages for block in stage.children()]


def make_stem(config: CoAtNetConfig) -> nn.Sequential:
    first, second = config.stem_dims
    parts = {
        "conv1": nn.Conv2d(config.num_channels, first, 3, stride=2, padding=1, bias=False),
        "norm1": nn.BatchNorm2d(first),
        "act": ACTIVATIONS[config.conv.act](),
        "conv2": nn.Conv2d(first, second, 3, padding=1, bias=False),
    }
    return nn.Sequential(OrderedDict(parts))


def make_stages(config: CoAtNetConfig) -> Iterator[nn.Sequential]:
    grid = grid_of(config.image_size, (2, 2))
    rates = drop_path_rates(config.drop_path_rate, config.depths)
    for number, (dim_in, dim) in enumerate(pairwise((config.stem_dims[1], *config.dims))):
        grid = grid_of(grid, (2, 2))
        if number < NUM_CONV_STAGES:
            yield nn.Sequential(*make_conv_blocks(config, dim_in, dim, rates[number]))
        else:
            yield AttentionStage(*make_attention_blocks(config, dim_in, number, grid, rates[number]))


def make_conv_blocks(config: CoAtNetConfig, dim_in: int, dim: int, rates: list[float]) -> Iterator[MBConv]:
    for index, rate in enumerate(rates):
        width, stride = (dim, 1) if index else (dim_in, 2)
        yield MBConv(width, dim, options=config.conv, stride=stride, drop_path_rate=rate)


def make_attention_blocks(
    config: CoAtNetConfig, dim_in: int, number: int, grid: Grid, rates: list[float]
) -> Iterator[Block]:
    dim = config.dims[number]
    for index, rate in enumerate(rates):
        mlp = Mlp(dim, round(dim * config.mlp_ratio), drop_rate=config.drop_rate)
        context = config.context(
            dim=dim,
            num_heads=dim // config.head_dim,
            grid=grid,
            position="added" if config.mixer.no_position.get("relative") else "relative",
            stage=number,
            index=index,
        )
        options: dict[str, Any] = {
            "norm_eps": config.norm_eps,
            "layer_scale": config.layer_scale,
            "drop_path_rate": rate,
        }
        if index:
            yield PreNormBlock(dim, config.mixer.build(context), mlp, **options)
        else:
            mixer = make_first_mixer(config, dim_in, context)
            yield HalvingBlock(dim_in, dim, mixer, mlp, shortcut_bias=config.shortcut_bias, **options)


def make_first_mixer(config: CoAtNetConfig, dim_in: int, context: MixerContext) -> nn.Module:
    """Create the mixer of a stage's first block, whose input has the width of the previous stage."""
    if not isinstance(config.mixer, FullAttention):
        return ProjectedMixer(dim_in, context.dim, config.mixer.build(context))
    inner = context
    if config.widen == "after":
        inner = replace(context, dim=dim_in, num_heads=dim_in // config.head_dim)
    return WideningAttention(inner, dim_in=dim_in, dim_out=context.dim, temperature=config.mixer.temperature)


SMALL, MEDIUM, LARGE = (96, 192, 384, 768), (128, 256, 512, 1024), (192, 384, 768, 1536)

#: Options of the models trained by timm. The older ones order norms and squeeze-excite differently, with fewer biases.
RW_CONV = MBConvOptions(expand_from="input", squeeze_ratio=1 / 4, act="silu")
RW_OLD_CONV = RW_CONV.override(act_first=True, bias=False)
RW_OLDEST_CONV = RW_OLD_CONV.override(squeeze_first=True, squeeze_act="relu")
RW = CoAtNetConfig(stem_dims=(32, 64), widen="after", hidden_head=False)

VARIANTS: dict[str, CoAtNetConfig] = {
    "coatnet_0": CoAtNetConfig(dims=SMALL, depths=(2, 3, 5, 2)),
    "coatnet_1": CoAtNetConfig(dims=SMALL, depths=(2, 6, 14, 2)),
    "coatnet_2": CoAtNetConfig(stem_dims=(128, 128), dims=MEDIUM, depths=(2, 6, 14, 2)),
    "coatnet_3": CoAtNetConfig(stem_dims=(192, 192), dims=LARGE, depths=(2, 6, 14, 2)),
    "coatnet_4": CoAtNetConfig(stem_dims=(192, 192), dims=LARGE, depths=(2, 12, 28, 2)),
    "coatnet_5": CoAtNetConfig(stem_dims=(192, 192), dims=(256, 512, 1280, 2048), depths=(2, 12, 28, 2)),
    "coatnet_nano_rw": RW.override(dims=(64, 128, 256, 512), depths=(3, 4, 6, 3), conv=RW_CONV.override(halve="pool")),
    "coatnet_0_rw": RW.override(
        dims=SMALL, depths=(2, 3, 7, 2), conv=RW_OLDEST_CONV.override(halve="pool"), shortcut_bias=False
    ),
    "coatnet_1_rw": RW.override(dims=SMALL, depths=(2, 6, 14, 2), conv=RW_OLDEST_CONV, shortcut_bias=False),
    "coatnet_2_rw": RW.override(stem_dims=(64, 128), dims=MEDIUM, depths=(2, 6, 14, 2), conv=RW_OLD_CONV),
    "coatnet_3_rw": RW.override(
        stem_dims=(96, 192), dims=LARGE, depths=(2, 6, 14, 2), conv=RW_OLD_CONV, layer_scale=1e-6
    ),
}

FAMILY = Family(
    name="coatnet",
    config=CoAtNetConfig,
    variants=VARIANTS,
    papers={
        "*": Paper(
            "CoAtNet",
            "CoAtNet: Marrying Convolution and Attention for All Data Sizes",
            "Dai et al.",
            2021,
            "2106.04803",
        )
    },
    smallest=("coatnet_nano_rw",),
    plotted=("coatnet_0",),
    shrunk={"CoAtNet": CoAtNetConfig(stem_dims=(16, 16), dims=(32, 64, 96, 128), depths=(1, 1, 2, 1))},
)
