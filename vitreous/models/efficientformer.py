"""EfficientFormer: pooling in the fine stages, attention in the last blocks of the coarsest stage.

"EfficientFormer: Vision Transformers at MobileNet Speed", Li et al. 2022 (arXiv 2206.01191); its attention is LeViT's
(``layers/wide_value.py``).

    x = relu(norm(conv(relu(norm(conv(image))))))                        cells of 4×4 pixels
    x = x + γ₁ ⊙ (mean₃ₓ₃(x) − x);        x = x + γ₂ ⊙ mlp(x)            on maps; the MLP has BatchNorm inside
    x = norm(conv(x))                                                    between stages: half the sides
    x = x + γ₁ ⊙ attention(norm(x));      x = x + γ₂ ⊙ mlp(norm(x))      the last blocks of the last stage, on tokens
    y = mean of two heads, each on the mean over the map of norm(x)

One head is trained on labels and one by a teacher (distillation). Most blocks have BatchNorm instead of LayerNorm,
since it can be folded into the preceding convolution for inference.

Difference from the published code: images of any size are accepted, with biases resampled by
:class:`~vitreous.layers.wide_value.DistanceTable`. In the config ``mixer="attention"`` means LeViT's attention.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import FullAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.drop import DropPath
from vitreous.layers.init import init_convnext, init_deit
from vitreous.layers.mixer import Mixer, MixerContext
from vitreous.layers.mlp import Mlp
from vitreous.layers.norm import MapScale
from vitreous.layers.patch import grid_of
from vitreous.layers.pooling import PoolDifference
from vitreous.layers.position import Grid
from vitreous.layers.wide_value import WideValueAttention
from vitreous.models.base import Config, Features, check_stages, drop_path_rates
from vitreous.models.family import Family, Paper
from vitreous.models.pyramid import Pyramid, Stage


@dataclass(frozen=True, kw_only=True)
class EfficientFormerConfig(Config):
    """Configuration of an EfficientFormer; the defaults are EfficientFormer-L1."""

    depths: tuple[int, ...] = (3, 2, 6, 4)
    dims: tuple[int, ...] = (48, 96, 224, 448)
    num_attention: int = 1  # attention blocks, the last ones of the last stage (all if it has fewer)
    num_heads: int = 8
    key_dim: int = 32  # channels per head of queries and keys
    value_dim: int = 128  # channels per head of values
    mixer: Mixer = FullAttention()  # of the attention blocks
    mlp_ratio: float = 4.0
    distilled: bool = True  # a second head, trained by a teacher
    norm_eps: float = 1e-5
    layer_scale: float | None = 1e-5  # initial γ of LayerScale; None for no LayerScale
    drop_rate: float = 0.0
    attention_drop_rate: float = 0.0
    drop_path_rate: float = 0.0  # of the last block, increasing linearly from 0 at the first

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(len(self.dims), depths=self.depths)
        if self.dims[0] % 2:
            raise ValueError(
                f"the first of dims must be even, since the stem has half as many channels; got {self.dims}"
            )
        if self.num_heads < 1:
            raise ValueError(f"num_heads must be at least 1, got {self.num_heads}")

    @property
    def depth(self) -> int:
        """Total number of blocks."""
        return sum(self.depths)

    @property
    def num_final_pool_blocks(self) -> int:
        """Number of pooling blocks in the last stage, before the attention blocks."""
        return max(0, self.depths[-1] - self.num_attention)

    def build(self) -> EfficientFormer:
        return EfficientFormer(self)


class PoolBlock(nn.Module):
    """Pooling block on maps, x = x + γ₁ ⊙ (mean₃ₓ₃(x) − x); x + γ₂ ⊙ mlp(x), with norms only in the MLP."""

    def __init__(
        self, dim: int, mlp: nn.Module, *, layer_scale: float | None = None, drop_path_rate: float = 0.0
    ) -> None:
        super().__init__()
        self.mixer = PoolDifference(3)
        self.scale1 = nn.Identity() if layer_scale is None else MapScale(dim, layer_scale)
        self.mlp = mlp
        self.scale2 = nn.Identity() if layer_scale is None else MapScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        x = x + self.drop_path(self.scale1(self.mixer(x)))
        return x + self.drop_path(self.scale2(self.mlp(x)))


class MapStage(Stage):
    """A stage whose pooling blocks take maps, and whose attention blocks take tokens."""

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        x = self.downsample(x)
        grid = (x.shape[2], x.shape[3])
        for block in self.blocks:
            if isinstance(block, PoolBlock):
                x = block(x)
            else:
                tokens = block(rearrange(x, "b d y x -> b (y x) d"), grid)
                x = rearrange(tokens, "b (y x) d -> b d y x", y=grid[0])
        return x


class EfficientFormer(Pyramid):
    """Stages from fine to coarse, final norm, mean pooling, one or two linear classifiers."""

    config: EfficientFormerConfig

    def __init__(self, config: EfficientFormerConfig) -> None:
        norm = nn.LayerNorm(config.dims[-1], eps=config.norm_eps)
        super().__init__(config, list(make_stages(config)), dims=config.dims, norm=norm)
        if config.distilled:
            self.head_names = ("head", "distill_head")
            self.distill_head = self.make_head(config.num_classes)
        for block in self.blocks:
            block.apply(init_convnext if isinstance(block, PoolBlock) else init_deit)

    def heads(self, features: Features) -> dict[str, Float[Tensor, "b k"]]:
        heads = super().heads(features)
        if self.config.distilled:
            heads["distill"] = self.distill_head(self.pooled(features))
        return heads


def make_stages(config: EfficientFormerConfig) -> Iterator[MapStage]:
    grid, last = config.image_size, len(config.dims) - 1
    rates = drop_path_rates(config.drop_path_rate, config.depths)
    for number, dim in enumerate(config.dims):
        stride = (2, 2) if number else (4, 4)
        grid = grid_of(grid, stride)
        num_pooling = config.num_final_pool_blocks if number == last else config.depths[number]
        blocks = [
            make_pool_block(config, dim, rate) if index < num_pooling else make_token_block(config, grid, index, rate)
            for index, rate in enumerate(rates[number])
        ]
        yield MapStage(make_downsample(config, number), blocks, stride=stride)


def make_downsample(config: EfficientFormerConfig, number: int) -> nn.Sequential:
    """Create the stem, or the downsampling convolution of a later stage."""
    dim = config.dims[number]
    if number:
        parts = {"conv": halving_conv(config.dims[number - 1], dim), "norm": nn.BatchNorm2d(dim)}
        return nn.Sequential(OrderedDict(parts))
    parts = {
        "conv1": halving_conv(config.num_channels, dim // 2),
        "norm1": nn.BatchNorm2d(dim // 2),
        "act1": nn.ReLU(),
        "conv2": halving_conv(dim // 2, dim),
        "norm2": nn.BatchNorm2d(dim),
        "act2": nn.ReLU(),
    }
    return nn.Sequential(OrderedDict(parts))


def halving_conv(dim_in: int, dim_out: int) -> nn.Conv2d:
    return nn.Conv2d(dim_in, dim_out, 3, stride=2, padding=1)


def make_pool_block(config: EfficientFormerConfig, dim: int, drop_path_rate: float) -> PoolBlock:
    mlp = make_map_mlp(dim, round(dim * config.mlp_ratio), config.drop_rate)
    return PoolBlock(dim, mlp, layer_scale=config.layer_scale, drop_path_rate=drop_path_rate)


def make_map_mlp(dim: int, hidden_dim: int, drop_rate: float) -> nn.Sequential:
    """Create an MLP on maps, norm(W₂ · GELU(norm(W₁ · x))), with BatchNorm."""
    parts = {
        "fc1": nn.Conv2d(dim, hidden_dim, 1),
        "norm1": nn.BatchNorm2d(hidden_dim),
        "act": nn.GELU(),
        "drop1": nn.Dropout(drop_rate),
        "fc2": nn.Conv2d(hidden_dim, dim, 1),
        "norm2": nn.BatchNorm2d(dim),
        "drop2": nn.Dropout(drop_rate),
    }
    return nn.Sequential(OrderedDict(parts))


def make_token_block(config: EfficientFormerConfig, grid: Grid, index: int, drop_path_rate: float) -> PreNormBlock:
    dim = config.dims[-1]
    context = config.context(
        dim=dim,
        num_heads=config.num_heads,
        grid=grid,
        position="added" if config.mixer.no_position.get("relative") else "relative",
        stage=len(config.dims) - 1,
        index=index,
    )
    return PreNormBlock(
        dim,
        make_mixer(config, context),
        Mlp(dim, round(dim * config.mlp_ratio), drop_rate=config.drop_rate),
        norm_eps=config.norm_eps,
        layer_scale=config.layer_scale,
        drop_path_rate=drop_path_rate,
    )


def make_mixer(config: EfficientFormerConfig, context: MixerContext) -> nn.Module:
    if not isinstance(config.mixer, FullAttention):
        return config.mixer.build(context)
    return WideValueAttention(
        context, key_dim=config.key_dim, value_dim=config.value_dim, temperature=config.mixer.temperature
    )


VARIANTS: dict[str, EfficientFormerConfig] = {
    "efficientformer_l1": EfficientFormerConfig(),
    "efficientformer_l3": EfficientFormerConfig(depths=(4, 4, 12, 6), dims=(64, 128, 320, 512), num_attention=4),
    "efficientformer_l7": EfficientFormerConfig(depths=(6, 6, 18, 8), dims=(96, 192, 384, 768), num_attention=8),
}

FAMILY = Family(
    name="efficientformer",
    config=EfficientFormerConfig,
    variants=VARIANTS,
    papers={
        "*": Paper(
            "EfficientFormer",
            "EfficientFormer: Vision Transformers at MobileNet Speed",
            "Li et al.",
            2022,
            "2206.01191",
        )
    },
    plotted=("efficientformer_l3",),
    shrunk={
        "EfficientFormer": EfficientFormerConfig(
            dims=(32, 64, 96, 128), depths=(1, 1, 2, 2), num_heads=4, key_dim=16, value_dim=64
        )
    },
)
