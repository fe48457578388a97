"""Attention rollout and gradient-weighted rollout: combine the attention of many layers into one map of the image.

Layers are token matrices (b, h, n, n) in the order of computation, queries as rows and keys as columns (see
``measures.py``). Row i of a result (b, n, n) is the contribution of every input token to output token i.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.explain.measures import check_same_tokens, on_grid
from vitreous.layers.position import Grid
from vitreous.options import did_you_mean

#: Reductions of the heads of a layer to one matrix.
FUSIONS: dict[str, Callable[..., Tensor]] = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}


def class_attention(
    matrix: Float[Tensor, "b h n n"], grid: Grid, num_prefix: int, *, rows: slice | None = None
) -> Float[Tensor, "b h y x"]:
    """Attention map of the class token, C(k) = w(class, k), or the mean over the tokens that the classifier reads.

    ``rows`` selects those tokens (``model.read_tokens(num_prefix)``): the class token, with DeiT's distillation token,
    or the cells, which may be pooled even if there are prefix tokens. None selects the first token if there are prefix
    tokens, else all cells. Attention to prefix tokens is not on the map, so it may sum to less than 1.
    """
    return on_grid(mean_read_row(matrix, num_prefix, rows), grid, num_prefix)


def rollout(
    matrices: Sequence[Float[Tensor, "b h n n"]], *, residual: bool = True, fusion: str = "mean", discard: float = 0.0
) -> Float[Tensor, "b n n"]:
    """Attention rollout R = Ã_L ⋯ Ã₂ Ã₁ with Ã = ½ (A + I).

    "Quantifying Attention Flow in Transformers", Abnar and Zuidema 2020 (arXiv 2005.00928). Rollout shows where
    information could flow; it ignores values and MLPs and does not depend on a class.

    Args:
        matrices: Token matrices from the first layer to the last.
        residual: Add I for the residual connection.
        fusion: Reduction over heads: "mean", "max" or "min".
        discard: Fraction of the smallest weights of each query to set to 0. Rows are then rescaled to sum to 1; a row
            of zeros becomes the identity's.
    """
    check_same_tokens((matrix.shape[-1] for matrix in matrices), "rollout")
    if fusion not in FUSIONS:
        raise ValueError(f"unknown fusion of heads {fusion!r}{did_you_mean(fusion, FUSIONS)}")
    if not 0 <= discard < 1:
        raise ValueError(f"discard is the fraction of weights to set to 0 and must lie in [0, 1), got {discard}")
    result = identity = identity_like(matrices[0])
    for matrix in matrices:
        step = normalized(without_smallest(FUSIONS[fusion](matrix, dim=1), discard))
        result = ((step + identity) / 2 if residual else step) @ result
    return result


def gradient_rollout(layers: Sequence[Float[Tensor, "b h n n"]]) -> Float[Tensor, "b n n"]:
    """Gradient-weighted rollout: R ← R + Ā R over the layers, from R = I, with Ā = mean over heads of (∇A ⊙ A)⁺.

    ``layers`` are the token matrices (∇A ⊙ A)⁺ from :func:`gradient_weighted`. Unlike rollout the result depends on
    the explained class. "Generic Attention-model Explainability for Interpreting Bi-Modal and
    Encoder-Decoder Transformers", Chefer et al. 2021 (arXiv 2103.15679).
    """
    check_same_tokens((layer.shape[-1] for layer in layers), "gradient rollout")
    relevance = identity_like(layers[0])
    for layer in layers:
        relevance = relevance + layer.mean(dim=1) @ relevance
    return relevance


def gradient_weighted(weights: Float[Tensor, "*b"], gradient: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """(∇A ⊙ A)⁺: by how much each weight raised the score whose gradient is ∇A.

    Apply it to the weights as computed, before they are converted to a token matrix: where several weights share a
    cell, or several cells a weight, the product of sums is not the sum of products.
    """
    return (gradient * weights).clamp_min(0)


def relevance_map(
    relevance: Float[Tensor, "b n n"],
    grid: Grid,
    num_prefix: int,
    *,
    rows: slice | None = None,
    without_identity: bool = False,
) -> Float[Tensor, "b y x"]:
    """Map of the class token's relevance, M(k) = R(class, k), or the mean over pooled cells.

    ``rows`` as in :func:`class_attention`. ``without_identity`` uses R − I: gradient rollout starts from I, which only
    states that every token is relevant to itself. It lowers all pooled cells equally and leaves a class token's map
    unchanged.
    """
    if without_identity:
        relevance = relevance - identity_like(relevance)
    return on_grid(mean_read_row(relevance, num_prefix, rows), grid, num_prefix)


def mean_read_row(matrix: Float[Tensor, "*b n n"], num_prefix: int, rows: slice | None) -> Float[Tensor, "*b n"]:
    """Mean of the rows of the tokens that the classifier reads."""
    return matrix[..., rows or slice(0, 1 if num_prefix else None), :].mean(dim=-2)


def without_smallest(weights: Float[Tensor, "b n n"], share: float) -> Float[Tensor, "b n n"]:
    """Set the ⌊share · n⌋ smallest weights of every row to 0, of equal weights the first.

    Per row and not over the matrix, where a query with uniform attention would lose all of its weights.
    """
    smallest = weights.argsort(dim=-1, stable=True)[..., : int(share * weights.shape[-1])]
    return weights.scatter(-1, smallest, 0.0)


def normalized(weights: Float[Tensor, "b n n"]) -> Float[Tensor, "b n n"]:
    """Scale rows to sum to 1; a row of zeros (no query, or an empty minimum over heads) becomes the identity's."""
    total = weights.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, weights / total, identity_like(weights))


def identity_like(matrices: Float[Tensor, "*b n n"]) -> Float[Tensor, "n n"]:
    return torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
