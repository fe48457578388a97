"""ConvNeXt: a convolutional network modernized after Swin, with large depthwise convolutions as token mixers.

"A ConvNet for the 2020s", Liu et al. 2022 (arXiv 2201.03545).

    x = norm(W · patch)                                     cells of 4×4 pixels
    x = x + γ ⊙ mlp(norm(depthwise(x)))                     × depths[stage], 7×7 filters, a single residual
    x = conv(norm(x))                                       between stages: 2×2 patches, twice the width
    y = head(norm(mean over the map of x))

The final norm follows mean pooling, so that tokens and the last feature map are not normalized. With
``final_norm="tokens"`` they are, before pooling, as in timm's ``convnext_tiny_hnf``.

Difference from the published code: sides are zero-padded to a multiple of the stride instead of cropped. The sizes
below tiny are timm's.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.depthwise import Depthwise
from vitreous.layers.drop import DropPath
from vitreous.layers.init import init_convnext
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.mlp import Mlp
from vitreous.layers.norm import LayerScale
from vitreous.layers.patch import PatchEmbed
from vitreous.layers.position import Grid
from vitreous.models.base import Features
from vitreous.models.family import Family, Paper
from vitreous.models.pyramid import Pyramid, StagedConfig, build_stages
from vitreous.spec import Size


@dataclass(frozen=True, kw_only=True)
class ConvNeXtConfig(StagedConfig):
    """Configuration of a ConvNeXt; the defaults are ConvNeXt-T. ``num_heads`` applies to attention mixers only."""

    depths: tuple[int, ...] = (3, 3, 9, 3)
    patch_size: Size = (4, 4)
    mixer: Mixer = Depthwise()
    mlp_ratio: float = 4.0
    norm_eps: float = 1e-6
    layer_scale: float | None = 1e-6  # initial γ of LayerScale; None for no LayerScale
    final_norm: Literal["tokens", "pooled"] = "pooled"  # normalize before or after pooling

    def build(self) -> ConvNeXt:
        return ConvNeXt(self)


class ConvNeXtBlock(nn.Module):
    """ConvNeXt block, x + γ ⊙ mlp(norm(mixer(x))): one residual, and no norm before the mixer."""

    def __init__(
        self,
        dim: int,
        mixer: nn.Module,
        mlp: nn.Module,
        *,
        norm_eps: float = 1e-6,
        layer_scale: float | None = None,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.mixer = mixer
        self.norm = nn.LayerNorm(dim, eps=norm_eps)
        self.mlp = mlp
        self.scale = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        return x + self.drop_path(self.scale(self.mlp(self.norm(self.mixer(x, grid, num_prefix)))))


class NormedPatchEmbed(nn.Module):
    """Downsampling, patch embedding of 2×2 cells of norm(x); zero padding follows the norm, to stay zero."""

    def __init__(self, dim_in: int, dim_out: int, *, norm_eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim_in, eps=norm_eps)
        self.embed = PatchEmbed((2, 2), dim_in, dim_out, method="conv")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        normed = self.norm(rearrange(x, "b c y x -> b y x c"))
        return self.embed(rearrange(normed, "b y x c -> b c y x"))


class ConvNeXt(Pyramid):
    """ConvNeXt."""

    config: ConvNeXtConfig

    def __init__(self, config: ConvNeXtConfig) -> None:
        norms: dict[str, nn.Module] = {"tokens": nn.Identity(), "pooled": nn.Identity()}
        norms[config.final_norm] = nn.LayerNorm(config.dims[-1], eps=config.norm_eps)
        stages = list(build_stages(config, config.patch_size, make_downsample, make_block))
        super().__init__(config, stages, dims=config.dims, norm=norms["tokens"])
        self.pooled_norm = norms["pooled"]
        self.stages.apply(init_convnext)

    def pooled(self, features: Features) -> Float[Tensor, "b d"]:
        return self.pooled_norm(super().pooled(features))


def make_downsample(config: ConvNeXtConfig, stage: int) -> nn.Module:
    dim = config.dims[stage]
    if stage:
        return NormedPatchEmbed(config.dims[stage - 1], dim, norm_eps=config.norm_eps)
    parts = {
        "embed": PatchEmbed(config.patch_size, config.num_channels, dim),
        "norm": nn.LayerNorm(dim, eps=config.norm_eps),
    }
    return nn.Sequential(OrderedDict(parts))


def make_block(config: ConvNeXtConfig, context: MixerContext, drop_path_rate: float) -> ConvNeXtBlock:
    return ConvNeXtBlock(
        context.dim,
        config.mixer.build(context),
        Mlp(context.dim, round(context.dim * config.mlp_ratio), drop_rate=config.drop_rate),
        norm_eps=config.norm_eps,
        layer_scale=config.layer_scale,
        drop_path_rate=drop_path_rate,
    )


def convnext(dim: int, depths: tuple[int, ...]) -> ConvNeXtConfig:
    """Create a config whose widths, and heads of about 32 channels, double from stage to stage."""
    stages = range(len(depths))
    return ConvNeXtConfig(
        depths=depths,
        dims=tuple(dim << stage for stage in stages),
        num_heads=tuple(max(1, dim // 32) << stage for stage in stages),
    )


VARIANTS: dict[str, ConvNeXtConfig] = {
    "convnext_atto": convnext(40, (2, 2, 6, 2)),
    "convnext_femto": convnext(48, (2, 2, 6, 2)),
    "convnext_pico": convnext(64, (2, 2, 6, 2)),
    "convnext_nano": convnext(80, (2, 2, 8, 2)),
    "convnext_tiny": convnext(96, (3, 3, 9, 3)),
    "convnext_small": convnext(96, (3, 3, 27, 3)),
    "convnext_base": convnext(128, (3, 3, 27, 3)),
    "convnext_large": convnext(192, (3, 3, 27, 3)),
    "convnext_xlarge": convnext(256, (3, 3, 27, 3)),
}

FAMILY = Family(
    name="convnext",
    config=ConvNeXtConfig,
    variants=VARIANTS,
    papers={"*": Paper("ConvNeXt", "A ConvNet for the 2020s", "Liu et al.", 2022, "2201.03545")},
    plotted=("convnext_tiny",),
    shrunk={"ConvNeXt": ConvNeXtConfig(dims=(32, 64, 96, 128), depths=(1, 1, 2, 1), num_heads=(1, 2, 3, 4))},
)
