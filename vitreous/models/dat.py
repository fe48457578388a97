"""DAT: Vision Transformer with deformable attention in its coarse stages and window attention in its fine ones.

"Vision Transformer with Deformable Attention", Xia et al. 2022 (arXiv 2201.00520); not its successor DAT++.

    x = norm(conv(x))                                                   before each stage: patches of 4×4, later 2×2
    x = x + mixer(norm(x));   x = x + mlp(norm(x))                      × depth
    y = head(mean over the last map of norm(x))

In every stage even blocks have window attention. Odd blocks have shifted-window attention in the first two stages and
deformable attention over the whole map in the last two; ``mixer`` replaces the latter. Windows are shifted by half
their side rounded up, 4 cells of 7, where Swin rounds down.

Differences from the original: images of any size are accepted (odd sides are zero-padded, windows as in
``layers/window.py``), and the bias table of deformable attention is interpolated directly for any size of the map,
where the original resamples it first. Weights are initialized as in DeiT, where the original keeps PyTorch's defaults:
on Shapes, with the recipe shared by all families, the latter reached 24 % accuracy and the former 79 %.
"""

from __future__ import annotations

from dataclasses import dataclass

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.block import PreNormBlock
from vitreous.layers.deformable import Deformable
from vitreous.layers.init import init_deit, trunc_normal_
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.mlp import Mlp
from vitreous.layers.patch import pad_to_patches
from vitreous.layers.position import Grid, RelativeBias
from vitreous.layers.window import WindowAttention, WindowPartition
from vitreous.models.family import Family, Paper
from vitreous.models.pyramid import Pyramid, StagedConfig, build_stages
from vitreous.spec import Size


@dataclass(frozen=True, kw_only=True)
class DATConfig(StagedConfig):
    """Configuration of a DAT; the defaults are DAT-T."""

    patch_size: Size = (4, 4)
    window_size: int = 7
    num_window_stages: int = 2  # finest stages with window attention only; later, odd blocks have ``mixer``
    mixer: Mixer = Deformable()
    mlp_ratio: float = 4.0

    def build(self) -> DAT:
        return DAT(self)


class PatchNorm(nn.Module):
    """Patch embedding, norm(conv(x)), with zero padding to a multiple of the patch size."""

    def __init__(self, patch_size: Size, dim_in: int, dim_out: int, *, bias: bool, norm_eps: float) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.conv = nn.Conv2d(dim_in, dim_out, patch_size, stride=patch_size, bias=bias)
        self.norm = nn.LayerNorm(dim_out, eps=norm_eps)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        return self.norm(rearrange(self.conv(pad_to_patches(x, self.patch_size)), "b d y x -> b (y x) d"))


class ShiftedWindow(WindowAttention):
    """Shifted-window attention that shifts by half the side rounded up, where Swin rounds down."""

    def partition(self, grid: Grid) -> WindowPartition:
        partition = super().partition(grid)
        down, across = (
            side - shift if shift else 0 for side, shift in zip(partition.window, partition.shift, strict=True)
        )
        return partition._replace(shift=(down, across))


class DAT(Pyramid):
    """Deformable Attention Transformer."""

    config: DATConfig

    def __init__(self, config: DATConfig) -> None:
        norm = nn.LayerNorm(config.dims[-1], eps=config.norm_eps)
        stages = list(build_stages(config, config.patch_size, make_downsample, make_block))
        super().__init__(config, stages, dims=config.dims, norm=norm)
        self.stages.apply(init_deit)
        for module in self.modules():
            if isinstance(module, RelativeBias):
                trunc_normal_(module.table, std=0.01)


def make_downsample(config: DATConfig, stage: int) -> PatchNorm:
    dim_before, patch_size = (config.dims[stage - 1], (2, 2)) if stage else (config.num_channels, config.patch_size)
    return PatchNorm(patch_size, dim_before, config.dims[stage], bias=stage == 0, norm_eps=config.norm_eps)


def make_block(config: DATConfig, context: MixerContext, drop_path_rate: float) -> PreNormBlock:
    return PreNormBlock(
        context.dim,
        make_mixer(config, context),
        Mlp(context.dim, round(context.dim * config.mlp_ratio), drop_rate=config.drop_rate),
        norm_eps=config.norm_eps,
        drop_path_rate=drop_path_rate,
    )


def make_mixer(config: DATConfig, context: MixerContext) -> nn.Module:
    if context.index % 2 and context.stage >= config.num_window_stages:
        return config.mixer.build(context)
    attention = ShiftedWindow if context.index % 2 else WindowAttention
    return attention(context, config.window_size, shifted=context.index % 2 == 1)


VARIANTS: dict[str, DATConfig] = {
    "dat_tiny": DATConfig(),
    "dat_small": DATConfig(depths=(2, 2, 18, 2)),
    "dat_base": DATConfig(depths=(2, 2, 18, 2), dims=(128, 256, 512, 1024), num_heads=(4, 8, 16, 32)),
}

FAMILY = Family(
    name="dat",
    config=DATConfig,
    variants=VARIANTS,
    papers={"*": Paper("DAT", "Vision Transformer with Deformable Attention", "Xia et al.", 2022, "2201.00520")},
    shrunk={"DAT": DATConfig(dims=(32, 64, 96, 128), depths=(2, 2, 2, 2), num_heads=(1, 2, 3, 4), window_size=4)},
)
