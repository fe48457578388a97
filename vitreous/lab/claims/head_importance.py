"""Prune attention heads ranked by entropy × gradient, by either alone, or at random."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitreous.explain.measures import entropy
from vitreous.explain.record import record
from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly, mean_of
from vitreous.lab.figures import plot_curves
from vitreous.lab.instruments.run_evaluation import batch_accuracy, pooled_accuracy, training_batch, validation_batch
from vitreous.lab.prediction import AtLeast, Near
from vitreous.lab.sweep import run_seeds
from vitreous.lab.trained import Trained, trained_run
from vitreous.lab.trial import Trial
from vitreous.layers.attention import SelfAttention
from vitreous.models.base import Backbone
from vitreous.tasks.classify import class_targets, cross_entropy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="The importance of heads",
    statement="A head's importance is the entropy of its attention times its gradient. To make a model smaller, prune "
    "the heads of low entropy.",
    sources=(Source.FOUNDATIONS,),
    formula=r"\mathrm{Importance}(h) = H(A^{(h)}) \cdot \mathrm{Gradient}(h)",
    right="The gradient with respect to a gate on the head is a first-order estimate of what its removal costs. "
    "How uniform a head's attention is gives no such estimate; with all heads removed, the class token receives "
    "nothing of the image.",
    right_formula=r"| \sum_{q,k} A_{qk} \, \partial L / \partial A_{qk} |",
    meaning="Rank heads by the loss (a gate's gradient, or simply ablating each one: a small model has few), and "
    "check the ranking against random pruning before trusting it.",
)
Head = tuple[int, int]  # block, head


def scores(run: Trained, number: int) -> dict[str, dict[Head, float]]:
    """Importance of every head under each criterion, on training images."""
    batch = training_batch(run, number)
    with record(run.model, gradients=True) as trace:
        cross_entropy(run.model(batch.images), class_targets(batch)).backward()
        spread = torch.stack([entropy(trace[name].weights).mean(dim=(0, 2)) for name in trace])
        slope = torch.stack([gate(trace[name].weights, trace[name].gradient) for name in trace])
    run.model.zero_grad()
    criteria = {"entropy × gradient": spread * slope, "entropy": spread, "gradient": slope}
    return {name: {(i, j): float(each[i, j]) for i, j in torch.cartesian_prod(*map(torch.arange, each.shape)).tolist()}
            for name, each in criteria.items()}  # fmt: skip


def gate(weights: Tensor, gradient: Tensor) -> Tensor:
    """|∂L/∂g| for a gate g on each head's output, averaged over images, (h,)."""
    return (weights * gradient).sum(dim=(2, 3)).abs().mean(dim=0)


def without(model: Backbone, heads: Sequence[Head]) -> Backbone:
    """Copy the model with the output projection of these heads set to zero."""
    pruned = copy.deepcopy(model)
    for block, head in heads:
        attention = pruned.blocks[block].mixer
        assert isinstance(attention, SelfAttention)
        width = attention.proj.in_features // attention.num_heads
        attention.proj.weight.data[:, head * width : (head + 1) * width] = 0
    return pruned


def curves_of(run: Trained, number: int, chances: int) -> dict[str, list[float]]:
    """Accuracy with 0, 1, … all heads pruned, least important first; "chance" averages several random orders."""
    batch, criteria = validation_batch(run, number), scores(run, number)
    accuracy = cache(lambda removed: batch_accuracy(without(run.model, sorted(removed)), batch))

    def curve(order: Sequence[Head]) -> list[float]:
        return [accuracy(frozenset(order[:removed])) for removed in range(len(order) + 1)]

    found = {name: curve(sorted(each, key=each.__getitem__)) for name, each in criteria.items()}
    heads, draws = list(criteria["entropy"]), torch.Generator().manual_seed(run.recipe.train.seed)
    drawn = [curve([heads[i] for i in torch.randperm(len(heads), generator=draws).tolist()]) for _ in range(chances)]
    return {**found, "chance": torch.tensor(drawn).mean(dim=0).tolist()}


def document() -> float:
    """Lower bound on the gain over chance and over either factor, if the text's criterion is at least as good."""
    return 0.0


def right(classes: int) -> float:
    """Accuracy without any attention: the class token contains nothing of the image."""
    return 1 / classes


def cases(trial: Trial) -> Iterator[Case]:
    number, chances = trial.choose((200, 3), (400, 6))
    runs = [trained_run(trial, "base", seed) for seed in run_seeds(trial, "base")]
    yield Case("accuracy with all heads", pooled_accuracy(runs, number), right=AtLeast(2 * right(10)))
    found = [curves_of(run, number, chances) for run in runs]
    for rule in found[0]:
        trial.keep(f"by {rule}", [sum(each) / len(found) for each in zip(*(one[rule] for one in found), strict=True)])
    no_heads = sum(each["chance"][-1] for each in found) / len(found)
    yield Case("accuracy without any head", exactly(no_heads), right=Near(right(10), 0.06))
    area = [{rule: sum(curve) / len(curve) for rule, curve in each.items()} for each in found]
    for better, worse in (("entropy × gradient", "chance"), ("entropy × gradient", "gradient"), ("entropy", "chance")):
        yield Case(
            f"mean accuracy while pruning by {better}, less that by {worse}",
            mean_of([each[better] - each[worse] for each in area]),
            document=AtLeast(document()),
        )


def draw(outcome: ClaimOutcome) -> Figure:
    lines = {
        name: ([removed / (len(values) - 1) for removed in range(len(values))], values)
        for name, values in outcome.series.items()
    }
    return plot_curves(lines, Axes("share of heads pruned, the least important first", "accuracy"))
