"""Attention is permutation-equivariant; only what is pooled from it is invariant."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from torch import Tensor, nn

from vitreous.explain.record import record
from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.figures import plot_rows
from vitreous.lab.prediction import AtLeast, AtMost
from vitreous.lab.trial import Trial
from vitreous.layers.patch import patchify
from vitreous.models.vit import ViT, ViTConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="Shuffled patches",
    statement="Without positions attention does not know the order of its tokens. One text calls that permutation "
    "invariance, which means that a shuffled input gives the same output, though it then describes a shuffled one. "
    "The other says equivariance: the tokens come out shuffled, and the attention matrix on both sides. Positions end "
    "it.",
    sources=(Source.PRINCIPLES, Source.FOUNDATIONS),
    formula=r"f(P X) = f(X), \quad A(P X) = P A(X) P^\top",
    right="Tokens are equivariant: they are permuted with the patches. Only what treats all patches "
    "symmetrically is invariant: the output of the class token, the mean or the maximum of the tokens. With positions "
    "of any kind neither property holds.",
    right_formula=r"f(P X) = P f(X), \quad A(P X) = P A(X) P^\top",
    meaning="A classifier without positions sees a bag of patches; a segmenter without them still returns each "
    "patch to its position. Shuffling patches in a test is the quickest check that no order leaks in where none "
    "should, and that positions take effect where they should.",
)
SIDE, PATCH = 32, 8
UNCHANGED = AtMost(1e-6)  # relative change
CHANGED = AtLeast(1e-4)  # untrained positions are small, and rounding changes 1e-15


def model_with(seed: int, **options: Any) -> ViT:
    """An untrained ViT of two blocks, in double precision so that rounding errors stay below the thresholds."""
    small = {"image_size": SIDE, "patch_size": PATCH, "dim": 64, "depth": 2, "num_heads": 4, "num_classes": 10}
    config = ViTConfig().override(**small, **options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = config.build()
        if model.class_token is not None:
            nn.init.normal_(model.class_token)  # its zero initialization could hide a mistake
        return model.double().eval()


def pair_of_images(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, the same with shuffled patches, and the order: token i of the second is order[i] of the first."""
    draws = torch.Generator().manual_seed(seed)
    images = torch.randn(2, 3, SIDE, SIDE, generator=draws, dtype=torch.float64)
    order = torch.randperm((SIDE // PATCH) ** 2, generator=draws)
    shuffled = patchify(images, (PATCH, PATCH))[:, order]
    return images, rearrange(shuffled, "b (y x) (c p q) -> b c (y p) (x q)", y=SIDE // PATCH, c=3, p=PATCH), order


def change(before: Tensor, after: Tensor) -> float:
    """Relative change in norm."""
    return float((after - before).norm() / before.norm())


@torch.no_grad()
def change_of_tokens(seed: int, *, put_back: bool, **options: Any) -> float:
    """Relative change of the patch tokens, compared by position or, with ``put_back``, by patch."""
    model = model_with(seed, **options)
    images, shuffled, order = pair_of_images(seed)
    before, after = (model.features(x).tokens[:, model.num_prefix :] for x in (images, shuffled))
    return change(before[:, order] if put_back else before, after)


@torch.no_grad()
def change_of_pooled(seed: int, **options: Any) -> float:
    """Relative change of the features that the classifier reads."""
    model = model_with(seed, **options)
    before, after = (model.pooled(model.features(x)) for x in pair_of_images(seed)[:2])
    return change(before, after)


@torch.no_grad()
def change_of_attention(seed: int, **options: Any) -> float:
    """Relative change of the attention matrices of all blocks, after undoing the permutation."""
    model = model_with(seed, **options)
    images, shuffled, order = pair_of_images(seed)
    permutation = torch.cat([torch.arange(model.num_prefix), model.num_prefix + order])
    matrices = []
    for x in (images, shuffled):
        with record(model) as trace:
            model(x)
        matrices.append(torch.stack([attention.weights for attention in trace.values()]))
    return change(matrices[0][..., permutation, :][..., permutation], matrices[1])


def cases(trial: Trial) -> Iterator[Case]:
    bare: dict[str, Any] = {"position": "none"}
    tokens = trial.repeat(partial(change_of_tokens, put_back=False, **bare))
    yield Case("invariant? tokens, by position", tokens, document=UNCHANGED, right=CHANGED)
    tokens = trial.repeat(partial(change_of_tokens, put_back=True, **bare))
    yield Case("equivariant? tokens, put back", tokens, document=UNCHANGED, right=UNCHANGED)
    matrix = trial.repeat(partial(change_of_attention, **bare))
    yield Case("equivariant? attention matrices, put back", matrix, document=UNCHANGED, right=UNCHANGED)
    for pool in ("class", "mean", "max"):
        pooled = trial.repeat(partial(change_of_pooled, pool=pool, **bare))
        name = "output of the class token" if pool == "class" else f"{pool} of the tokens"
        yield Case(f"invariant? {name}", pooled, document=UNCHANGED, right=UNCHANGED)
    tokens = trial.repeat(partial(change_of_tokens, put_back=True, position="learned"))
    yield Case("learned positions: tokens, put back", tokens, document=CHANGED, right=CHANGED)
    for position in trial.choose(("learned", "relative", "rope"), ("learned", "sincos_2d", "relative", "rope")):
        pooled = trial.repeat(partial(change_of_pooled, position=position))
        yield Case(f"{position} positions: class token", pooled, document=CHANGED, right=CHANGED)


def draw(outcome: ClaimOutcome) -> Figure:
    """Plot rows on a logarithmic scale: rounding and real changes differ by fifteen orders of magnitude."""
    figure = plot_rows(outcome.cases)
    figure.axes[0].set(xscale="log", xlim=(1e-17, 1e2), xlabel="relative change")
    return figure
