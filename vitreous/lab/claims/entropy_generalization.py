"""Correlation of attention entropy with generalization, over the runs of the sweep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.explain.record import record
from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import bootstrap, exactly
from vitreous.lab.instruments.compare import above_chance
from vitreous.lab.instruments.run_evaluation import initial_model, validation_batch
from vitreous.lab.prediction import AtLeast, AtMost, Near
from vitreous.lab.trained import Trained, trained_run, trained_runs
from vitreous.lab.trial import Trial
from vitreous.models.base import Backbone

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="Attention entropy and generalization",
    statement="Higher attention entropy goes with better generalization: models whose tokens look at many others do "
    "better on new images.",
    sources=(Source.FOUNDATIONS,),
    formula=r"H(A_i) = -\sum_{j=1}^{n} A_{ij} \log A_{ij}",
    right="An observation, not a law: entropy depends on width, patches, positions and data, each of which also "
    "affects accuracy in other ways. The correlation over many small runs shows how much of it remains.",
    right_formula="",
    meaning="Do not select models by attention entropy, and do not add a term for it to the loss on the strength "
    "of a correlation: an untrained model has nearly the highest possible entropy.",
)

#: Runs trained on all images, with different models or training settings; then runs on fewer images.
ALIKE = (
    "base", "width_quarter", "width_half", "width_double", "mean_pooling", "max_pooling", "sincos_positions",
    "no_positions", "patch_half", "patch_double", "patch_quadruple", "no_residual", "sgd", "no_clipping", "relu",
)  # fmt: skip
FEWER = ("base_few", "base_some", "base_many", "bare_some", "heavy_some")
QUICK = ("base", "width_half", "mean_pooling", "no_positions")


def largest(tokens: int) -> float:
    """Entropy of uniform attention, the maximum."""
    return float(np.log(tokens))


@torch.no_grad()
def relative_entropy(model: Backbone, images: Tensor) -> float:
    """Mean entropy over layers, heads, queries and images, divided by the maximum."""
    with record(model) as trace:
        model(images)
    tokens = next(iter(trace.values())).weights.shape[-1]
    return float(torch.stack([values.mean() for values in trace.entropy().values()]).mean()) / largest(tokens)


def correlation(rows: NDArray[Any]) -> float:
    """Pearson correlation of the two columns; NaN where either is constant."""
    x, y = (rows - rows.mean(axis=0)).T
    scale = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum()) / scale if scale > 1e-12 else float("nan")


def mean_row(trial: Trial, name: str) -> NDArray[np.float64]:
    """Entropy, accuracy and generalization gap of one configuration, averaged over its seeds."""
    return np.mean([row(run, trial.choose(50, 100)) for run in trained_runs(trial, name)], axis=0)


def row(run: Trained, images: int) -> tuple[float, float, float]:
    entropy = relative_entropy(run.model, validation_batch(run, images).images)
    return entropy, run.accuracy, run.train_accuracy - run.accuracy


def cases(trial: Trial) -> Iterator[Case]:
    names = trial.choose(QUICK, ALIKE + FEWER)
    rows = np.array([mean_row(trial, name) for name in names])
    for column, values in zip(("entropy", "accuracy", "gap"), rows.T, strict=True):
        trial.keep(column, values)
    sets = {f"{len(names)} configurations": rows}
    if not trial.quick:
        sets[f"{len(ALIKE)} of them, all images"] = rows[: len(ALIKE)]
    for label, chosen in sets.items():
        accuracy, gap = (bootstrap(chosen[:, [0, column]], correlation) for column in (1, 2))
        yield Case(f"{label}: correlation of entropy and accuracy", accuracy, document=AtLeast(0.0))
        yield Case(f"{label}: correlation of entropy and generalization gap", gap, document=AtMost(0.0))
    run = trained_run(trial, "base")
    untrained = relative_entropy(initial_model(run), validation_batch(run, 50).images)
    yield Case("untrained: entropy ÷ its maximum", exactly(untrained), right=Near(0.95, 0.05))
    yield above_chance(run, "the base run")


def draw(outcome: ClaimOutcome) -> Figure:
    from vitreous.draw.style import INK, ORANGE, side_by_side, style_axis

    figure, panels = side_by_side(2)
    fewer = np.arange(len(outcome.series["entropy"])) >= (len(QUICK) if outcome.quick else len(ALIKE))
    for axis, name in zip(panels, ("accuracy", "gap"), strict=True):
        x, y = (np.array(outcome.series[column]) for column in ("entropy", name))
        axis.scatter(x[~fewer], y[~fewer], color=INK, s=18, label="all images")
        if fewer.any():
            axis.scatter(x[fewer], y[fewer], color=ORANGE, s=18, label="fewer images")
            axis.legend(fontsize=8, frameon=False)
        axis.set_xlabel("attention entropy ÷ its maximum")
        axis.set_ylabel({"accuracy": "accuracy on new images", "gap": "generalization gap in accuracy"}[name])
        style_axis(axis)
    return figure
