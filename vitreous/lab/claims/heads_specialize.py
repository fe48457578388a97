"""Heads of one layer differ, and the patches that the class token attends to decide the prediction."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from vitreous.explain import measures
from vitreous.explain.attribution import METHODS
from vitreous.explain.faithfulness import compare_methods
from vitreous.explain.score import class_score
from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import Estimate, bootstrap, exactly
from vitreous.lab.instruments.real import deit_tiny, photos, traces
from vitreous.lab.prediction import AtLeast, AtMost, Near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import Attend
from vitreous.models import create_model
from vitreous.models.vit import ViT

CLAIM = Claim(
    title="Specialized heads and the class token's attention",
    statement="Each head of a layer learns a kind of relationship of its own. The class token attends to the patches "
    "that are most discriminative for the classification.",
    sources=(Source.DEEP_DIVE, Source.PIXELS),
    formula="",
    right="Before training all heads attend nearly uniformly, with a cosine of 0.99 (half of it is the bound "
    "here). In the first blocks of a trained DeiT-Tiny it is a third of that; in the last ones, which attend broadly, "
    "three quarters: weights are never negative, so broad heads are similar by chance. Hiding the patches that the "
    "class token attends to costs the prediction more than hiding others.",
    right_formula="",
    meaning="Heads of the last blocks may be candidates for pruning or sharing (not tested here). The class "
    "token's map is a fair first indication of what a model uses; compare it with random patches on your own images "
    "before you rely on it.",
)
HALFWAY = 0.5  # from disjoint heads, whose cosine is 0, to those of an untrained model, which are nearly identical


def right(shared: int, each: int) -> float:
    """Cosine of two heads that each attend uniformly to ``each`` tokens, ``shared`` of them in common."""
    return shared / each


def uniform_head(n: int, first: int, each: int) -> Tensor:
    """A head whose queries all attend uniformly to ``each`` tokens starting at ``first``."""
    index = torch.arange(n)
    mask = ((index >= first) & (index < first + each)).expand(n, n)
    zeros = torch.zeros(1, 1, n, 1)
    return Attend().weights(zeros, zeros, mask=mask)


def cases(trial: Trial) -> Iterator[Case]:
    for shared in (0, 4, 8):
        pair = [uniform_head(32, 0, 8), uniform_head(32, 8 - shared, 8)]
        yield Case(
            f"two synthetic heads that share {shared} of the 8 tokens they attend to: cosine",
            exactly(float(measures.head_similarity(pair)[0, 0, 1])),
            right=Near(right(shared, 8), 1e-5),
        )
    if trial.has("weights"):
        images, _ = photos(trial, trial.choose(4, 24))
        model = deit_tiny(trial)
        yield from about_heads(model, images)
        yield from about_the_class_token(model, trial)


def about_heads(model: ViT, images: Tensor) -> Iterator[Case]:
    trained, fresh = by_layer(model, images), by_layer(untrained(), images[:2])
    yield Case("untrained model: cosine of two heads of a layer", mean(fresh.mean(dim=1)), right=AtLeast(0.9))
    for name, layers in (("first", slice(0, 4)), ("middle", slice(4, 8)), ("last", slice(8, 12))):
        found = mean(trained[:, layers].mean(dim=1))
        bound = AtMost(HALFWAY * float(fresh.mean()))
        yield Case(f"DeiT-Tiny, {name} four blocks: cosine of two heads of a layer", found, document=bound)
    yield Case(
        "DeiT-Tiny: cosine of a head in two images less that of two heads in one",
        steadiness(model, images),
        document=AtLeast(0.0),
    )


def untrained() -> ViT:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = create_model("deit_tiny_16").eval()
    assert isinstance(model, ViT)
    return model


def mean(values: Tensor) -> Estimate:
    return bootstrap(values.double().numpy(), np.mean)


def by_layer(model: ViT, images: Tensor) -> Tensor:
    """Mean cosine of two heads of a layer, (images, layers)."""
    found = []
    for trace in traces(model, images):
        layers = [mean_over_pairs(measures.head_similarity([whole])) for whole in trace.token_matrices().values()]
        found.append(torch.stack(layers, dim=1))
    return torch.cat(found)


def mean_over_pairs(similarity: Tensor) -> Tensor:
    """Mean over all pairs of different heads."""
    number = similarity.shape[-1]
    return (similarity.sum(dim=(1, 2)) - number) / (number * (number - 1))


def steadiness(model: ViT, images: Tensor) -> Estimate:
    """Cosine of one head in two images minus that of two heads in one image; the interval is over heads."""
    rows = []
    for trace in traces(model, images, size=2):
        for whole in trace.token_matrices().values():
            both = measures.head_similarity([whole[:1], whole[1:]])[0]
            heads = whole.shape[1]
            same, across = both[:heads, heads:].diagonal(), (both[:heads, :heads].sum(1) - 1) / (heads - 1)
            rows.append(same - across)
    return mean(torch.stack(rows).unflatten(0, (-1, len(model.blocks))).mean(dim=0).flatten())


def about_the_class_token(model: ViT, trial: Trial) -> Iterator[Case]:
    """Compare how fast the prediction's probability drops when hiding attended or random patches."""
    images, _ = photos(trial, trial.choose(4, 32), seed=1)
    with torch.no_grad():
        predictions = model(images).argmax(dim=1)
    methods = {"class attention": METHODS["class attention"]}
    table = compare_methods(model, images, class_score(predictions), methods=methods, steps=trial.choose(4, 8))
    for measure, sign, name in (
        ("deletion", -1, "lost sooner by hiding"),
        ("insertion", 1, "recovered sooner by showing"),
    ):
        gained = sign * (table.values["class attention"][measure] - table.values["random"][measure])
        yield Case(
            f"DeiT-Tiny: prediction {name} the class token's patches than random ones (area)",
            bootstrap(gained, np.mean),
            document=AtLeast(0.0),
        )
