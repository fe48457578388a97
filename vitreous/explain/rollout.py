"""From the attention of many layers to one map of the image: whence the answer drew its information.

Layers are whole matrices (b, h, n, n) in the order of computation, queries as rows and keys as columns (see
``measures.py``). A result (b, n, n) says in row i how much of every first token has reached token i in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.explain.measures import check_one_set, on_grid
from vitreous.layers.position import Grid
from vitreous.options import did_you_mean

#: How the heads of a layer become one matrix.
FUSIONS: dict[str, Callable[..., Tensor]] = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}


def class_attention(
    whole: Float[Tensor, "b h n n"], grid: Grid, num_prefix: int, *, rows: slice | None = None
) -> Float[Tensor, "b h y x"]:
    """C(k) = w(class, k), or the mean of w(q, k) over the tokens q that the classifier reads: what the answer looks at.

    ``rows`` are those tokens (``model.read_tokens(num_prefix)``): the class token, with DeiT's distillation token, or
    the cells, which may be pooled although there are prefix tokens. None takes the first token where there are any.
    Weight on prefix tokens is not shown, so that a map may sum to less than 1.
    """
    return on_grid(answering_row(whole, num_prefix, rows), grid, num_prefix)


def rollout(
    wholes: Sequence[Float[Tensor, "b h n n"]], *, residual: bool = True, fusion: str = "mean", discard: float = 0.0
) -> Float[Tensor, "b n n"]:
    """R = Ã_L ⋯ Ã₂ Ã₁ with Ã = ½ (A + I): attention followed back through the layers, the last on the left.

    A is a layer's matrix with its heads fused ("mean", "max" or "min"), the ``discard`` share of smallest weights of
    every query set to 0, and rows scaled to sum to 1 again; a token whose row is empty keeps what it has. I stands for
    the residual connection, which ``residual=False`` leaves out. It follows where information could flow and knows
    neither values nor classes. "Quantifying Attention Flow in Transformers", Abnar and Zuidema 2020 (arXiv 2005.00928).
    """
    check_one_set((whole.shape[-1] for whole in wholes), "rollout")
    if fusion not in FUSIONS:
        raise ValueError(f"there is no fusion of heads {fusion!r}{did_you_mean(fusion, FUSIONS)}")
    if not 0 <= discard < 1:
        raise ValueError(f"discard is the share of weights to leave out, from 0 to below 1; got {discard}")
    result = identity = identity_like(wholes[0])
    for whole in wholes:
        step = normalized(without_smallest(FUSIONS[fusion](whole, dim=1), discard))
        result = ((step + identity) / 2 if residual else step) @ result
    return result


def gradient_rollout(raised: Sequence[Float[Tensor, "b h n n"]]) -> Float[Tensor, "b n n"]:
    """R ← R + Ā R from the first layer to the last, R = I before it, with Ā = mean over heads of (∇A ⊙ A)⁺.

    ``raised`` are the layers' (∇A ⊙ A)⁺: see :func:`raising`. Unlike rollout the map depends on the class that is
    asked about. "Generic Attention-model Explainability for Interpreting Bi-Modal and
    Encoder-Decoder Transformers", Chefer et al. 2021 (arXiv 2103.15679).
    """
    check_one_set((layer.shape[-1] for layer in raised), "gradient rollout")
    relevance = identity_like(raised[0])
    for layer in raised:
        relevance = relevance + layer.mean(dim=1) @ relevance
    return relevance


def raising(weights: Float[Tensor, "*b"], gradient: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """(∇A ⊙ A)⁺: how far each weight raised the score of which ∇A is the gradient.

    Of the weights as they were computed, and laid onto the image afterwards: where several weights share a cell, or
    several cells a weight, the product of sums is not the sum of products.
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
    """M(k) = R(class, k), or mean over cells q of R(q, k) where the cells are pooled; ``rows`` as in class_attention.

    ``without_identity`` takes R − I: gradient rollout starts with I, which says no more than that every token is
    relevant to itself. With pooled cells that lowers all of them alike; from a class token it changes nothing.
    """
    if without_identity:
        relevance = relevance - identity_like(relevance)
    return on_grid(answering_row(relevance, num_prefix, rows), grid, num_prefix)


def answering_row(matrix: Float[Tensor, "*b n n"], num_prefix: int, rows: slice | None) -> Float[Tensor, "*b n"]:
    """The mean of the rows of those tokens that the classifier reads."""
    return matrix[..., rows or slice(0, 1 if num_prefix else None), :].mean(dim=-2)


def without_smallest(weights: Float[Tensor, "b n n"], share: float) -> Float[Tensor, "b n n"]:
    """The smallest weights of every row set to 0: ⌊share · n⌋ of them, and of equal ones those that come first.

    Row by row, since over the whole matrix a query that looks evenly at everything would lose all it sees.
    """
    smallest = weights.argsort(dim=-1, stable=True)[..., : int(share * weights.shape[-1])]
    return weights.scatter(-1, smallest, 0.0)


def normalized(weights: Float[Tensor, "b n n"]) -> Float[Tensor, "b n n"]:
    """Rows that sum to 1. A row of zeros, of a token that does not ask or whose heads agree on nothing, becomes I's."""
    total = weights.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, weights / total, identity_like(weights))


def identity_like(matrices: Float[Tensor, "*b n n"]) -> Float[Tensor, "n n"]:
    return torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
