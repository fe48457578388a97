"""Hybrid ViT (R50+ViT): a Vision Transformer on the features of a BiT ResNet.

"An Image is Worth 16x16 Words", Dosovitskiy et al. 2020 (arXiv 2010.11929), section 3.1; the sizes with R26 and R of
"How to train your ViT?", Steiner et al. 2021 (2106.10270).

    features = resnet(image)
    z₀ = [class; patches of features · E] + positions, then as in ViT

The ResNet is that of "Big Transfer" (Kolesnikov et al. 2019, 1912.11370): weight standardization, GroupNorm and
TensorFlow's "SAME" padding, which leaves ⌈side / stride⌉ cells for any side. As in the original code and timm, the
activation follows the residual sum. ``patch_size`` is in pixels as in every other model: with a ResNet of stride 16, a
patch size of 32 means tokens of 2×2 features. The residual blocks belong to the stem; ``blocks`` are the encoder's.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.conv import MaxPoolSame, StdConv2d
from vitreous.layers.init import init_vit
from vitreous.layers.patch import PatchEmbed
from vitreous.models.family import Family, Paper
from vitreous.models.vit import SIZES, ViT, ViTConfig

WIDTHS = (64, 256, 512, 1024, 2048)  # of the root and each stage


@dataclass(frozen=True, kw_only=True)
class HybridConfig(ViTConfig):
    """Configuration of a hybrid ViT."""

    stem_depths: tuple[int, ...] | None = (3, 4, 9)  # residual blocks per stage; None for the ResNet's root alone

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stem != "patch":
            raise ValueError(f"the stem of a hybrid is its ResNet, got stem={self.stem!r}; set stem_depths instead")
        if len(self.stem_depths or ()) >= len(WIDTHS):
            raise ValueError(f"stem_depths must have at most {len(WIDTHS) - 1} numbers, got {self.stem_depths}")
        if any(side % self.stem_stride for side in self.patch_size):
            raise ValueError(
                f"patch_size {self.patch_size} must be a multiple of the ResNet's stride, {self.stem_stride} with "
                f"stem_depths={self.stem_depths}"
            )

    @property
    def stem_stride(self) -> int:
        """Stride of the ResNet in pixels: 4 for the root, doubled by every stage but the first."""
        return 4 << max(0, len(self.stem_depths or ()) - 1)

    def build(self) -> HybridViT:
        return HybridViT(self)


class Bottleneck(nn.Module):
    """Bottleneck block, relu(shortcut(x) + branch(x)) with 1×1, 3×3 and 1×1 convolutions, each with GroupNorm."""

    def __init__(self, dim_in: int, dim: int, *, stride: int = 1) -> None:
        super().__init__()
        width = dim // 4
        self.conv1 = StdConv2d(dim_in, width, 1)
        self.norm1 = group_norm(width)
        self.conv2 = StdConv2d(width, width, 3, stride=stride)
        self.norm2 = group_norm(width)
        self.conv3 = StdConv2d(width, dim, 1)
        self.norm3 = group_norm(dim)
        self.act = nn.ReLU()
        self.downsample = make_shortcut(dim_in, dim, stride) if dim_in != dim else nn.Identity()

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        y = self.act(self.norm1(self.conv1(x)))
        y = self.act(self.norm2(self.conv2(y)))
        return self.act(self.downsample(x) + self.norm3(self.conv3(y)))


class ResNetStem(nn.Module):
    """Embed images as tokens: ResNet features, then patch embedding."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.patch_size = config.patch_size
        root = WIDTHS[0]
        parts = {
            "conv": StdConv2d(config.num_channels, root, 7, stride=2),
            "norm": group_norm(root),
            "act": nn.ReLU(),
            "pool": MaxPoolSame(3, stride=2),
        }
        self.root = nn.Sequential(OrderedDict(parts))
        depths = config.stem_depths or ()
        self.stages = nn.Sequential(
            *(
                make_stage(dim_in, dim, depth, stride=2 if number else 1)
                for number, ((dim_in, dim), depth) in enumerate(zip(pairwise(WIDTHS), depths, strict=False))
            )
        )
        patch = config.patch_size[0] // config.stem_stride, config.patch_size[1] // config.stem_stride
        self.embed = PatchEmbed(patch, WIDTHS[len(depths)], config.dim, method="conv")
        self.apply(init_resnet)
        self.embed.apply(init_vit)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n d"]:
        return self.embed(self.stages(self.root(images)))


class HybridViT(ViT):
    """ViT with a ResNet as its stem."""

    config: HybridConfig

    def __init__(self, config: HybridConfig) -> None:
        super().__init__(config)
        self.stem = ResNetStem(config)


def group_norm(dim: int) -> nn.GroupNorm:
    return nn.GroupNorm(32, dim)


def make_shortcut(dim_in: int, dim: int, stride: int) -> nn.Sequential:
    return nn.Sequential(OrderedDict(conv=StdConv2d(dim_in, dim, 1, stride=stride), norm=group_norm(dim)))


def make_stage(dim_in: int, dim: int, depth: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(Bottleneck(dim_in, dim, stride=stride), *(Bottleneck(dim, dim) for _ in range(depth - 1)))


def init_resnet(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def hybrid(size: str, patch_size: int, stem_depths: tuple[int, ...] | None) -> HybridConfig:
    encoder = SIZES[size]
    return HybridConfig(
        dim=encoder.dim,
        depth=encoder.depth,
        num_heads=encoder.num_heads,
        patch_size=(patch_size, patch_size),
        stem_depths=stem_depths,
    )


VARIANTS: dict[str, HybridConfig] = {
    "vit_tiny_r_s16": hybrid("tiny", 32, None),
    "vit_small_r26_s32": hybrid("small", 32, (2, 2, 2, 2)),
    "vit_base_r26_s32": hybrid("base", 32, (2, 2, 2, 2)),
    "vit_base_r50_s16": hybrid("base", 16, (3, 4, 9)),
    "vit_large_r50_s32": hybrid("large", 32, (3, 4, 6, 3)),
}

FAMILY = Family(
    name="hybrid",
    config=HybridConfig,
    variants=VARIANTS,
    papers={
        "*": Paper(
            "hybrid ViT",
            "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
            "Dosovitskiy et al.",
            2020,
            "2010.11929",
        )
    },
    plotted=("vit_small_r26_s32",),
    shrunk={"hybrid, BiT + ViT": HybridConfig(patch_size=(8, 8), stem_depths=(1,), dim=64, depth=3, num_heads=2)},
    exports_any_size=True,
)
