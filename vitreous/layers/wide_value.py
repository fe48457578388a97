"""LeViT attention: values wider than queries and keys, with a learned bias for each distance |Δy|, |Δx|.

    output = softmax(q kᵀ / √k + b[|Δy|, |Δx|]) v            v has more channels than q and k

"LeViT: a Vision Transformer in ConvNet's Clothing", Graham et al. 2021 (arXiv 2104.01136).
"""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.attention import Attend
from vitreous.layers.layout import Layout
from vitreous.layers.mixer import MixerContext
from vitreous.layers.position import Grid, Learned, coordinates, offsets, resample
from vitreous.layers.tokens import Tokens


class DistanceTable(Learned):
    """Learned table with one row per distance (|Δy|, |Δx|) between two cells of a grid, starting with (0, 0).

    For another grid the table is mirrored to all offsets (Δy, Δx), resampled, and cropped to one quadrant, which keeps
    (0, 0) in place. Initialized to zero.
    """

    def __init__(self, grid: Grid, dim: int) -> None:
        super().__init__(grid, dim)
        nn.init.zeros_(self.table)

    def forward(self, grid: Grid, device: torch.device | None = None) -> Float[Tensor, "1 n d"]:
        return resample_distances(self.table, self.grid, grid)

    def adapt(self, name: str, table: Tensor, old_grid: Grid) -> Tensor:
        return resample_distances(table, old_grid, self.grid)


def resample_distances(table: Float[Tensor, "1 n d"], old_grid: Grid, new_grid: Grid) -> Float[Tensor, "1 m d"]:
    if old_grid == new_grid:
        return table
    rows, columns = (torch.arange(1 - side, side, device=table.device).abs() for side in old_grid)
    mirrored = table[:, (rows[:, None] * old_grid[1] + columns).flatten()]
    signed = resample(mirrored, offsets(old_grid), offsets(new_grid))
    signed = rearrange(signed, "b (y x) d -> b y x d", y=offsets(new_grid)[0])
    return rearrange(signed[:, new_grid[0] - 1 :, new_grid[1] - 1 :], "b y x d -> b (y x) d")


class WideValueAttention(nn.Module):
    """Multi-head self-attention with values wider than queries and keys, and a bias per distance on the logits.

    The channels of ``qkv`` are grouped by head: q, k and v of the first head, then of the second, and so on.
    """

    def __init__(self, context: MixerContext, *, key_dim: int, value_dim: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.num_heads = context.num_heads
        self.widths = (key_dim, key_dim, value_dim)
        self.qkv = nn.Linear(context.dim, context.num_heads * sum(self.widths))
        self.relative = DistanceTable(context.grid, context.num_heads)
        self.attend = Attend(temperature=temperature, drop_rate=context.attention_drop_rate)
        self.proj = nn.Linear(context.num_heads * value_dim, context.dim)
        self.drop = nn.Dropout(context.drop_rate)

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        q, k, v = rearrange(self.qkv(x), "b n (h e) -> b h n e", h=self.num_heads).split(self.widths, dim=-1)
        tokens = Tokens(grid, num_prefix)
        out = self.attend(q, k, v, bias=self.bias(grid), layout=Layout(tokens, tokens))
        return self.drop(self.proj(rearrange(out, "b h n v -> b n (h v)")))

    def bias(self, grid: Grid) -> Float[Tensor, "h n n"]:
        table = self.relative(grid)[0]
        down, across = ((axis[:, None] - axis).abs() for axis in coordinates(grid, table.device))
        return rearrange(table[down * grid[1] + across], "q k h -> h q k")
