"""ResNet + transformer encoder: convolutions for local features, attention for global context.

The hybrid of "An Image is Worth 16x16 Words", Dosovitskiy et al. 2020 (arXiv 2010.11929), with any of torchvision's
ResNets, truncated after any stage, in place of the patch embedding.

    x = W · resnet(image)                                   one token per cell of the last stage kept
    z = [class; x] + positions
    z = z + attention(norm(z));   z = z + mlp(norm(z))      × depth
    y = head(norm(z)[class])

``hybrid_resnet("resnet50", num_stages=3, depth=8, dim=384, num_heads=6)`` creates the config from a ResNet's name, and
``model.start_from(vt.load("resnet50.in1k"))`` copies pretrained weights to the convolutions. In the feature maps, the
encoder's output replaces that of the last ResNet stage, which has the same stride.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import FullAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.init import init_deit, trunc_normal_
from vitreous.layers.mixer import Mixer, check_heads
from vitreous.layers.mlp import Mlp
from vitreous.layers.patch import grid_of
from vitreous.layers.position import Grid, Learned
from vitreous.models.base import (
    Backbone,
    Config,
    FeatureMap,
    Features,
    check_stages,
    classifier,
    drop_path_rates,
)
from vitreous.models.family import Family, Paper
from vitreous.models.resnet import VARIANTS as RESNETS
from vitreous.models.resnet import WIDTHS, ResNet, ResNetConfig
from vitreous.options import checked_choice


@dataclass(frozen=True, kw_only=True)
class HybridResNetConfig(Config):
    """Configuration of a truncated ResNet followed by a transformer encoder."""

    depths: tuple[int, ...] = (2, 2, 2, 6)  # residual blocks of each ResNet stage, then encoder blocks
    block: Literal["basic", "bottleneck"] = "basic"  # as in ResNetConfig
    stem: Literal["imagenet", "small"] = "imagenet"
    dim: int = 192
    num_heads: int = 3
    mixer: Mixer = FullAttention()
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    class_token: bool = True  # False: classify the mean of the tokens
    norm_eps: float = 1e-6
    drop_rate: float = 0.0
    attention_drop_rate: float = 0.0
    drop_path_rate: float = 0.0  # of the last block, increasing linearly from 0 at the encoder's first

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.num_stages <= len(WIDTHS):
            raise ValueError(
                f"depths must have 2 to {1 + len(WIDTHS)} numbers, the residual blocks of each ResNet stage "
                f"and the encoder blocks; got {self.depths}"
            )
        check_stages(self.num_stages + 1, depths=self.depths)
        check_heads(self.dim, self.num_heads)

    @property
    def num_stages(self) -> int:
        """Number of ResNet stages that are kept."""
        return len(self.depths) - 1

    @property
    def depth(self) -> int:
        """Total number of residual and encoder blocks."""
        return sum(self.depths)

    def resnet(self) -> ResNetConfig:
        """Create the config of the full ResNet; stages that will be dropped get a single block."""
        depths = (*self.depths[:-1], *(1,) * (len(WIDTHS) - self.num_stages))
        return ResNetConfig(
            image_size=self.image_size,
            num_channels=self.num_channels,
            num_classes=0,
            depths=depths,
            block=self.block,
            stem=self.stem,
        )

    def build(self) -> HybridResNet:
        return HybridResNet(self)


class HybridResNet(Backbone):
    """Truncated ResNet, 1×1 projection to tokens, transformer encoder, linear classifier."""

    config: HybridResNetConfig

    def __init__(self, config: HybridResNetConfig) -> None:
        super().__init__(config)
        cnn, kept = config.resnet().build(), config.num_stages
        self.stem, self.stages = cnn.stem, cnn.stages[:kept]
        self.strides, self.dims = cnn.strides[:kept], (*cnn.dims[: kept - 1], config.dim)
        self.num_prefix = int(config.class_token)
        grid = grid_of(config.image_size, self.strides[-1])
        self.project = nn.Conv2d(cnn.dims[kept - 1], config.dim, 1)
        self.class_token = nn.Parameter(torch.empty(1, 1, config.dim)) if config.class_token else None
        self.position = Learned(grid, config.dim, self.num_prefix)
        self.drop = nn.Dropout(config.drop_rate)
        self.layers = nn.ModuleList(make_encoder(config, grid))
        self.norm = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.head = classifier(config.dim, config.num_classes)
        self.layers.apply(init_deit)
        if self.class_token is not None:
            trunc_normal_(self.class_token, std=0.02)

    def start_from(self, trained: ResNet) -> None:
        """Copy the weights of stem and stages from a pretrained ResNet with the same configuration.

        Raises:
            ValueError: Block type, stem, channels or depths differ.
        """
        config, source, kept = self.config, trained.config, self.config.num_stages
        expected = config.block, config.stem, config.num_channels, config.depths[:kept]
        actual = source.block, source.stem, source.num_channels, source.depths[:kept]
        if actual != expected:
            raise ValueError(f"start_from needs a ResNet with (block, stem, channels, depths) {expected}, got {actual}")
        self.stem.load_state_dict(trained.stem.state_dict())
        self.stages.load_state_dict(trained.stages[:kept].state_dict())

    def features(self, images: Float[Tensor, "b c y x"]) -> Features:
        self.check_images(images, smallest=(1, 1))
        x, maps = self.stem(images), []
        for stage, stride in zip(self.stages, self.strides, strict=True):
            x = stage(x)
            maps.append(FeatureMap(x, stride))
        grid = (x.shape[2], x.shape[3])
        tokens = self.embed(x, grid)
        for layer in self.layers:
            tokens = layer(tokens, grid, self.num_prefix)
        tokens = self.norm(tokens)
        values = rearrange(tokens[:, self.num_prefix :], "b (y x) d -> b d y x", y=grid[0])
        return Features(tokens, grid, self.num_prefix, (*maps[:-1], FeatureMap(values, self.strides[-1])))

    def embed(self, x: Float[Tensor, "b c y x"], grid: Grid) -> Float[Tensor, "b n d"]:
        tokens = rearrange(self.project(x), "b d y x -> b (y x) d")
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        return self.drop(tokens + self.position(grid, tokens.device).to(tokens.dtype))

    def pooled(self, features: Features) -> Float[Tensor, "b d"]:
        return features.tokens[:, 0] if self.config.class_token else features.tokens.mean(dim=1)

    @property
    def blocks(self) -> list[nn.Module]:
        return [block for stage in self.stages for block in stage.children()] + list(self.layers)


def make_encoder(config: HybridResNetConfig, grid: Grid) -> list[PreNormBlock]:
    (rates,) = drop_path_rates(config.drop_path_rate, config.depths[-1:])
    blocks = []
    for index, rate in enumerate(rates):
        context = config.context(
            dim=config.dim, num_heads=config.num_heads, grid=grid, num_prefix=int(config.class_token), index=index
        )
        mixer = config.mixer.build(context)
        mlp = Mlp(config.dim, round(config.dim * config.mlp_ratio), drop_rate=config.drop_rate)
        blocks.append(PreNormBlock(config.dim, mixer, mlp, norm_eps=config.norm_eps, drop_path_rate=rate))
    return blocks


def hybrid_resnet(
    backbone: Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"],
    *,
    num_stages: int,
    depth: int,
    **options: Any,
) -> HybridResNetConfig:
    """Create a config: the named ResNet truncated after ``num_stages``, followed by ``depth`` encoder blocks."""
    resnet = RESNETS[checked_choice("backbone", backbone, tuple(RESNETS))]
    if not 1 <= num_stages <= len(WIDTHS):
        raise ValueError(f"num_stages must be between 1 and {len(WIDTHS)}, got {num_stages}")
    return HybridResNetConfig(depths=(*resnet.depths[:num_stages], depth), block=resnet.block, **options)


VARIANTS: dict[str, HybridResNetConfig] = {
    "hybrid_resnet18_tiny": hybrid_resnet("resnet18", num_stages=3, depth=6, dim=192, num_heads=3),
    "hybrid_resnet50_small": hybrid_resnet("resnet50", num_stages=3, depth=8, dim=384, num_heads=6),
}

FAMILY = Family(
    name="hybrid_resnet",
    config=HybridResNetConfig,
    variants=VARIANTS,
    papers={"*": Paper("ResNet + encoder", "A ResNet's features and a transformer encoder", "Vitreous", 2026)},
    plotted=("hybrid_resnet50_small",),
    shrunk={"hybrid, ResNet + encoder": HybridResNetConfig(depths=(1, 1, 2), dim=64, num_heads=2)},
    exports_any_size=True,
)
