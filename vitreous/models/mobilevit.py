"""MobileViT: inverted residual blocks, with transformers on unfolded feature maps in the last three stages.

"MobileViT: Light-weight, General-purpose, and Mobile-friendly Vision Transformer", Mehta and Rastegari 2021
(arXiv 2110.02178).

    x = act(norm(conv(image)))                                stride 2
    x = inverted residuals of x                               two stages
    x = inverted residual of x;   x = mobilevit block of x    three stages
    y = head(mean over act(norm(W · x)))

The MobileViT block, where [ ; ] is concatenation and every conv is followed by norm and act:

    z = unfold(W₁ · conv(x))                                  one batch entry per position within the 2×2 patches
    z = z + attention(norm(z));   z = z + mlp(norm(z))        × depth
    y = conv([x ; W₂ · fold(norm(z))])

A token attends to the tokens at the same position within all other patches; since convolutions have mixed the patches
before, its receptive field is the whole map, at a quarter of the cost of full attention. No position embedding.

As in the published code, a map whose sides are not multiples of the patch is resized (bilinear) to the next multiple
and back. Differences: widths are not rounded to multiples of 8, which does not affect any published model; and
stochastic depth is not applied to blocks without a shortcut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import FullAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.init import init_deit, init_efficient
from vitreous.layers.inverted import InvertedResidual, conv_norm
from vitreous.layers.mixer import Mixer, MixerContext, check_heads
from vitreous.layers.mlp import Mlp
from vitreous.layers.patch import grid_of
from vitreous.layers.position import Grid
from vitreous.models.base import Backbone, Config, FeatureMap, Features, check_stages, drop_path_rates
from vitreous.models.family import Family, Paper
from vitreous.spec import Size

NUM_CONV_STAGES, NUM_MIXER_STAGES = 2, 3
NUM_STAGES = NUM_CONV_STAGES + NUM_MIXER_STAGES


@dataclass(frozen=True, kw_only=True)
class MobileViTConfig(Config):
    """Configuration of a MobileViT; the defaults are MobileViT-S."""

    image_size: Size = (256, 256)
    stem_dim: int = 16
    dims: tuple[int, ...] = (32, 64, 96, 128, 160)
    depths: tuple[int, ...] = (1, 3, 2, 4, 3)  # inverted residuals in two stages, transformer blocks in three
    expand_ratio: float = 4.0
    mixer: Mixer = FullAttention()
    mixer_dims: tuple[int, ...] = (144, 192, 240)  # token widths of the last three stages
    num_heads: tuple[int, ...] = (4, 4, 4)
    patch_size: Size = (2, 2)  # in cells; tokens at the same position in all patches attend to each other
    mlp_ratio: float = 2.0
    final_dim: int = 640  # width of the last feature map
    qkv_bias: bool = True
    norm_eps: float = 1e-5
    drop_rate: float = 0.0
    attention_drop_rate: float = 0.0
    drop_path_rate: float = 0.0  # of the last block, increasing linearly from 0 at the first

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(NUM_STAGES, depths=self.depths, dims=self.dims)
        mixer_depths = self.depths[NUM_CONV_STAGES:]
        check_stages(NUM_MIXER_STAGES, depths=mixer_depths, mixer_dims=self.mixer_dims, num_heads=self.num_heads)
        for dim, num_heads in zip(self.mixer_dims, self.num_heads, strict=True):
            check_heads(dim, num_heads)

    @property
    def depth(self) -> int:
        """Total number of blocks, including the inverted residual at the start of each of the last three stages."""
        return sum(self.depths) + NUM_MIXER_STAGES

    def block_context(self, stage: int, grid: Grid, index: int) -> MixerContext:
        """Create the context of a block's mixer."""
        dim, num_heads = self.mixer_dims[stage - NUM_CONV_STAGES], self.num_heads[stage - NUM_CONV_STAGES]
        return self.context(dim=dim, num_heads=num_heads, grid=grid, stage=stage, index=index)

    def build(self) -> MobileViT:
        return MobileViT(self)


class MobileViTBlock(nn.Module):
    """MobileViT block, conv([x ; W₂ · mix(W₁ · conv(x))]): fuses local and global features with the input.

    For mixers, each position within the patches is a batch entry with a grid of one token per patch; recorded attention
    and stochastic depth follow this batch axis.
    """

    def __init__(
        self, dim: int, mixer_dim: int, blocks: Sequence[nn.Module], *, patch_size: Size, norm_eps: float
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.local = conv_norm(dim, dim, 3)
        self.widen = nn.Conv2d(dim, mixer_dim, 1, bias=False)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(mixer_dim, eps=norm_eps)
        self.narrow = conv_norm(mixer_dim, dim, 1)
        self.fuse = conv_norm(2 * dim, dim, 3)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        mixed = self.mix(self.widen(self.local(x)))
        return self.fuse(torch.cat([x, self.narrow(mixed)], dim=1))

    def mix(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        """Apply blocks and norm to the tokens at each position within the patches."""
        size, (p, q) = (x.shape[2], x.shape[3]), self.patch_size
        grid = grid_of(size, self.patch_size)
        x = resize(x, (p * grid[0], q * grid[1]))
        tokens = rearrange(x, "b d (y p) (x q) -> (b p q) (y x) d", p=p, q=q)
        for block in self.blocks:
            tokens = block(tokens, grid)
        x = rearrange(self.norm(tokens), "(b p q) (y x) d -> b d (y p) (x q)", p=p, q=q, y=grid[0])
        return resize(x, size)


def resize(x: Float[Tensor, "b c y x"], size: Size) -> Float[Tensor, "b c v w"]:
    if (x.shape[2], x.shape[3]) == size:
        return x
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


class MobileViT(Backbone):
    """MobileViT."""

    config: MobileViTConfig

    def __init__(self, config: MobileViTConfig) -> None:
        super().__init__(config)
        self.strides = tuple((2 << stage, 2 << stage) for stage in range(NUM_STAGES))
        self.dims = (*config.dims[:-1], config.final_dim)
        self.stem = conv_norm(config.num_channels, config.stem_dim, 3, stride=2)
        self.stages = nn.ModuleList(make_stages(config))
        self.final = conv_norm(config.dims[-1], config.final_dim, 1)
        for init in (init_efficient, init_deit):
            self.apply(init)
        self.head = self.make_head(config.num_classes)

    def features(self, images: Float[Tensor, "b c y x"]) -> Features:
        self.check_images(images, smallest=(1, 1))
        x, maps = self.stem(images), []
        for stage, stride in zip(self.stages, self.strides, strict=True):
            x = stage(x)
            maps.append(FeatureMap(x, stride))
        x = self.final(x)
        tokens = rearrange(x, "b d y x -> b (y x) d")
        return Features(tokens, (x.shape[2], x.shape[3]), 0, (*maps[:-1], FeatureMap(x, self.strides[-1])))

    def pooled(self, features: Features) -> Float[Tensor, "b d"]:
        return features.tokens.mean(dim=1)

    @property
    def blocks(self) -> list[nn.Module]:
        return [part for part in self.stages.modules() if isinstance(part, InvertedResidual | PreNormBlock)]


def make_stages(config: MobileViTConfig) -> Iterator[nn.Sequential]:
    grid = grid_of(config.image_size, (2, 2))
    rates = drop_path_rates(config.drop_path_rate, config.depths)
    for number, (dim_in, dim) in enumerate(pairwise((config.stem_dim, *config.dims))):
        stride = 2 if number else 1
        grid = grid_of(grid, (stride, stride))
        if number < NUM_CONV_STAGES:
            yield nn.Sequential(*make_residuals(config, dim_in, dim, stride=stride, rates=rates[number]))
        else:
            (halve,) = make_residuals(config, dim_in, dim, stride=stride, rates=[0.0])
            yield nn.Sequential(halve, make_mobilevit_block(config, number, grid, rates=rates[number]))


def make_residuals(
    config: MobileViTConfig, dim_in: int, dim: int, *, stride: int, rates: list[float]
) -> Iterator[InvertedResidual]:
    """Create inverted residuals; the first changes the width and applies ``stride``."""
    for index, rate in enumerate(rates):
        yield InvertedResidual(
            dim if index else dim_in,
            dim,
            stride=1 if index else stride,
            expand_ratio=config.expand_ratio,
            drop_path_rate=rate,
        )


def make_mobilevit_block(config: MobileViTConfig, number: int, grid: Grid, *, rates: list[float]) -> MobileViTBlock:
    dim, patches = config.mixer_dims[number - NUM_CONV_STAGES], grid_of(grid, config.patch_size)
    blocks = [
        PreNormBlock(
            dim,
            config.mixer.build(config.block_context(number, patches, index)),
            Mlp(dim, round(dim * config.mlp_ratio), act=nn.SiLU, drop_rate=config.drop_rate),
            norm_eps=config.norm_eps,
            drop_path_rate=rate,
        )
        for index, rate in enumerate(rates)
    ]
    return MobileViTBlock(config.dims[number], dim, blocks, patch_size=config.patch_size, norm_eps=config.norm_eps)


VARIANTS: dict[str, MobileViTConfig] = {
    "mobilevit_xxs": MobileViTConfig(
        dims=(16, 24, 48, 64, 80), mixer_dims=(64, 80, 96), final_dim=320, expand_ratio=2.0
    ),
    "mobilevit_xs": MobileViTConfig(dims=(32, 48, 64, 80, 96), mixer_dims=(96, 120, 144), final_dim=384),
    "mobilevit_s": MobileViTConfig(),
}

FAMILY = Family(
    name="mobilevit",
    config=MobileViTConfig,
    variants=VARIANTS,
    papers={
        "*": Paper(
            "MobileViT",
            "MobileViT: Light-weight, General-purpose, and Mobile-friendly Vision Transformer",
            "Mehta and Rastegari",
            2021,
            "2110.02178",
        )
    },
    plotted=("mobilevit_s",),
    shrunk={
        "MobileViT": MobileViTConfig(
            dims=(16, 32, 48, 64, 96),
            depths=(1, 1, 1, 2, 1),
            mixer_dims=(64, 96, 128),
            num_heads=(2, 3, 4),
            final_dim=256,
        )
    },
)
