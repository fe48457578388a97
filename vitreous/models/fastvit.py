"""FastViT: re-parameterizable convolutions, with attention in the last stages of the larger variants.

"FastViT: A Fast Hybrid Vision Transformer using Structural Reparameterization", Vasu et al. 2023 (arXiv 2303.14189).

    x = conv(conv(conv(image)))                                    the stem, stride 4
    x = conv₁(conv₇(x))                                            downsampling, before every stage but the first
    x = x + γ (conv₃(x) − norm(x));    x = x + γ mlp(conv₇(x))     × depth
    x = x + conv₇(x)                                               in attention stages: position encoding
    x = x + γ attention(norm(x));      x = x + γ mlp(conv₇(x))     × depth
    y = head(mean over the map of GELU(squeeze(conv₃(x))))         where the width doubles

Every convolution outside the MLPs is a sum of branches (``layers/reparam.py``), which ``vt.fold(model)`` merges into a
single one. The convolution in an MLP has one branch and keeps its norm when folded, as in timm. The last feature map is
the one of doubled width before pooling.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import FullAttention
from vitreous.layers.drop import DropPath
from vitreous.layers.init import init_convnext, init_deit
from vitreous.layers.mbconv import SqueezeExcite
from vitreous.layers.mixer import Mixer
from vitreous.layers.norm import MapScale
from vitreous.layers.patch import grid_of
from vitreous.layers.position import Grid
from vitreous.layers.reparam import ConvNorm, ConvPosition, RepConv, RepMixer, mobileone_conv
from vitreous.models.base import Backbone, Config, FeatureMap, Features, check_stages, drop_path_rates
from vitreous.models.family import Family, Paper
from vitreous.spec import Size


@dataclass(frozen=True, kw_only=True)
class FastViTConfig(Config):
    """Configuration of a FastViT; the defaults are FastViT-S12."""

    image_size: Size = (256, 256)
    dims: tuple[int, ...] = (64, 128, 256, 512)
    depths: tuple[int, ...] = (2, 2, 6, 2)
    num_attention_stages: int = 0  # the last stages; the others have RepMixer
    mixer: Mixer = FullAttention()  # of the attention stages
    head_dim: int = 32  # channels per attention head
    qkv_bias: bool = False
    mlp_ratio: float = 4.0
    expand_ratio: int = 2  # width of the last feature map over that of the last stage
    layer_scale: float = 1e-5  # initial γ
    drop_rate: float = 0.0
    attention_drop_rate: float = 0.0
    drop_path_rate: float = 0.0  # of the last block, increasing linearly from 0 at the first

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(len(self.dims), depths=self.depths)
        if any(dim % before for before, dim in pairwise(self.dims)):
            raise ValueError(f"dims must each be a multiple of the one before, got {self.dims}")
        if self.num_attention_stages > len(self.dims):
            raise ValueError(f"num_attention_stages must be at most {len(self.dims)}, got {self.num_attention_stages}")
        if self.mixer != FullAttention() and not self.num_attention_stages:
            raise ValueError(
                f"mixer {self.mixer.name!r} would not be used, all stages have RepMixer; set num_attention_stages=1, "
                "or choose a variant with attention such as fastvit_sa12"
            )
        for stage, dim in enumerate(self.dims):
            if self.has_attention(stage) and dim % self.head_dim:
                raise ValueError(f"the attention stages' dims must be multiples of head_dim={self.head_dim}, got {dim}")

    @property
    def depth(self) -> int:
        """Total number of blocks."""
        return sum(self.depths)

    def has_attention(self, stage: int) -> bool:
        return stage >= len(self.dims) - self.num_attention_stages

    def build(self) -> FastViT:
        return FastViT(self)


class ConvMlp(nn.Module):
    """Convolutional MLP, W₂ · GELU(W₁ · norm(conv(x))), with a depthwise 7×7 convolution."""

    def __init__(self, dim: int, hidden_dim: int, *, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.conv = ConvNorm(dim, dim, 7, groups=dim)
        self.fc1 = nn.Conv2d(dim, hidden_dim, 1)
        self.act = nn.GELU()
        self.fc2 = nn.Conv2d(hidden_dim, dim, 1)
        self.drop = nn.Dropout(drop_rate)
        self.apply(init_convnext)

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(self.conv(x))))))


class RepBlock(nn.Module):
    """RepMixer block, x = repmixer(x); x + γ mlp(x). RepMixer includes its residual."""

    def __init__(self, dim: int, mlp: nn.Module, *, layer_scale: float, drop_path_rate: float) -> None:
        super().__init__()
        self.mixer = RepMixer(dim, layer_scale=layer_scale)
        self.mlp = mlp
        self.scale = MapScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        x = self.mixer(x)
        return x + self.drop_path(self.scale(self.mlp(x)))


class AttentionBlock(nn.Module):
    """Attention block on maps, x = x + γ mixer(norm(x)); x + γ mlp(x)."""

    def __init__(
        self, dim: int, mixer: nn.Module, mlp: nn.Module, *, layer_scale: float, drop_path_rate: float
    ) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(dim)
        self.mixer = mixer
        self.scale1 = MapScale(dim, layer_scale)
        self.mlp = mlp
        self.scale2 = MapScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        tokens = rearrange(self.norm(x), "b d y x -> b (y x) d")
        mixed = rearrange(self.mixer(tokens, tuple(x.shape[2:])), "b (y x) d -> b d y x", y=x.shape[2])
        x = x + self.drop_path(self.scale1(mixed))
        return x + self.drop_path(self.scale2(self.mlp(x)))


class FastViT(Backbone):
    """FastViT."""

    config: FastViTConfig

    def __init__(self, config: FastViTConfig) -> None:
        super().__init__(config)
        dim = config.dims[-1] * config.expand_ratio
        self.strides = tuple((4 << stage, 4 << stage) for stage in range(len(config.dims)))
        self.dims = (*config.dims[:-1], dim)
        self.stem = make_stem(config)
        self.stages = nn.ModuleList(make_stages(config))
        self.expand = make_expand(config.dims[-1], dim)
        self.head = self.make_head(config.num_classes)
        self.stages.apply(init_deit)

    def features(self, images: Float[Tensor, "b c y x"]) -> Features:
        self.check_images(images, smallest=(1, 1))
        x, maps = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        maps[-1] = x = self.expand(x)
        feature_maps = tuple(FeatureMap(*pair) for pair in zip(maps, self.strides, strict=True))
        return Features(rearrange(x, "b d y x -> b (y x) d"), (x.shape[2], x.shape[3]), 0, feature_maps)

    def pooled(self, features: Features) -> Float[Tensor, "b d"]:
        return features.tokens.mean(dim=1)

    @property
    def blocks(self) -> list[nn.Module]:
        return [block for stage in self.stages for block in stage.get_submodule("blocks").children()]


def make_stem(config: FastViTConfig) -> nn.Sequential:
    """Create the stem: a dense and a depthwise convolution, each with stride 2, then a pointwise one."""
    dim = config.dims[0]
    convs = (
        mobileone_conv(config.num_channels, dim, 3, stride=2),
        mobileone_conv(dim, dim, 3, stride=2, groups=dim),
        mobileone_conv(dim, dim, 1),
    )
    return nn.Sequential(*(nn.Sequential(OrderedDict(conv=conv, act=nn.GELU())) for conv in convs))


def make_stages(config: FastViTConfig) -> Iterator[nn.Sequential]:
    grid = grid_of(config.image_size, (2, 2))
    for stage, (dim_in, dim) in enumerate(pairwise((config.dims[0], *config.dims))):
        grid = grid_of(grid, (2, 2))
        yield nn.Sequential(
            OrderedDict(
                downsample=make_downsample(dim_in, dim) if stage else nn.Identity(),
                position=ConvPosition(dim) if config.has_attention(stage) else nn.Identity(),
                blocks=nn.Sequential(*make_blocks(config, stage, grid)),
            )
        )


def make_downsample(dim_in: int, dim: int) -> nn.Sequential:
    """Create the downsampling: a grouped 7×7 convolution with a 3×3 branch, then a pointwise one."""
    parts: dict[str, nn.Module] = {
        "depthwise": RepConv(dim_in, dim, (7, 3), stride=2, groups=dim_in),
        "pointwise": mobileone_conv(dim, dim, 1),
        "act": nn.GELU(),
    }
    return nn.Sequential(OrderedDict(parts))


def make_blocks(config: FastViTConfig, stage: int, grid: Grid) -> Iterator[nn.Module]:
    dim = config.dims[stage]
    for index, rate in enumerate(drop_path_rates(config.drop_path_rate, config.depths)[stage]):
        mlp = ConvMlp(dim, round(dim * config.mlp_ratio), drop_rate=config.drop_rate)
        options: dict[str, Any] = {"layer_scale": config.layer_scale, "drop_path_rate": rate}
        if config.has_attention(stage):
            yield AttentionBlock(dim, make_mixer(config, stage, grid, index), mlp, **options)
        else:
            yield RepBlock(dim, mlp, **options)


def make_mixer(config: FastViTConfig, stage: int, grid: Grid, index: int) -> nn.Module:
    dim = config.dims[stage]
    context = config.context(dim=dim, num_heads=dim // config.head_dim, grid=grid, stage=stage, index=index)
    return config.mixer.build(context)


def make_expand(dim_in: int, dim: int) -> nn.Sequential:
    parts: dict[str, nn.Module] = {
        "conv": mobileone_conv(dim_in, dim, 3, groups=dim_in),
        "squeeze": SqueezeExcite(dim, max(1, dim // 16), act="relu"),
        "act": nn.GELU(),
    }
    return nn.Sequential(OrderedDict(parts))


VARIANTS: dict[str, FastViTConfig] = {
    "fastvit_t8": FastViTConfig(dims=(48, 96, 192, 384), depths=(2, 2, 4, 2), mlp_ratio=3.0),
    "fastvit_t12": FastViTConfig(mlp_ratio=3.0),
    "fastvit_s12": FastViTConfig(),
    "fastvit_sa12": FastViTConfig(num_attention_stages=1),
    "fastvit_sa24": FastViTConfig(num_attention_stages=1, depths=(4, 4, 12, 4)),
    "fastvit_sa36": FastViTConfig(num_attention_stages=1, depths=(6, 6, 18, 6)),
    "fastvit_ma36": FastViTConfig(num_attention_stages=1, depths=(6, 6, 18, 6), dims=(76, 152, 304, 608)),
}

FAMILY = Family(
    name="fastvit",
    config=FastViTConfig,
    variants=VARIANTS,
    papers={
        "*": Paper(
            "FastViT",
            "FastViT: A Fast Hybrid Vision Transformer using Structural Reparameterization",
            "Vasu et al.",
            2023,
            "2303.14189",
        )
    },
    smallest=("fastvit_sa12",),
    plotted=("fastvit_sa24",),
    shrunk={"FastViT": FastViTConfig(dims=(24, 48, 96, 192), depths=(1, 1, 2, 1), num_attention_stages=1)},
)
