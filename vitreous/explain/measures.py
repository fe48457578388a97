"""Measures of attention (entropy, distance, rank), similarity of heads and layers, and outlier tokens.

Every measure is a function of tensors. A *token matrix* is the attention of one block (b, h, n, n) over all tokens of
the image: prefix tokens first, then the cells of the grid in raster order; queries are rows, keys are columns. A row
sums to 1, or to 0 for a token without a query in this block.
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
    """Entropy H(q) = −Σₖ w(q, k) ln w(q, k) in nats, from 0 (a single key) to ln(keys) (uniform).

    exp(H) is the effective number of keys that a query attends to. 0 ln 0 counts as 0.
    """
    return torch.special.entr(weights).sum(dim=-1)


def mean_distance(
    matrix: Float[Tensor, "b h n n"], grid: Grid, num_prefix: int, *, stride: tuple[float, float]
) -> Float[Tensor, "b h"]:
    """Mean attention distance D = mean over cells q of Σₖ w(q, k) ‖p(q) − p(k)‖ / Σₖ w(q, k), in pixels.

    The position p of a cell is its row and column times ``stride``, the pixels (y, x) per cell. Prefix tokens have no
    position and are excluded as queries and as keys. Cells that attend to no cell are left out; if there is no other,
    the distance is NaN.
    """
    check_tokens(matrix.shape[-1], grid, num_prefix)
    y, x = (axis * float(step) for axis, step in zip(coordinates(grid, matrix.device), stride, strict=True))
    distance = torch.hypot(y[:, None] - y, x[:, None] - x).to(matrix.dtype)
    among_cells = matrix[:, :, num_prefix:, num_prefix:]
    reach = torch.einsum("bhqk, qk -> bhq", among_cells, distance) / among_cells.sum(dim=-1)
    return reach.nanmean(dim=-1)


def mean_map(matrix: Float[Tensor, "b h n n"], grid: Grid, num_prefix: int) -> Float[Tensor, "b y x"]:
    """Attention received by each cell: M(k) = n · mean of w(q, k) over all heads and queries.

    1 is uniform over all n tokens: a map that is below 1 everywhere means that prefix tokens receive more than cells.
    """
    received = matrix.sum(dim=(1, 2))
    return on_grid(matrix.shape[-1] * received / received.sum(dim=-1, keepdim=True), grid, num_prefix)


def spectrum(matrix: Float[Tensor, "*b q k"]) -> Float[Tensor, "*b r"]:
    """Singular values σ₁ ≥ σ₂ ≥ … of each matrix."""
    return torch.linalg.svdvals(matrix)


def rank(matrix: Float[Tensor, "*b q k"], tolerance: float | None = None) -> Int[Tensor, "*b"]:
    """Numerical rank: the number of singular values above ``tolerance`` · σ₁.

    The default tolerance is max(q, k) · ε, with ε the machine epsilon of the dtype.
    """
    if tolerance is None:
        tolerance = max(matrix.shape[-2:]) * torch.finfo(matrix.dtype).eps
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance is relative to the largest singular value and must lie in [0, 1), got {tolerance}")
    values = spectrum(matrix)
    return (values > tolerance * values[..., :1]).sum(dim=-1)


def effective_rank(matrix: Float[Tensor, "*b q k"]) -> Float[Tensor, "*b"]:
    """Effective rank exp(−Σᵢ pᵢ ln pᵢ) with pᵢ = σᵢ / Σⱼ σⱼ; 0 for a zero matrix.

    "The effective rank: a measure of effective dimensionality", Roy and Vetterli 2007.
    """
    values = spectrum(matrix)
    total = values.sum(dim=-1, keepdim=True)
    exp_entropy = entropy(values / total.clamp_min(torch.finfo(values.dtype).tiny)).exp()
    return torch.where(total.squeeze(-1) > 0, exp_entropy, 0.0)


def head_similarity(matrices: Sequence[Float[Tensor, "b h n n"]]) -> Float[Tensor, "b m m"]:
    """Cosine similarity S(i, j) = ⟨Aᵢ, Aⱼ⟩ / (‖Aᵢ‖ ‖Aⱼ‖) of all heads, ordered by layer.

    Weights are never negative, so even unrelated heads lie above 0.
    """
    check_same_tokens((matrix.shape[-1] for matrix in matrices), "similarity")
    return cosines(torch.cat([rearrange(matrix, "b h q k -> b h (q k)") for matrix in matrices], dim=1))


def layer_similarity(matrices: Sequence[Float[Tensor, "b h n n"]]) -> Float[Tensor, "b m m"]:
    """Cosine similarity S(i, j) = ⟨Āᵢ, Āⱼ⟩ / (‖Āᵢ‖ ‖Āⱼ‖) of all layers, with Ā the mean over a layer's heads."""
    return head_similarity([matrix.mean(dim=1, keepdim=True) for matrix in matrices])


def stream_similarity(streams: Sequence[Float[Tensor, "b ..."]]) -> Float[Tensor, "b m m"]:
    """Linear CKA S(i, j) = ‖XⱼᵀXᵢ‖² / (‖XᵢᵀXᵢ‖ ‖XⱼᵀXⱼ‖) of all layers, tokens centered within each image.

    Computed as the cosine of the Gram matrices X Xᵀ: widths may differ, and rotating or scaling a layer has no effect.
    Streams are tokens (b, n, d) or maps (b, c, y, x). "Similarity of Neural Network Representations
    Revisited", Kornblith et al. 2019 (arXiv 1905.00414).
    """
    tokens = [as_tokens(stream) if stream.ndim == 4 else stream for stream in streams]
    check_same_tokens((stream.shape[1] for stream in tokens), "similarity")
    centered = [stream - stream.mean(dim=1, keepdim=True) for stream in tokens]
    grams = [rearrange(stream @ stream.transpose(-2, -1), "b q k -> b (q k)") for stream in centered]
    return cosines(torch.stack(grams, dim=1))


def outliers(norms: Float[Tensor, "b n"], *, factor: float = 3.0) -> Bool[Tensor, "b n"]:
    """Mark outlier tokens: ‖x(i)‖ > ``factor`` · median norm of the image's tokens.

    Large models store global information in a few uninformative background tokens, whose norms are several times
    those of the rest ("Vision Transformers Need Registers", Darcet et al. 2023, arXiv 2309.16588). The paper reads a
    threshold off each model's histogram. A multiple of the median needs no histogram: a few outliers do not move the
    median, and the scale cancels. A multiple of the standard deviation would mark ordinary noise where all norms are
    nearly equal.
    """
    return norms > factor * norms.quantile(0.5, dim=-1, keepdim=True)


def on_grid(tokens: Float[Tensor, "*b n"], grid: Grid, num_prefix: int) -> Float[Tensor, "*b y x"]:
    """Drop the prefix tokens and reshape the values of the cells to the grid."""
    check_tokens(tokens.shape[-1], grid, num_prefix)
    return tokens[..., num_prefix:].unflatten(-1, grid)


def check_tokens(num_tokens: int, grid: Grid, num_prefix: int) -> None:
    expected = num_prefix + grid[0] * grid[1]
    if num_tokens != expected:
        raise ValueError(
            f"a grid of {grid[0]}×{grid[1]} cells and {num_prefix} prefix tokens make {expected} tokens, "
            f"got {num_tokens}; pass the grid and num_prefix of this layer"
        )


def check_same_tokens(num_tokens: Iterable[int], purpose: str) -> None:
    """Raise a ValueError unless there is at least one layer and all have the same number of tokens."""
    counts = sorted(set(num_tokens))
    if not counts:
        raise ValueError(f"{purpose} needs at least one layer, got none; record layers with attention between tokens")
    if len(counts) > 1:
        raise ValueError(
            f"{purpose} needs the same tokens in all layers, got {' and '.join(map(str, counts))} tokens; "
            f"select the layers of one stage"
        )


def cosines(vectors: Float[Tensor, "b m f"]) -> Float[Tensor, "b m m"]:
    """Cosine similarity of all pairs of vectors."""
    unit = F.normalize(vectors, dim=-1)
    return unit @ unit.transpose(-2, -1)
