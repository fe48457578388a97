"""Numbers that say how attention spreads, how far it reaches, and how layers, heads and tokens compare.

Every measure is a function of tensors. A *whole* matrix is one block's attention (b, h, n, n) over all tokens of the
image: prefix tokens first, then the cells of the grid in raster order. Queries are rows, keys are columns. A row sums
to 1, or to 0 for a token that does not ask in this block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.layers.cells import as_tokens
from vitreous.layers.position import Grid, coordinates


def entropy(weights: Float[Tensor, "*b q k"]) -> Float[Tensor, "*b q"]:
    """H(q) = −Σₖ w(q, k) ln w(q, k), in nats: 0 for a query that looks at one key, ln(keys) for one that looks at all.

    exp(H) is the number of keys that a query looks at, as if evenly. 0 ln 0 counts as 0.
    """
    return torch.special.entr(weights).sum(dim=-1)


def mean_distance(
    whole: Float[Tensor, "b h n n"], grid: Grid, num_prefix: int, *, stride: tuple[float, float]
) -> Float[Tensor, "b h"]:
    """D = mean over cells q of Σₖ w(q, k) ‖p(q) − p(k)‖ / Σₖ w(q, k), over cells k, in pixels.

    A cell's place p is its row and column times ``stride``, the pixels (y, x) from one cell to the next. Prefix tokens
    have no place: neither their looks nor the looks at them count. A cell that looks at no cell is left out; where none
    looks at any, the distance is NaN.
    """
    check_tokens(whole.shape[-1], grid, num_prefix)
    y, x = (axis * float(step) for axis, step in zip(coordinates(grid, whole.device), stride, strict=True))
    distance = torch.hypot(y[:, None] - y, x[:, None] - x).to(whole.dtype)
    among_cells = whole[:, :, num_prefix:, num_prefix:]
    reach = torch.einsum("bhqk, qk -> bhq", among_cells, distance) / among_cells.sum(dim=-1)
    return reach.nanmean(dim=-1)


def mean_map(whole: Float[Tensor, "b h n n"], grid: Grid, num_prefix: int) -> Float[Tensor, "b y x"]:
    """M(k) = n · mean of w(q, k) over all heads and the queries that ask: how much each cell is looked at.

    1 is an even share among all n tokens, so that a map below 1 everywhere says that prefix tokens are looked at more.
    """
    received = whole.sum(dim=(1, 2))
    return on_grid(whole.shape[-1] * received / received.sum(dim=-1, keepdim=True), grid, num_prefix)


def spectrum(matrix: Float[Tensor, "*b q k"]) -> Float[Tensor, "*b r"]:
    """σ₁ ≥ σ₂ ≥ …, the singular values of each matrix U diag(σ) Vᵀ."""
    return torch.linalg.svdvals(matrix)


def rank(matrix: Float[Tensor, "*b q k"], tolerance: float | None = None) -> Int[Tensor, "*b"]:
    """How many singular values are larger than ``tolerance`` · σ₁.

    Without a tolerance those count that rounding cannot explain: max(q, k) · ε, with ε the precision of the numbers.
    """
    if tolerance is None:
        tolerance = max(matrix.shape[-2:]) * torch.finfo(matrix.dtype).eps
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance is a share of the largest singular value, from 0 to below 1; got {tolerance}")
    values = spectrum(matrix)
    return (values > tolerance * values[..., :1]).sum(dim=-1)


def effective_rank(matrix: Float[Tensor, "*b q k"]) -> Float[Tensor, "*b"]:
    """exp(−Σᵢ pᵢ ln pᵢ) with pᵢ = σᵢ / Σⱼ σⱼ: how many directions a matrix uses, as if evenly; 0 for zeros.

    "The effective rank: a measure of effective dimensionality", Roy and Vetterli 2007.
    """
    values = spectrum(matrix)
    total = values.sum(dim=-1, keepdim=True)
    directions = entropy(values / total.clamp_min(torch.finfo(values.dtype).tiny)).exp()
    return torch.where(total.squeeze(-1) > 0, directions, 0.0)


def head_similarity(wholes: Sequence[Float[Tensor, "b h n n"]]) -> Float[Tensor, "b m m"]:
    """S(i, j) = ⟨Aᵢ, Aⱼ⟩ / (‖Aᵢ‖ ‖Aⱼ‖) for every two heads: those of the first layer first, then the next layer's.

    Weights are never negative, so that even heads with nothing in common lie above 0.
    """
    check_one_set((whole.shape[-1] for whole in wholes), "similarity")
    return cosines(torch.cat([rearrange(whole, "b h q k -> b h (q k)") for whole in wholes], dim=1))


def layer_similarity(wholes: Sequence[Float[Tensor, "b h n n"]]) -> Float[Tensor, "b m m"]:
    """S(i, j) = ⟨Āᵢ, Āⱼ⟩ / (‖Āᵢ‖ ‖Āⱼ‖) for every two layers, with Ā the mean over a layer's heads."""
    return head_similarity([whole.mean(dim=1, keepdim=True) for whole in wholes])


def stream_similarity(streams: Sequence[Float[Tensor, "b ..."]]) -> Float[Tensor, "b m m"]:
    """S(i, j) = ‖XⱼᵀXᵢ‖² / (‖XᵢᵀXᵢ‖ ‖XⱼᵀXⱼ‖): linear CKA of every two layers' tokens, centered over the image.

    It is the cosine of the Gram matrices X Xᵀ, so that widths may differ and rotating or scaling a layer changes
    nothing. Streams are tokens (b, n, d) or maps (b, c, y, x). "Similarity of Neural Network Representations
    Revisited", Kornblith et al. 2019 (arXiv 1905.00414).
    """
    tokens = [as_tokens(stream) if stream.ndim == 4 else stream for stream in streams]
    check_one_set((stream.shape[1] for stream in tokens), "similarity")
    centered = [stream - stream.mean(dim=1, keepdim=True) for stream in tokens]
    grams = [rearrange(stream @ stream.transpose(-2, -1), "b q k -> b (q k)") for stream in centered]
    return cosines(torch.stack(grams, dim=1))


def outliers(norms: Float[Tensor, "b n"], *, factor: float = 3.0) -> Bool[Tensor, "b n"]:
    """‖x(i)‖ > factor · median over the image's tokens of ‖x‖: tokens that no longer stand for their cell.

    Large models keep notes about the whole image in a few tokens of dull background, whose norms are several times
    those of the rest ("Vision Transformers Need Registers", Darcet et al. 2023, arXiv 2309.16588). The paper cuts at a
    norm read off each model's histogram. A multiple of the median needs no histogram: the few do not move the median,
    and the scale of all norms cancels. The spread of the norms would be a worse yardstick: where all are nearly equal,
    plain scatter would count as an outlier.
    """
    return norms > factor * norms.quantile(0.5, dim=-1, keepdim=True)


def on_grid(tokens: Float[Tensor, "*b n"], grid: Grid, num_prefix: int) -> Float[Tensor, "*b y x"]:
    """One number per token → those of the cells, laid out as they lie in the image."""
    check_tokens(tokens.shape[-1], grid, num_prefix)
    return tokens[..., num_prefix:].unflatten(-1, grid)


def check_tokens(num_tokens: int, grid: Grid, num_prefix: int) -> None:
    expected = num_prefix + grid[0] * grid[1]
    if num_tokens != expected:
        raise ValueError(
            f"a grid of {grid[0]}×{grid[1]} cells and {num_prefix} prefix tokens are {expected} tokens, "
            f"got {num_tokens}; give the grid and num_prefix of this very layer"
        )


def check_one_set(num_tokens: Iterable[int], purpose: str) -> None:
    """All layers, of which each has so many tokens, must speak of the same ones."""
    counts = sorted(set(num_tokens))
    if not counts:
        raise ValueError(f"{purpose} needs at least one layer, got none; record some that attend over tokens")
    if len(counts) > 1:
        raise ValueError(
            f"{purpose} needs one set of tokens in all layers, got {' and '.join(map(str, counts))} tokens; "
            f"choose the layers of one stage"
        )


def cosines(vectors: Float[Tensor, "b m f"]) -> Float[Tensor, "b m m"]:
    unit = F.normalize(vectors, dim=-1)
    return unit @ unit.transpose(-2, -1)
