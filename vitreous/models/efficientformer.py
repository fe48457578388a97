"""EfficientFormer: pooling on maps as long as they are large, attention on the few tokens at the end.

"EfficientFormer: Vision Transformers at MobileNet Speed", Li et al. 2022 (arXiv 2206.01191); its attention is that of
"LeViT: a Vision Transformer in ConvNet's Clothing", Graham et al. 2021 (2104.01136).

    x = relu(norm(conv(relu(norm(conv(image))))))                        cells of 4×4 pixels
    x = x + γ₁ ⊙ (mean₃ₓ₃(x) − x);        x = x + γ₂ ⊙ mlp(x)            on maps; the MLP has BatchNorm inside
    x = norm(conv(x))                                                    between the stages: half the sides
    x = x + γ₁ ⊙ attention(norm(x));      x = x + γ₂ ⊙ mlp(norm(x))      the last blocks of the last stage, on tokens
    y = mean of two heads, each on the mean over the map of norm(x)

with logits q·k/√k + b(|Δy|, |Δx|). One head learns from the labels and one from a teacher. Once trained,
BatchNorm can be folded into the convolution before it, which is why most blocks have it and not LayerNorm.

Where we differ from the published code: it takes pictures of one size only, and we take any, reading the biases as
:class:`DistanceTable` says. In the config ``mixer="attention"`` means the attention above, with its wide values.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import Attend, Full, Layout
from vitreous.layers.block import PreNormBlock
from vitreous.layers.drop import DropPath
from vitreous.layers.init import init_convnext, init_deit
from vitreous.layers.mixer import Mixer, Place
from vitreous.layers.mlp import Mlp
from vitreous.layers.norm import LayerScale
from vitreous.layers.patch import grid_of
from vitreous.layers.position import Grid, Learned, coordinates, offsets, resample
from vitreous.models.base import Config, Features, check_stages, drop_path_rates
from vitreous.models.pyramid import Pyramid, Stage


@dataclass(frozen=True, kw_only=True)
class EfficientFormerConfig(Config):
    depths: tuple[int, ...] = (3, 2, 6, 4)
    dims: tuple[int, ...] = (48, 96, 224, 448)
    num_attention: int = 1  # blocks with attention: the last ones of the last stage, or all of it if it has fewer
    num_heads: int = 8
    key_dim: int = 32  # of each head; values are wider
    value_dim: int = 128
    mixer: Mixer = Full()  # of the blocks with attention
    mlp_ratio: float = 4.0
    distilled: bool = True  # a second head, to learn from a teacher
    norm_eps: float = 1e-5
    layer_scale: float | None = 1e-5  # initial γ; None: no LayerScale
    drop_rate: float = 0.0
    attention_drop_rate: float = 0.0
    drop_path_rate: float = 0.0  # of the last block; grows linearly from 0 at the first

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(len(self.dims), depths=self.depths)
        if self.dims[0] % 2:
            raise ValueError(f"dims must begin with an even number (the stem has half as many first), got {self.dims}")
        if self.num_heads < 1:
            raise ValueError(f"num_heads must be at least 1, got {self.num_heads}")

    @property
    def depth(self) -> int:
        """Blocks in all."""
        return sum(self.depths)

    @property
    def num_pooling_at_the_end(self) -> int:
        """Blocks of the last stage that come before those with attention."""
        return max(0, self.depths[-1] - self.num_attention)

    def build(self) -> EfficientFormer:
        return EfficientFormer(self)


class DistanceTable(Learned):
    """One learned row for each (|Δy|, |Δx|) between two cells of a grid: as many as it has cells, (0, 0) the first.

    For another grid the table is mirrored to all (Δy, Δx), resampled as these, and its quarter read again, so that
    (0, 0) stays where it is. Starts at zero.
    """

    def __init__(self, grid: Grid, dim: int) -> None:
        super().__init__(grid, dim)
        nn.init.zeros_(self.table)

    def forward(self, grid: Grid, device: torch.device | None = None) -> Float[Tensor, "1 n d"]:
        return resample_distances(self.table, self.grid, grid)

    def adapt(self, name: str, given: Tensor, old_grid: Grid) -> Tensor:
        return resample_distances(given, old_grid, self.grid)


def resample_distances(table: Float[Tensor, "1 n d"], old_grid: Grid, new_grid: Grid) -> Float[Tensor, "1 m d"]:
    if old_grid == new_grid:
        return table
    rows, columns = (torch.arange(1 - side, side, device=table.device).abs() for side in old_grid)
    mirrored = table[:, (rows[:, None] * old_grid[1] + columns).flatten()]
    signed = resample(mirrored, offsets(old_grid), offsets(new_grid))
    signed = rearrange(signed, "b (y x) d -> b y x d", y=offsets(new_grid)[0])
    return rearrange(signed[:, new_grid[0] - 1 :, new_grid[1] - 1 :], "b y x d -> b (y x) d")


class WideValueAttention(nn.Module):
    """Self-attention with few numbers to compare and many to say: values wider than queries and keys (LeViT).

    A bias for how far two cells are apart is added to the logits. In ``qkv`` the parts of a head stand together.
    """

    def __init__(self, place: Place, *, key_dim: int, value_dim: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.num_heads = place.num_heads
        self.widths = (key_dim, key_dim, value_dim)
        self.qkv = nn.Linear(place.dim, place.num_heads * sum(self.widths))
        self.relative = DistanceTable(place.grid, place.num_heads)
        self.attend = Attend(temperature=temperature, drop_rate=place.attention_drop_rate)
        self.proj = nn.Linear(place.num_heads * value_dim, place.dim)
        self.drop = nn.Dropout(place.drop_rate)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        q, k, v = rearrange(self.qkv(x), "b n (h e) -> b h n e", h=self.num_heads).split(self.widths, dim=-1)
        out = self.attend(q, k, v, bias=self.bias(grid), layout=Layout(grid, grid, num_prefix))
        return self.drop(self.proj(rearrange(out, "b h n v -> b n (h v)")))

    def bias(self, grid: Grid) -> Float[Tensor, "h n n"]:
        table = self.relative(grid)[0]
        down, across = ((axis[:, None] - axis).abs() for axis in coordinates(grid, table.device))
        return rearrange(table[down * grid[1] + across], "q k h -> h q k")


class PoolDifference(nn.Module):
    """mean₃ₓ₃(x) − x: how a cell's surroundings differ from it. At the border the mean is over the cells there are."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        return self.pool(x) - x


class MapScale(LayerScale):
    """LayerScale for maps."""

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        return x * self.gamma[:, None, None]


class PoolBlock(nn.Module):
    """x = x + γ₁ ⊙ (mean₃ₓ₃(x) − x);  x + γ₂ ⊙ mlp(x): a block on maps, normalised nowhere but in its MLP."""

    def __init__(
        self, dim: int, mlp: nn.Module, *, layer_scale: float | None = None, drop_path_rate: float = 0.0
    ) -> None:
        super().__init__()
        self.mixer = PoolDifference()
        self.scale1 = nn.Identity() if layer_scale is None else MapScale(dim, layer_scale)
        self.mlp = mlp
        self.scale2 = nn.Identity() if layer_scale is None else MapScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        x = x + self.drop_path(self.scale1(self.mixer(x)))
        return x + self.drop_path(self.scale2(self.mlp(x)))


class MapStage(Stage):
    """A stage whose blocks take maps, except those that need tokens."""

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d v w"]:
        x = self.downsample(x)
        grid = (x.shape[2], x.shape[3])
        for layer in self.layers:
            if isinstance(layer, PoolBlock):
                x = layer(x)
            else:
                tokens = layer(rearrange(x, "b d y x -> b (y x) d"), grid)
                x = rearrange(tokens, "b (y x) d -> b d y x", y=grid[0])
        return x


class EfficientFormer(Pyramid):
    """Stages from fine to coarse; the mean of the last map, normalised, is classified by each head."""

    config: EfficientFormerConfig

    def __init__(self, config: EfficientFormerConfig) -> None:
        norm = nn.LayerNorm(config.dims[-1], eps=config.norm_eps)
        super().__init__(config, list(make_stages(config)), dims=config.dims, norm=norm)
        if config.distilled:
            self.head_names = ("head", "distill_head")
            self.distill_head = self.make_head(config.num_classes)
        for block in self.blocks():
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
        num_pooling = config.num_pooling_at_the_end if number == last else config.depths[number]
        blocks = [
            make_pool_block(config, dim, rate) if index < num_pooling else make_token_block(config, grid, index, rate)
            for index, rate in enumerate(rates[number])
        ]
        yield MapStage(make_downsample(config, number), blocks, stride=stride)


def make_downsample(config: EfficientFormerConfig, number: int) -> nn.Sequential:
    """The stem, or the step from the stage before."""
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
    """norm(W₂ · GELU(norm(W₁ · x))) in every cell of a map, with BatchNorm."""
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
    place = Place(
        dim=dim,
        num_heads=config.num_heads,
        grid=grid,
        position="added" if config.mixer.no_position.get("relative") else "relative",
        stage=len(config.dims) - 1,
        index=index,
        drop_rate=config.drop_rate,
        attention_drop_rate=config.attention_drop_rate,
    )
    return PreNormBlock(
        dim,
        make_mixer(config, place),
        Mlp(dim, round(dim * config.mlp_ratio), drop_rate=config.drop_rate),
        norm_eps=config.norm_eps,
        layer_scale=config.layer_scale,
        drop_path_rate=drop_path_rate,
    )


def make_mixer(config: EfficientFormerConfig, place: Place) -> nn.Module:
    if not isinstance(config.mixer, Full):
        return config.mixer.build(place)
    return WideValueAttention(
        place, key_dim=config.key_dim, value_dim=config.value_dim, temperature=config.mixer.temperature
    )


VARIANTS: dict[str, EfficientFormerConfig] = {
    "efficientformer_l1": EfficientFormerConfig(),
    "efficientformer_l3": EfficientFormerConfig(depths=(4, 4, 12, 6), dims=(64, 128, 320, 512), num_attention=4),
    "efficientformer_l7": EfficientFormerConfig(depths=(6, 6, 18, 8), dims=(96, 192, 384, 768), num_attention=8),
}
