"""Vision Transformer (ViT), and DeiT and DINOv2, which share its architecture.

"An Image is Worth 16x16 Words", Dosovitskiy et al. 2020 (arXiv 2010.11929);
"Training data-efficient image transformers & distillation through attention", Touvron et al. 2020 (2012.12877);
"Scaling Vision Transformers" (g, G), Zhai et al. 2021 (2106.04560);
"DINOv2", Oquab et al. 2023 (2304.07193) and "Vision Transformers Need Registers", Darcet et al. 2023 (2309.16588).

    z₀ = [class; patches · E] + positions
    z  = z + attention(norm(z));   z = z + mlp(norm(z))        × depth
    y  = head(norm(z)[class])

The token order is class, distillation, registers, patches. Differences from the papers: images of any size are accepted
(position embeddings are resampled, sides padded to a multiple of the patch); the stem may be convolutional; the
classifier may use mean or max pooling and is initialized with small random weights rather than zeros.

>>> model = vt.create_model("vit_small_16", num_classes=10)
>>> logits = model(torch.randn(2, 3, 224, 224))                    # (2, 10)
>>> features = model.features(torch.randn(2, 3, 224, 288))         # tokens (2, 1 + 14·18, 384), grid (14, 18)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import FullAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.drop import TokenDrop
from vitreous.layers.init import init_deit, init_vit
from vitreous.layers.mixer import Mixer, check_heads
from vitreous.layers.mlp import GatedMlp, Mlp
from vitreous.layers.patch import ConvStem, PatchEmbed, ResidualStem, grid_of
from vitreous.layers.position import Grid, Learned, LearnedAxes, SinCos
from vitreous.models.base import Backbone, Config, FeatureMap, Features, classifier
from vitreous.models.family import Family, Paper
from vitreous.spec import Size


@dataclass(frozen=True, kw_only=True)
class ViTConfig(Config):
    """Configuration of a ViT; the defaults are ViT-B/16."""

    patch_size: Size = (16, 16)
    stem: Literal["patch", "conv", "residual"] = "patch"  # PatchEmbed, ConvStem or ResidualStem
    dim: int = 768
    depth: int = 12
    num_heads: int = 12
    mixer: Mixer = FullAttention()
    mlp_ratio: float = 4.0  # hidden width of the MLP over dim
    mlp: Literal["gelu", "gelu_tanh", "swiglu"] = "gelu"
    qkv_bias: bool = True
    norm_eps: float = 1e-6
    layer_scale: float | None = None  # initial γ of LayerScale; None for no LayerScale

    position: Literal["none", "learned", "learned_2d", "sincos_1d", "sincos_2d", "relative", "rope"] = "learned"
    class_token: bool = True
    class_position: bool = True  # learned positions include the class and distillation tokens
    distilled: bool = False  # a distillation token with its own head (DeiT)
    num_registers: int = 0
    pool: Literal["class", "mean", "max"] = "class"
    final_norm: Literal["tokens", "pooled"] = "tokens"  # normalize before or after pooling

    drop_rate: float = 0.0
    attention_drop_rate: float = 0.0
    drop_path_rate: float = 0.0  # of the last block, increasing linearly from 0 at the first
    token_drop_rate: float = 0.0  # share of patches dropped in training
    init: Literal["vit", "deit"] = "vit"  # weight initialization

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.dim, self.num_heads)
        if not 1 <= self.depth <= 1024:
            raise ValueError(f"depth must lie between 1 and 1024, got {self.depth}")
        if self.pool == "class" and not self.class_token:
            raise ValueError("pool='class' needs class_token=True; choose pool='mean' or 'max' without one")
        if self.distilled and (self.pool != "class" or self.final_norm != "tokens"):
            raise ValueError(
                "distilled=True needs pool='class' and final_norm='tokens', which the distillation head relies on"
            )
        if self.token_drop_rate and self.position in ("relative", "rope"):
            raise ValueError(f"token_drop_rate needs positions added to the tokens, not position={self.position!r}")
        if self.image_size[0] < self.patch_size[0] or self.image_size[1] < self.patch_size[1]:
            raise ValueError(f"image_size {self.image_size} is smaller than patch_size {self.patch_size}")

    def build(self) -> ViT:
        return ViT(self)


class ViT(Backbone):
    """Vision Transformer: patch embedding, pre-norm transformer blocks, final norm, linear classifier."""

    config: ViTConfig
    blocks: nn.ModuleList

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        dim = config.dim
        self.strides, self.dims = (config.patch_size,), (dim,)
        make_stem = {"patch": PatchEmbed, "conv": ConvStem, "residual": ResidualStem}[config.stem]
        self.stem = make_stem(config.patch_size, config.num_channels, dim)
        self.class_token = nn.Parameter(torch.empty(1, 1, dim)) if config.class_token else None
        self.distill_token = nn.Parameter(torch.empty(1, 1, dim)) if config.distilled else None
        self.registers = nn.Parameter(torch.empty(1, config.num_registers, dim)) if config.num_registers else None
        self.num_prefix = config.class_token + config.distilled + config.num_registers

        grid = grid_of(config.image_size, config.patch_size)
        self.position = make_position(config, grid)
        self.drop = nn.Dropout(config.drop_rate)
        self.token_drop = TokenDrop(config.token_drop_rate)
        self.blocks = nn.ModuleList(make_block(config, grid, self.num_prefix, index) for index in range(config.depth))
        self.norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.head = classifier(dim, config.num_classes)
        if config.distilled:
            self.head_names = ("head", "distill_head")
            self.distill_head = classifier(dim, config.num_classes)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize the weights of stem, blocks and prefix tokens by the scheme ``config.init``."""
        init = {"vit": init_vit, "deit": init_deit}[self.config.init]
        for module in (self.stem, self.blocks):
            module.apply(init)
        for token in (self.class_token, self.distill_token, self.registers):
            if token is not None:
                nn.init.normal_(token, std=0.02)
        if self.config.init == "vit" and self.class_token is not None:
            nn.init.zeros_(self.class_token)

    def embed(self, images: Float[Tensor, "b c y x"], grid: Grid) -> Float[Tensor, "b n d"]:
        """Embed images as prefix tokens and patches, with position embeddings."""
        patches = self.stem(images)
        prefix = [token for token in (self.class_token, self.distill_token) if token is not None]
        if self.position is not None:
            table = self.position(grid, patches.device).to(patches.dtype)
            if num_rows := self.position.num_prefix:
                rows = table[:, :num_rows].split(1, dim=1)
                prefix = [token + row for token, row in zip(prefix, rows, strict=True)]
            patches = patches + table[:, num_rows:]
        if self.registers is not None:
            prefix.append(self.registers)
        return torch.cat([token.expand(images.shape[0], -1, -1) for token in prefix] + [patches], dim=1)

    def features(self, images: Float[Tensor, "b c y x"]) -> Features:
        self.check_images(images, smallest=self.config.patch_size)
        full_grid, num_prefix = grid_of((images.shape[2], images.shape[3]), self.config.patch_size), self.num_prefix
        x = self.token_drop(self.drop(self.embed(images, full_grid)), num_prefix)
        grid = full_grid if x.shape[1] == num_prefix + full_grid[0] * full_grid[1] else None  # None: tokens dropped
        for block in self.blocks:
            x = block(x, grid, num_prefix)
        if self.config.final_norm == "tokens":
            x = self.norm(x)
        return Features(x, grid, num_prefix, self.maps(x, grid))

    def maps(self, x: Float[Tensor, "b n d"], grid: Grid | None) -> tuple[FeatureMap, ...]:
        """Reshape patch tokens to a feature map; none if tokens were dropped."""
        if grid is None:
            return ()
        values = rearrange(x[:, self.num_prefix :], "b (y x) d -> b d y x", y=grid[0])
        return (FeatureMap(values, self.config.patch_size),)

    def pooled(self, features: Features) -> Float[Tensor, "b d"]:
        patches = features.tokens[:, features.num_prefix :]
        if self.config.pool == "class":
            pooled = features.tokens[:, 0]
        else:
            pooled = patches.mean(dim=1) if self.config.pool == "mean" else patches.amax(dim=1)
        return self.norm(pooled) if self.config.final_norm == "pooled" else pooled

    def read_tokens(self, num_prefix: int) -> slice:
        return slice(0, 1 + self.config.distilled) if self.config.pool == "class" else slice(num_prefix, None)

    def heads(self, features: Features) -> dict[str, Float[Tensor, "b k"]]:
        heads = super().heads(features)
        if self.config.distilled:
            heads["distill"] = self.distill_head(features.tokens[:, 1])
        return heads


def make_position(config: ViTConfig, grid: Grid) -> Learned | LearnedAxes | SinCos | None:
    """Create the position embedding that is added to the tokens; relative and rotary ones belong to the mixer."""
    num_prefix = config.class_token + config.distilled if config.class_position else 0
    match config.position:
        case "learned":
            return Learned(grid, config.dim, num_prefix)
        case "learned_2d":
            return LearnedAxes(grid, config.dim)
        case "sincos_1d":
            return SinCos(config.dim, axes=1)
        case "sincos_2d":
            return SinCos(config.dim, axes=2)
    return None


def make_block(config: ViTConfig, grid: Grid, num_prefix: int, index: int) -> PreNormBlock:
    context = config.context(
        dim=config.dim,
        num_heads=config.num_heads,
        grid=grid,
        num_prefix=num_prefix,
        position=config.position if config.position in ("relative", "rope") else "added",
        index=index,
        drops_tokens=config.token_drop_rate > 0,
    )
    hidden_dim = round(config.dim * config.mlp_ratio)
    if config.mlp == "swiglu":
        mlp: nn.Module = GatedMlp(config.dim, hidden_dim, drop_rate=config.drop_rate)
    else:
        act = partial(nn.GELU, "tanh") if config.mlp == "gelu_tanh" else nn.GELU
        mlp = Mlp(config.dim, hidden_dim, act=act, drop_rate=config.drop_rate)
    return PreNormBlock(
        config.dim,
        config.mixer.build(context),
        mlp,
        norm_eps=config.norm_eps,
        layer_scale=config.layer_scale,
        drop_path_rate=config.drop_path_rate * index / max(1, config.depth - 1),
    )


SIZES = {
    "tiny": ViTConfig(dim=192, depth=12, num_heads=3),
    "small": ViTConfig(dim=384, depth=12, num_heads=6),
    "base": ViTConfig(dim=768, depth=12, num_heads=12),
    "large": ViTConfig(dim=1024, depth=24, num_heads=16),
    "huge": ViTConfig(dim=1280, depth=32, num_heads=16),
    "giant": ViTConfig(dim=1408, depth=40, num_heads=16, mlp_ratio=6144 / 1408),
    "gigantic": ViTConfig(dim=1664, depth=48, num_heads=16, mlp_ratio=8192 / 1664),
}

DINOV2 = {
    **{size: SIZES[size] for size in ("small", "base", "large")},
    "giant": ViTConfig(dim=1536, depth=40, num_heads=24, mlp_ratio=4096 / 1536, mlp="swiglu"),
}
DINOV2_COMMON = {"image_size": 518, "patch_size": 14, "num_classes": 0, "layer_scale": 1e-5, "init": "deit"}

VARIANTS: dict[str, ViTConfig] = {
    **{
        f"vit_{size}_{patch}": config.override(patch_size=patch)
        for size, config in SIZES.items()
        for patch in (8, 14, 16, 32)
    },
    **{f"deit_{size}_16": SIZES[size].override(init="deit") for size in ("tiny", "small", "base")},
    **{
        f"deit_{size}_distilled_16": SIZES[size].override(init="deit", distilled=True)
        for size in ("tiny", "small", "base")
    },
    **{f"dinov2_{size}_14": config.override(**DINOV2_COMMON) for size, config in DINOV2.items()},
    **{f"dinov2_{size}_reg4_14": config.override(**DINOV2_COMMON, num_registers=4) for size, config in DINOV2.items()},
}

SHRUNK = ViTConfig(patch_size=(8, 8), dim=64, depth=4, num_heads=2)

FAMILY = Family(
    name="vit",
    config=ViTConfig,
    variants=VARIANTS,
    papers={
        "deit_*": Paper(
            "DeiT",
            "Training data-efficient image transformers & distillation through attention",
            "Touvron et al.",
            2020,
            "2012.12877",
        ),
        "dinov2_*": Paper(
            "DINOv2",
            "DINOv2: Learning Robust Visual Features without Supervision",
            "Oquab et al.",
            2023,
            "2304.07193",
        ),
        "*": Paper(
            "ViT",
            "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
            "Dosovitskiy et al.",
            2020,
            "2010.11929",
        ),
    },
    smallest=("vit_tiny_16", "deit_tiny_16", "dinov2_small_14"),
    plotted=("deit_small_16",),
    shrunk={"ViT": SHRUNK, "ViT, conv stem": SHRUNK.override(stem="conv")},
    exports_any_size=True,
)
