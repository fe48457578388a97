"""MetaFormer: PoolFormer (pooling), ConvFormer (convolution) and CAFormer (convolution, then attention).

"MetaFormer Is Actually What You Need for Vision", Yu et al. 2021 (arXiv 2111.11418): PoolFormer;
"MetaFormer Baselines for Vision", Yu et al. 2022 (2210.13452): PoolFormerV2, ConvFormer and CAFormer.

    x = norm(conv(image));   x = conv(norm(x))                  7×7 by 4; then, between stages, 3×3 by 2
    x = α ⊙ x + mixer(norm(x));   x = β ⊙ x + mlp(norm(x))      × depth; α and β are 1 in the two finest stages
    y = head(norm(mean over the last map))

The first paper's PoolFormer has neither α and β nor norms between stages; it has GELU instead of StarReLU, biases (the
pooling cancels those of the norm before it), LayerScale, and the final norm before mean pooling. PoolFormers normalize
over the whole image, the others per token. The heads of ConvFormer and CAFormer have a hidden layer. ``mixer`` replaces
the paper's mixer: in all stages, or in CAFormer, whose two finest stages are convolutions, in the other two.

Differences: images of any size are accepted. timm applies PoolFormer's final norm after mean pooling, like the second
paper (``final_norm="pooled"``); here it comes before, as in the authors' code and transformers. As in timm, ε is 1e-6
in the norm of the hidden layer (the authors: 1e-5), and PoolFormer's convolutions are also initialized with σ = 0.02.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import FullAttention
from vitreous.layers.block import Block, PreNormBlock
from vitreous.layers.init import init_convnext
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.mlp import Mlp, StarReLU
from vitreous.layers.norm import ImageNorm, LayerScale, MakeNorm
from vitreous.layers.patch import pad_to_patches
from vitreous.layers.pooling import Pool
from vitreous.layers.position import Grid
from vitreous.layers.separable import Separable
from vitreous.models.base import Features
from vitreous.models.family import Family, Paper
from vitreous.models.pyramid import Pyramid, StagedConfig, build_stages


@dataclass(frozen=True, kw_only=True)
class MetaFormerConfig(StagedConfig):
    """Configuration of a MetaFormer; the defaults are ConvFormer-S18's. ``num_heads`` applies to attention only."""

    dims: tuple[int, ...] = (64, 128, 320, 512)
    num_heads: tuple[int, ...] = (2, 4, 10, 16)
    mixer: Mixer = Separable()
    num_conv_stages: int = 0  # finest stages with separable convolutions; the others have ``mixer``
    mlp: Literal["gelu", "star_relu"] = "star_relu"
    mlp_ratio: float = 4.0
    bias: bool = False  # in blocks: of norms, MLPs and the attention's output projection
    qkv_bias: bool = False
    norm: Literal["token", "image"] = "token"  # what the norms of blocks compute mean and variance over
    norm_eps: float = 1e-6
    embed_norm: bool = True  # norms after the stem and before the downsampling convolutions
    layer_scale: float | None = None  # initial γ of LayerScale; None for no LayerScale
    num_scaled_stages: int = 2  # coarsest stages with α and β, learned scales of the residual stream
    final_norm: Literal["tokens", "pooled"] = "pooled"  # normalize before or after pooling
    hidden_head: bool = True  # the classifier has a hidden layer

    def build(self) -> MetaFormer:
        return MetaFormer(self)

    def make_norm(self, *, bias: bool) -> MakeNorm:
        return partial(nn.LayerNorm if self.norm == "token" else ImageNorm, bias=bias)


class Stem(nn.Module):
    """Stem, norm(conv(image)): 7×7 convolution with stride 4 and padding 2."""

    def __init__(self, dim_in: int, dim: int, norm: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim_in, dim, 7, stride=4, padding=2)
        self.norm = norm

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        return self.norm(rearrange(self.conv(pad_to_patches(images, (4, 4))), "b d y x -> b (y x) d"))


class Downsample(nn.Module):
    """Downsampling, conv(norm(x)): 3×3 convolution with stride 2."""

    def __init__(self, dim_in: int, dim: int, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.conv = nn.Conv2d(dim_in, dim, 3, stride=2, padding=1)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        normed = rearrange(self.norm(rearrange(x, "b c y x -> b y x c")), "b y x c -> b c y x")
        return rearrange(self.conv(normed), "b d y x -> b (y x) d")


class ScaledBlock(Block):
    """Pre-norm block with a scaled residual stream: α ⊙ x + mixer(norm(x)), then β ⊙ x + mlp(norm(x)).

    From NormFormer, Shleifer et al. 2021 (arXiv 2110.09456).
    """

    def __init__(self, dim: int, mixer: nn.Module, mlp: nn.Module, **options: Any) -> None:
        super().__init__(dim, mixer, mlp, **options)
        self.keep1 = LayerScale(dim, 1.0)
        self.keep2 = LayerScale(dim, 1.0)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        x = self.keep1(x) + self.drop_path(self.scale1(self.mixer(self.norm1(x), grid, num_prefix)))
        return self.keep2(x) + self.drop_path(self.scale2(self.mlp(self.norm2(x))))


class MlpHead(nn.Linear):
    """Classifier with a hidden layer, W · norm(relu(W₁ x)²)."""

    def __init__(self, dim: int, num_classes: int, *, hidden_dim: int, drop_rate: float = 0.0) -> None:
        super().__init__(hidden_dim, num_classes)
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.norm = nn.LayerNorm(hidden_dim, eps=1e-6)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b k"]:
        return super().forward(self.drop(self.norm(self.fc1(x).relu().square())))


class MetaFormer(Pyramid):
    """PoolFormer, ConvFormer or CAFormer, depending on the config."""

    config: MetaFormerConfig

    def __init__(self, config: MetaFormerConfig) -> None:
        dim = config.dims[-1]
        norms: dict[str, nn.Module] = {"tokens": nn.Identity(), "pooled": nn.Identity()}
        norms[config.final_norm] = (
            nn.LayerNorm(dim, eps=1e-6)
            if config.final_norm == "pooled"
            else config.make_norm(bias=True)(dim, eps=config.norm_eps)
        )
        stages = list(build_stages(config, (4, 4), make_downsample, make_block))
        super().__init__(config, stages, dims=config.dims, norm=norms["tokens"])
        self.pooled_norm = norms["pooled"]
        self.stages.apply(init_convnext)

    def pooled(self, features: Features) -> Float[Tensor, "b d"]:
        return self.pooled_norm(super().pooled(features))

    def make_head(self, num_classes: int) -> nn.Module:
        if num_classes == 0 or not self.config.hidden_head:
            return super().make_head(num_classes)
        dim, drop_rate = self.dims[-1], self.config.drop_rate
        return MlpHead(dim, num_classes, hidden_dim=4 * dim, drop_rate=drop_rate).apply(init_convnext)


def make_downsample(config: MetaFormerConfig, stage: int) -> nn.Module:
    dim_in, dim = (config.num_channels, *config.dims)[stage : stage + 2]
    kind, normed_dim = (Downsample, dim_in) if stage else (Stem, dim)
    norm = nn.LayerNorm(normed_dim, eps=config.norm_eps, bias=False) if config.embed_norm else nn.Identity()
    return kind(dim_in, dim, norm)


def make_block(config: MetaFormerConfig, context: MixerContext, drop_path_rate: float) -> Block:
    mixer = Separable() if context.stage < config.num_conv_stages else config.mixer
    mlp = Mlp(
        context.dim,
        round(context.dim * config.mlp_ratio),
        act=StarReLU if config.mlp == "star_relu" else nn.GELU,
        bias=config.bias,
        drop_rate=config.drop_rate,
    )
    kind = ScaledBlock if context.stage >= len(config.dims) - config.num_scaled_stages else PreNormBlock
    return kind(
        context.dim,
        mixer.build(replace(context, proj_bias=config.bias)),
        mlp,
        norm=config.make_norm(bias=config.bias),
        norm_eps=config.norm_eps,
        layer_scale=config.layer_scale,
        drop_path_rate=drop_path_rate,
    )


POOLFORMERV2 = MetaFormerConfig(mixer=Pool(), norm="image", hidden_head=False)
POOLFORMER = POOLFORMERV2.override(
    mlp="gelu",
    bias=True,
    qkv_bias=True,
    norm_eps=1e-5,
    embed_norm=False,
    layer_scale=1e-5,
    num_scaled_stages=0,
    final_norm="tokens",
)
CONVFORMER = MetaFormerConfig()
CAFORMER = MetaFormerConfig(mixer=FullAttention(), num_conv_stages=2)


def widths(*dims: int) -> dict[str, tuple[int, ...]]:
    """Set the widths of the stages, with heads of 32 channels."""
    return {"dims": dims, "num_heads": tuple(dim // 32 for dim in dims)}


POOL_SIZES: dict[str, dict[str, Any]] = {
    "s12": {"depths": (2, 2, 6, 2)},
    "s24": {"depths": (4, 4, 12, 4)},
    "s36": {"depths": (6, 6, 18, 6)},
    "m36": {"depths": (6, 6, 18, 6), **widths(96, 192, 384, 768)},
    "m48": {"depths": (8, 8, 24, 8), **widths(96, 192, 384, 768)},
}
GAMMA = {"s12": 1e-5, "s24": 1e-5, "s36": 1e-6, "m36": 1e-6, "m48": 1e-6}
CONV_SIZES: dict[str, dict[str, Any]] = {
    "s18": {"depths": (3, 3, 9, 3)},
    "s36": {"depths": (3, 12, 18, 3)},
    "m36": {"depths": (3, 12, 18, 3), **widths(96, 192, 384, 576)},
    "b36": {"depths": (3, 12, 18, 3), **widths(128, 256, 512, 768)},
}

VARIANTS: dict[str, MetaFormerConfig] = {
    **{f"poolformer_{size}": POOLFORMER.override(**row, layer_scale=GAMMA[size]) for size, row in POOL_SIZES.items()},
    **{f"poolformerv2_{size}": POOLFORMERV2.override(**row) for size, row in POOL_SIZES.items()},
    **{f"convformer_{size}": CONVFORMER.override(**row) for size, row in CONV_SIZES.items()},
    **{f"caformer_{size}": CAFORMER.override(**row) for size, row in CONV_SIZES.items()},
}

SHRUNK: dict[str, Any] = {"dims": (32, 64, 96, 128), "depths": (1, 1, 2, 1), "num_heads": (1, 2, 3, 4)}
BASELINES = "MetaFormer Baselines for Vision"

FAMILY = Family(
    name="metaformer",
    config=MetaFormerConfig,
    variants=VARIANTS,
    papers={
        "poolformer_*": Paper(
            "PoolFormer", "MetaFormer Is Actually What You Need for Vision", "Yu et al.", 2021, "2111.11418"
        ),
        "poolformerv2_*": Paper("PoolFormerV2", BASELINES, "Yu et al.", 2022, "2210.13452"),
        "convformer_*": Paper("ConvFormer", BASELINES, "Yu et al.", 2022, "2210.13452"),
        "caformer_*": Paper("CAFormer", BASELINES, "Yu et al.", 2022, "2210.13452"),
    },
    smallest=("poolformer_s12", "caformer_s18"),
    plotted=("caformer_s18", "poolformer_s24", "convformer_s18"),
    shrunk={
        "PoolFormer": POOLFORMER.override(**SHRUNK),
        "ConvFormer": CONVFORMER.override(**SHRUNK),
        "CAFormer": CAFORMER.override(**SHRUNK, hidden_head=False),
    },
)
