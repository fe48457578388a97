"""Swin Transformer: a hierarchical transformer with shifted-window attention.

"Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", Liu et al. 2021 (arXiv 2103.14030).

    x = norm(W · patch)                                             cells of 4×4 pixels
    x = x + window(norm(x));   x = x + mlp(norm(x))                 × depths[stage], shifted in every second block
    x = W · norm(2×2 cells concatenated)                          between stages: half the sides, twice the width
    y = head(mean over the map of norm(x))

Difference from the published code: images of any size are accepted, and their padding is masked.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from vitreous.layers.block import PreNormBlock
from vitreous.layers.downsample import PatchMerging
from vitreous.layers.init import init_deit
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.mlp import Mlp
from vitreous.layers.patch import PatchEmbed
from vitreous.layers.window import Window
from vitreous.models.family import Family, Paper
from vitreous.models.pyramid import Pyramid, StagedConfig, build_stages
from vitreous.spec import Size


@dataclass(frozen=True, kw_only=True)
class SwinConfig(StagedConfig):
    """Configuration of a Swin Transformer; the defaults are Swin-T."""

    patch_size: Size = (4, 4)
    mixer: Mixer = Window()
    mlp_ratio: float = 4.0

    def build(self) -> Swin:
        return Swin(self)


class Swin(Pyramid):
    """Swin Transformer."""

    config: SwinConfig

    def __init__(self, config: SwinConfig) -> None:
        norm = nn.LayerNorm(config.dims[-1], eps=config.norm_eps)
        stages = list(build_stages(config, config.patch_size, make_downsample, make_block))
        super().__init__(config, stages, dims=config.dims, norm=norm)
        self.stages.apply(init_deit)


def make_downsample(config: SwinConfig, stage: int) -> nn.Module:
    dim = config.dims[stage]
    if stage:
        return PatchMerging(config.dims[stage - 1], dim, norm_eps=config.norm_eps)
    parts = {
        "embed": PatchEmbed(config.patch_size, config.num_channels, dim),
        "norm": nn.LayerNorm(dim, eps=config.norm_eps),
        "drop": nn.Dropout(config.drop_rate),
    }
    return nn.Sequential(OrderedDict(parts))


def make_block(config: SwinConfig, context: MixerContext, drop_path_rate: float) -> PreNormBlock:
    return PreNormBlock(
        context.dim,
        config.mixer.build(context),
        Mlp(context.dim, round(context.dim * config.mlp_ratio), drop_rate=config.drop_rate),
        norm_eps=config.norm_eps,
        drop_path_rate=drop_path_rate,
    )


TINY = SwinConfig()
SMALL = SwinConfig(depths=(2, 2, 18, 2))
BASE = SMALL.override(dims=(128, 256, 512, 1024), num_heads=(4, 8, 16, 32))
LARGE = SMALL.override(dims=(192, 384, 768, 1536), num_heads=(6, 12, 24, 48))
AT_384 = {"image_size": 384, "mixer": Window(size=12)}

VARIANTS: dict[str, SwinConfig] = {
    "swin_tiny": TINY,
    "swin_small": SMALL,
    "swin_base": BASE,
    "swin_large": LARGE,
    "swin_base_384": BASE.override(**AT_384),
    "swin_large_384": LARGE.override(**AT_384),
}

FAMILY = Family(
    name="swin",
    config=SwinConfig,
    variants=VARIANTS,
    papers={
        "*": Paper(
            "Swin",
            "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows",
            "Liu et al.",
            2021,
            "2103.14030",
        )
    },
    shrunk={
        "Swin": SwinConfig(dims=(32, 64, 96, 128), depths=(2, 2, 2, 2), num_heads=(1, 2, 3, 4), mixer=Window(size=4))
    },
)
