"""XCiT: cross-covariance attention between channels, and depthwise convolutions between neighboring tokens.

"XCiT: Cross-Covariance Image Transformers", El-Nouby et al. 2021 (arXiv 2106.09681); class attention is from
"Going deeper with Image Transformers", Touvron et al. 2021 (arXiv 2103.17239).

    x = convolutions(image) + waves · W
    x = x + covariance(norm(x));   x = x + local(norm(x));   x = x + mlp(norm(x))        × depths[0]
    c = c + attention(norm(c), norm([c; x]));   c = norm(c);   c = c + mlp(c)            × depths[1]
    y = head(norm(c))

Every branch has a LayerScale. The class token c is added after the covariance blocks; the class-attention blocks exist
only to update it. (In the original code they also transform the patches, see :class:`ClassBlock`.) Difference from the
original code: images of any size are accepted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import CrossAttention
from vitreous.layers.block import Block
from vitreous.layers.covariance import Covariance
from vitreous.layers.init import init_deit, trunc_normal_
from vitreous.layers.layout import Layout
from vitreous.layers.mixer import Mixer, MixerContext, check_heads
from vitreous.layers.mlp import Mlp
from vitreous.layers.norm import LayerScale
from vitreous.layers.patch import grid_of, stem_widths
from vitreous.layers.position import Grid, coordinates, waves
from vitreous.layers.tokens import Tokens
from vitreous.models.base import Backbone, Config, FeatureMap, Features, check_stages, classifier
from vitreous.models.family import Family, Paper
from vitreous.spec import Size


@dataclass(frozen=True, kw_only=True)
class XCiTConfig(Config):
    """Configuration of an XCiT; the defaults are XCiT-T12/16."""

    patch_size: Size = (16, 16)
    dim: int = 192
    depths: tuple[int, ...] = (12, 2)  # covariance blocks, then class-attention blocks
    num_heads: int = 4
    mixer: Mixer = Covariance()  # of the covariance blocks
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    norm_eps: float = 1e-6
    layer_scale: float | None = 1.0  # initial γ of LayerScale; None for no LayerScale
    norm_patches: bool = True  # class-attention blocks normalize patches as well as the class token
    drop_rate: float = 0.0
    attention_drop_rate: float = 0.0
    drop_path_rate: float = 0.0  # of every covariance block; 0 in class-attention blocks

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.dim, self.num_heads)
        check_stages(2, depths=self.depths)

    @property
    def depth(self) -> int:
        """Total number of covariance and class-attention blocks."""
        return sum(self.depths)

    def build(self) -> XCiT:
        return XCiT(self)


class Stem(nn.Module):
    """Convolutional stem: 3×3 convolutions with stride 2 until a cell is a patch, with BatchNorm, and GELU in between.

    Any image size gives ⌈side / patch⌉ cells.
    """

    def __init__(self, patch_size: Size, num_channels: int, dim: int) -> None:
        super().__init__()
        widths = [num_channels, *stem_widths(patch_size, dim, narrowest=1)]
        first, *others = [halve(a, b) for a, b in pairwise(widths)]
        self.convs = nn.Sequential(first, *(part for conv in others for part in (nn.GELU(), conv)))

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        return self.convs(images)


def halve(width_in: int, width_out: int) -> nn.Sequential:
    conv = nn.Conv2d(width_in, width_out, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width_out))


class FourierPosition(nn.Module):
    """Projected sinusoidal position embedding: sin and cos of p / T^(2i/w) with p = 2π · row / rows, same for columns.

    Positions are relative to the size of the image, so that no resampling is needed.
    """

    def __init__(self, dim: int, *, num_waves: int = 32, temperature: float = 10_000.0) -> None:
        super().__init__()
        self.num_waves = num_waves
        self.temperature = temperature
        self.proj = nn.Conv2d(2 * num_waves, dim, 1)

    def forward(self, grid: Grid) -> Float[Tensor, "1 d y x"]:
        weight = self.proj.weight
        counts = [axis + 1 for axis in coordinates(grid, weight.device)]
        phases = [2 * math.pi * count / (count[-1] + 1e-6) for count in counts]
        table = torch.cat([waves(phase, self.num_waves, self.temperature) for phase in phases], dim=-1)
        return self.proj(rearrange(table, "(y x) w -> 1 w y x", y=grid[0]).to(weight.dtype))


class LocalPatchInteraction(nn.Module):
    """Local patch interaction, conv(norm(GELU(conv(x)))): two depthwise 3×3 convolutions."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.act = nn.GELU()
        self.norm = nn.BatchNorm2d(dim)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid) -> Float[Tensor, "b n d"]:
        x = rearrange(x, "b (y x) d -> b d y x", y=grid[0])
        return rearrange(self.conv2(self.norm(self.act(self.conv1(x)))), "b d y x -> b (y x) d")


class CovarianceBlock(Block):
    """Covariance block: cross-covariance attention, local patch interaction, MLP, each in a residual branch."""

    def __init__(self, config: XCiTConfig, mixer: nn.Module) -> None:
        super().__init__(
            config.dim,
            mixer,
            make_mlp(config),
            norm_eps=config.norm_eps,
            layer_scale=config.layer_scale,
            drop_path_rate=config.drop_path_rate,
        )
        self.local_norm = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.local = LocalPatchInteraction(config.dim)
        self.local_scale = nn.Identity() if config.layer_scale is None else LayerScale(config.dim, config.layer_scale)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid) -> Float[Tensor, "b n d"]:
        x = x + self.drop_path(self.scale1(self.mixer(self.norm1(x), grid)))
        x = x + self.drop_path(self.local_scale(self.local(self.local_norm(x), grid)))
        return x + self.drop_path(self.scale2(self.mlp(self.norm2(x))))


class ClassBlock(Block):
    """Class-attention block: only the class token is updated by attention to all tokens and by the MLP.

    As in the original code the patches x are not constant: x + γ ⊙ norm(x), normalized again if ``norm_patches``, times
    two.
    """

    def __init__(self, config: XCiTConfig) -> None:
        attention = CrossAttention(
            config.dim,
            config.num_heads,
            qkv_bias=config.qkv_bias,
            drop_rate=config.drop_rate,
            attention_drop_rate=config.attention_drop_rate,
        )
        super().__init__(
            config.dim, attention, make_mlp(config), norm_eps=config.norm_eps, layer_scale=config.layer_scale
        )
        self.norm_patches = config.norm_patches

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid, num_prefix: int) -> Float[Tensor, "b n d"]:
        normed = self.norm1(x)
        layout = Layout(Tokens(None, num_prefix), Tokens(grid, num_prefix))
        token = self.mixer(normed[:, :num_prefix], normed, layout=layout)
        x = x + self.scale1(torch.cat([token, normed[:, num_prefix:]], dim=1))
        token, patches = x[:, :num_prefix], x[:, num_prefix:]
        token, patches = self.norm2(token), self.norm2(patches) if self.norm_patches else patches
        return torch.cat([token + self.scale2(self.mlp(token)), 2 * patches], dim=1)


def make_mlp(config: XCiTConfig) -> Mlp:
    return Mlp(config.dim, round(config.dim * config.mlp_ratio), drop_rate=config.drop_rate)


class XCiT(Backbone):
    """Cross-covariance image transformer."""

    config: XCiTConfig

    def __init__(self, config: XCiTConfig) -> None:
        super().__init__(config)
        num_covariance, num_class = config.depths
        self.strides, self.dims = (config.patch_size,), (config.dim,)
        self.stem = Stem(config.patch_size, config.num_channels, config.dim)
        self.position = FourierPosition(config.dim)
        self.drop = nn.Dropout(config.drop_rate)
        self.class_token = nn.Parameter(torch.empty(1, 1, config.dim))
        self.layers = nn.ModuleList(
            CovarianceBlock(config, config.mixer.build(block_context(config, index))) for index in range(num_covariance)
        )
        self.class_layers = nn.ModuleList(ClassBlock(config) for _ in range(num_class))
        self.norm = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.head = classifier(config.dim, config.num_classes)
        for layers in (self.layers, self.class_layers):
            layers.apply(init_deit)
        trunc_normal_(self.class_token, std=0.02)

    def features(self, images: Float[Tensor, "b c y x"]) -> Features:
        self.check_images(images, smallest=(1, 1))
        cells = self.stem(images)
        grid = (cells.shape[2], cells.shape[3])
        x = self.drop(rearrange(cells + self.position(grid), "b d y x -> b (y x) d"))
        for layer in self.layers:
            x = layer(x, grid)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1)
        for layer in self.class_layers:
            x = layer(x, grid, 1)
        x = self.norm(x)
        values = rearrange(x[:, 1:], "b (y x) d -> b d y x", y=grid[0])
        return Features(x, grid, 1, (FeatureMap(values, self.config.patch_size),))

    def pooled(self, features: Features) -> Float[Tensor, "b d"]:
        return features.tokens[:, 0]

    @property
    def blocks(self) -> list[nn.Module]:
        return [*self.layers, *self.class_layers]


def block_context(config: XCiTConfig, index: int) -> MixerContext:
    grid = grid_of(config.image_size, config.patch_size)
    return config.context(dim=config.dim, num_heads=config.num_heads, grid=grid, index=index)


DEEP = {"depths": (24, 2), "layer_scale": 1e-5}
SIZES = {
    "nano_12": XCiTConfig(dim=128, num_heads=4, norm_patches=False),
    "tiny_12": XCiTConfig(dim=192, num_heads=4),
    "small_12": XCiTConfig(dim=384, num_heads=8),
    "tiny_24": XCiTConfig(dim=192, num_heads=4).override(**DEEP),
    "small_24": XCiTConfig(dim=384, num_heads=8).override(**DEEP),
    "medium_24": XCiTConfig(dim=512, num_heads=8).override(**DEEP),
    "large_24": XCiTConfig(dim=768, num_heads=16).override(**DEEP),
}
VARIANTS: dict[str, XCiTConfig] = {
    f"xcit_{size}_{patch}": config.override(patch_size=patch) for size, config in SIZES.items() for patch in (16, 8)
}

FAMILY = Family(
    name="xcit",
    config=XCiTConfig,
    variants=VARIANTS,
    papers={"*": Paper("XCiT", "XCiT: Cross-Covariance Image Transformers", "El-Nouby et al.", 2021, "2106.09681")},
    plotted=("xcit_small_12_16",),
    shrunk={"XCiT": XCiTConfig(patch_size=(8, 8), dim=64, depths=(3, 1), num_heads=2)},
    exports_any_size=True,
)
