"""Attention rollout without residuals: exact for attention alone, and its rows converge to each other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vitreous.explain.rollout import rollout
from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import bootstrap
from vitreous.lab.instruments.real import deit_tiny, photos, traces
from vitreous.lab.prediction import AtLeast, Near, near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import Attend
from vitreous.layers.patch import grid_of
from vitreous.models.vit import ViT

CLAIM = Claim(
    title="Attention rollout without the residual",
    statement="The product of all layers' attention matrices says how much each input token influences each output "
    "token; its rows are the receptive fields of the tokens.",
    sources=(Source.PRINCIPLES, Source.FOUNDATIONS),
    formula=r"R = A^{(L)} A^{(L-1)} \cdots A^{(1)}",
    right="Exact for attention without residuals, MLPs and value projections. But every factor averages, so that "
    "after a dozen layers all rows are nearly identical. In DeiT-Tiny, adding half of the identity keeps rows some "
    "two thousand times further apart, and still far less than gradients do, which measure actual dependence.",
    right_formula=r"R = \prod_l \frac{1}{2} (A^{(l)} + I)",
    meaning="The plain product gives the same map for every token: never read it as a token's receptive field. "
    "Rollout with the residual is better and still too uniform; for one token's sources use gradients or occlusion. "
    "It also shows why attention needs residuals: without them all tokens collapse to one.",
    axes=Axes("layers", "distance of rows from their mean", log="y"),
)
LAYERS = 12
DISTINCT = 0.05  # a twentieth of the influence differs


def right(n: int, sigma: float, layers: int, *, residual: bool) -> float:
    """Expected distance of the product's rows from their mean, for n keys and normal logits of deviation σ.

    A layer multiplies it by ρ = √((e^σ² − 1) / n); with the residual by √(1 + ρ²) / 2, starting from the identity's 1.
    """
    rho = float(((torch.tensor(sigma**2).exp() - 1) / n).sqrt())
    return ((1 + rho**2) ** 0.5 / 2 if residual else rho) ** layers


def spread(product: Tensor) -> float:
    """RMS deviation of a row from the mean row; 1 for the identity, 0 where all rows are the same."""
    return float((product - product.mean(dim=-2, keepdim=True)).square().sum(dim=-1).mean().sqrt())


def row_difference(product: Tensor) -> Tensor:
    """Mean total variation distance between a row and the mean row, per image; 0 for equal rows."""
    return (product - product.mean(dim=-2, keepdim=True)).abs().sum(dim=-1).mean(dim=-1) / 2


def layer(n: int, sigma: float, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Queries and keys of width n whose scaled logits are independent normal variables of deviation σ."""
    logits = sigma * torch.randn(1, 1, n, n, generator=draws, dtype=torch.float64)
    return logits * n**0.5, torch.eye(n, dtype=torch.float64)[None, None]


def measured_spread(n: int, sigma: float, layers: int, residual: bool, seed: int) -> float:
    draws = torch.Generator().manual_seed(seed)
    matrices = [Attend().weights(*layer(n, sigma, draws)) for _ in range(layers)]
    return spread(rollout(matrices, residual=residual))


def difference(n: int, seed: int) -> float:
    """|R x − output| / |output| for a stack of attention layers without anything else."""
    draws = torch.Generator().manual_seed(seed)
    x = tokens = torch.randn(1, 1, n, 8, generator=draws, dtype=torch.float64)
    matrices = []
    for q, k in (layer(n, 1.0, draws) for _ in range(LAYERS)):
        matrices.append(Attend().weights(q, k))
        tokens = Attend()(q, k, tokens)
    return float((rollout(matrices, residual=False) @ x[0] - tokens[0]).norm() / tokens.norm())


def cases(trial: Trial) -> Iterator[Case]:
    yield Case(
        "attention alone: product applied to the input, less the output",
        trial.repeat(lambda seed: difference(32, seed)),
        document=Near(0.0, 1e-6),
        right=Near(0.0, 1e-6),
    )
    for residual in (False, True):
        name = "half the identity added" if residual else "plain product"
        for layers in trial.choose(quick=(2, 4, LAYERS), full=(2, 4, 6, 8, LAYERS)):
            yield Case(
                f"{layers} layers, {name}: distance of rows from their mean",
                trial.repeat(partial(measured_spread, 197, 1.0, layers, residual)),
                document=None if residual else AtLeast(DISTINCT),
                right=near(right(197, 1.0, layers, residual=residual), share=0.5),
                at=layers,
                group=name,
            )
    if trial.has("weights"):
        yield from real_cases(trial)


def real_cases(trial: Trial) -> Iterator[Case]:
    model, (images, _) = deit_tiny(trial), photos(trial, trial.choose(2, 16))
    found: dict[bool, list[float]] = {False: [], True: []}
    for trace in traces(model, images):
        for residual, values in found.items():
            values += row_difference(rollout(list(trace.token_matrices().values()), residual=residual)).tolist()
    yield Case(
        "DeiT-Tiny, by gradients: share of the influence that differs between tokens",
        bootstrap(row_difference(influence(model, images, trial.choose(4, 14))).tolist(), np.mean),
        document=Near(float(np.mean(found[False])), DISTINCT),
        right=AtLeast(DISTINCT),
    )
    yield Case(
        "DeiT-Tiny, rollout: difference between tokens, with half the identity ÷ without",
        bootstrap(np.array(list(found.values())).T, lambda rows: float(rows[:, 1].mean() / rows[:, 0].mean())),
        right=AtLeast(10.0),
    )


def influence(model: ViT, images: Tensor, count: int) -> Tensor:
    """Rows of |∂ output token / ∂ input token| in the trained model, each summing to 1, for ``count`` tokens."""
    grid = grid_of((images.shape[2], images.shape[3]), model.config.patch_size)
    tokens = first = model.embed(images, grid).detach().requires_grad_()
    for block in model.blocks:
        tokens = block(tokens, grid, model.num_prefix)
    direction = torch.randn(tokens.shape[-1], generator=torch.Generator().manual_seed(0))
    chosen = torch.linspace(model.num_prefix, tokens.shape[1] - 1, count).long()
    rows = [torch.autograd.grad((tokens[:, i] @ direction).sum(), first, retain_graph=True)[0] for i in chosen]
    lengths = torch.stack(rows, dim=1).norm(dim=-1)
    return lengths / lengths.sum(dim=-1, keepdim=True)
