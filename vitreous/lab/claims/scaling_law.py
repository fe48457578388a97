"""Three scaling laws of accuracy in parameters or images, fitted to the sweep and tested on held-out sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import Estimate, bootstrap, exactly
from vitreous.lab.instruments.compare import above_chance
from vitreous.lab.prediction import AtMost, Near
from vitreous.lab.trained import Trained, datasets, trained_run, trained_runs
from vitreous.lab.trial import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="Scaling laws",
    statement="Performance grows with the size of the model as α − β · size^(−γ); with the number of training images "
    "in proportion to its logarithm; and the logarithm of accuracy is linear in the logarithm of the parameters.",
    sources=(Source.FOUNDATIONS, Source.MODERN),
    formula=r"\mathrm{accuracy} = \alpha - \beta N^{-\gamma}, \quad \mathrm{accuracy} \propto \log(\mathrm{images}),"
    r" \quad \log(\mathrm{accuracy}) = \alpha \log N + \beta",
    right="Four sizes do not settle which law is right: the saturating one has three free parameters, and "
    "predicts a held-out size less accurately than the straight lines do. But a power of the size, or a logarithm, "
    "has no upper limit: extrapolated far enough it exceeds 100 %.",
    right_formula=r"\mathrm{accuracy} = \alpha - \beta N^{-\gamma}, \quad \alpha \leq 1",
    meaning="Take a law fitted to a few small runs for a description, not for a forecast: hold a size out and "
    "check whether the law predicts it. Extrapolating a straight line on a log-log plot predicts accuracies that no "
    "model can reach.",
)

WIDTHS = ("width_quarter", "width_half", "base", "width_double")
IMAGES = ("base_few", "base_some", "base_many", "base")
EXPONENTS = np.geomspace(0.02, 3, 300)
FAR = 1e12  # parameters or images to extrapolate to
WITHIN = 0.02  # largest error of a law that counts as a description: two points of accuracy

Numbers = NDArray[np.float64]
Law = Callable[[Numbers], Numbers]
Fit = Callable[[Numbers, Numbers], Law]


def linear(x: Numbers, y: Numbers) -> tuple[float, float, float]:
    """Intercept, slope and summed squared error of the least-squares line."""
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    intercept = float(y.mean() - slope * x.mean())
    return intercept, slope, float(((intercept + slope * x - y) ** 2).sum())


def falling(size: Any, exponent: float) -> Any:
    return size ** (-exponent)


def best_exponent(size: Numbers, accuracy: Numbers) -> float:
    """γ of α − β · size^(−γ) by grid search, with α and β by linear regression and α ≤ 1."""
    fits = {exponent: linear(falling(size / size.min(), exponent), accuracy) for exponent in EXPONENTS}
    possible = [exponent for exponent, (limit, _, _) in fits.items() if limit <= 1]
    return float(min(possible or EXPONENTS[-1:], key=lambda exponent: fits[exponent][2]))


def saturating(size: Numbers, accuracy: Numbers) -> Law:
    unit, exponent = size.min(), best_exponent(size, accuracy)
    intercept, slope, _ = linear(falling(size / unit, exponent), accuracy)
    return lambda new: intercept + slope * falling(new / unit, exponent)


def logarithmic(size: Numbers, accuracy: Numbers) -> Law:
    """Proportional to the logarithm: no intercept."""
    slope = float((np.log(size) * accuracy).sum() / (np.log(size) ** 2).sum())
    return lambda new: slope * np.log(new)


def power(size: Numbers, accuracy: Numbers) -> Law:
    intercept, slope, _ = linear(np.log(size), np.log(accuracy))
    return lambda new: np.exp(intercept + slope * np.log(new))


def left_out_error(fit: Fit, points: Numbers) -> Estimate:
    """Mean absolute error on held-out sizes: each size is held out in turn."""
    sizes, accuracy = points.T
    errors = [
        float(
            np.abs(fit(sizes[sizes != size], accuracy[sizes != size])(np.array(size)) - accuracy[sizes == size].mean())
        )
        for size in np.unique(sizes)
    ]
    return bootstrap(errors, lambda drawn: float(drawn.mean()))


def parameters(run: Trained) -> float:
    return float(sum(parameter.numel() for parameter in run.model.parameters()))


def images(run: Trained) -> float:
    """Number of distinct images the run was trained on."""
    return float(
        min(len(datasets(run.run, run.recipe, run.trial)[0]), run.recipe.train.steps * run.recipe.train.batch_size)
    )


def points(trial: Trial, names: tuple[str, ...], size: Callable[[Trained], float]) -> Numbers:
    return np.array([(size(run), run.accuracy) for name in names for run in trained_runs(trial, name)])


def cases(trial: Trial) -> Iterator[Case]:
    by_size = points(trial, WIDTHS, parameters)
    trial.keep("parameters", by_size[:, 0].tolist())
    trial.keep("accuracy", by_size[:, 1].tolist())
    laws: dict[str, tuple[Fit, Numbers]] = {
        "α − β · parameters^(−γ)": (saturating, by_size),
        "log accuracy linear in log parameters": (power, by_size),
    }
    if not trial.quick:
        laws["accuracy ∝ log images"] = (logarithmic, points(trial, IMAGES, images))
    for name, (fit, found) in laws.items():
        yield Case(f"{name}: error at a held-out size", left_out_error(fit, found), document=AtMost(WITHIN))
        extrapolated = float(fit(*found.T)(np.array(FAR)))
        yield Case(f"{name}: accuracy extrapolated to 10¹²", exactly(extrapolated), document=AtMost(1.0))
    size = np.geomspace(1e4, 1e6, 6)
    recovered = best_exponent(size, 0.9 - 2 * (size / 100) ** -0.3)
    yield Case("γ recovered from data generated with γ = 0.3", exactly(recovered), right=Near(0.3, 0.01))
    yield above_chance(trained_run(trial, "base"), "the base run")


def draw(outcome: ClaimOutcome) -> Figure:
    """Plot both laws of the parameters over the measurements and the extrapolated range."""
    from vitreous.draw.style import BLUE, INK, ORANGE, side_by_side, style_axis

    figure, (axis,) = side_by_side(1, width=5.6, height=3.3)
    sizes, accuracy = (np.array(outcome.series[name]) for name in ("parameters", "accuracy"))
    line = np.geomspace(sizes.min(), FAR, 200)
    axis.plot(line, saturating(sizes, accuracy)(line), color=BLUE, label="α − β · parameters^(−γ)")
    axis.plot(line, power(sizes, accuracy)(line), color=ORANGE, label="log accuracy linear in log parameters")
    axis.plot(sizes, accuracy, "o", color=INK, markersize=4.5, label="measured")
    axis.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    axis.set_xscale("log")
    axis.set_ylim(0, 1.5)
    axis.set_xlabel("parameters")
    axis.set_ylabel("accuracy")
    axis.legend(fontsize=8, frameon=False, loc="lower right")
    style_axis(axis)
    return figure
