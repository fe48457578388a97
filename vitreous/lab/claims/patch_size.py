"""Smaller patches: gain in accuracy and cost in time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import bootstrap, exactly
from vitreous.lab.instruments.compare import above_chance, accuracies, difference
from vitreous.lab.instruments.run_evaluation import validation_batch
from vitreous.lab.prediction import AtLeast, near
from vitreous.lab.trained import Trained, trained_run
from vitreous.lab.trial import Trial
from vitreous.models.vit import ViTConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="Smaller patches",
    statement="Smaller patches give more tokens, hence better accuracy, and are slower.",
    sources=(Source.DEEP_DIVE, Source.PIXELS, Source.MODERN),
    formula=r"n = (S/p)^2; \quad p \downarrow \ \Rightarrow \ \mathrm{accuracy} \uparrow, \ \mathrm{time} \uparrow",
    right="The cost is certain: halving the side of a patch gives four times the tokens, and somewhat more than "
    "four times the compute. The gain is not: smaller patches carry less information each, and take longer to learn "
    "from.",
    right_formula=r"\mathrm{MACs} = L\,(2 (2 + r) n D^2 + 2 n^2 D) + n_{\mathrm{patches}}\, 3 p^2 D + D K",
    meaning="Compare patch sizes at equal time, not at equal steps: the cost of a patch of half the size would "
    "also pay for a model of twice the width.",
)

NAMES = ("patch_half", "base", "patch_double", "patch_quadruple")


def right(config: ViTConfig, num_classes: int) -> float:
    """MACs of one image: blocks, patch embedding, classifier."""
    patches = config.image_size[0] * config.image_size[1] / (config.patch_size[0] * config.patch_size[1])
    n, d = patches + 1, config.dim
    block = 2 * (2 + config.mlp_ratio) * n * d**2 + 2 * n**2 * d
    return config.depth * block + patches * config.num_channels * config.patch_size[0] ** 2 * d + d * num_classes


@torch.no_grad()
def macs(run: Trained) -> float:
    """MACs per image as counted by torch's FlopCounterMode."""
    images = validation_batch(run, 1).images
    with FlopCounterMode(display=False) as counter:
        run.model(images)
    return counter.get_total_flops() / 2


@torch.no_grad()
def milliseconds(runs: Sequence[Trained], rounds: int) -> NDArray[np.float64]:
    """CPU time per image in batches of 128, interleaving the runs, (round, run)."""
    images = [validation_batch(run, 128).images for run in runs]
    found = np.empty((rounds, len(runs)))
    for turn in range(-1, rounds):  # round −1 warms up; the last round overwrites it
        for index, run in enumerate(runs):
            begin = time.process_time()
            run.model(images[index])
            found[turn, index] = 1000 * (time.process_time() - begin) / len(images[index])
    return found


def cases(trial: Trial) -> Iterator[Case]:
    names = trial.choose(("base", "patch_double"), NAMES)
    runs = [trained_run(trial, name) for name in names]
    sides = [config_of(run).patch_size[0] for run in runs]
    found = [accuracies(trial, name) for name in names]
    times = milliseconds(runs, trial.choose(10, 20))
    for index, (small, large) in enumerate(pairwise(sides)):
        gain = difference(found[index], found[index + 1], among=found, images=len(runs[0].valid))
        yield Case(f"accuracy: patch {small} − patch {large}", gain, document=AtLeast(0.0))
        slower = bootstrap(times[:, index : index + 2], lambda rows: float(np.divide(*rows.min(axis=0))))
        yield Case(f"time: patch {small} / patch {large}", slower, document=AtLeast(1.0))
    counted = [macs(run) for run in runs]
    for run, side, number in zip(runs, sides, counted, strict=True):
        expected = right(config_of(run), run.model.config.num_classes)
        yield Case(f"patch {side}: million MACs", exactly(number / 1e6), right=near(expected / 1e6, share=0.01))
    yield above_chance(trained_run(trial, "base"), "the base run")
    trial.keep("side", sides)
    trial.keep("accuracy", [float(np.mean(group)) for group in found])
    trial.keep("milliseconds", times.min(axis=0).tolist())
    trial.keep("MACs", [number / 1e6 for number in counted])


def config_of(run: Trained) -> ViTConfig:
    assert isinstance(run.recipe.model, ViTConfig)
    return run.recipe.model


def draw(outcome: ClaimOutcome) -> Figure:
    from vitreous.draw.style import BLUE, INK, side_by_side, style_axis

    figure, panels = side_by_side(3, width=2.9)
    values = outcome.series
    labels = {"accuracy": "accuracy", "milliseconds": "milliseconds per image", "MACs": "million MACs per image"}
    for axis, (name, label) in zip(panels, labels.items(), strict=True):
        axis.plot(values["side"], values[name], "o-", color=INK if name != "MACs" else BLUE, markersize=4.5)
        axis.set_xscale("log", base=2)
        axis.set_yscale("linear" if name == "accuracy" else "log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")
        axis.set_xticks(values["side"], [f"{side:g}" for side in values["side"]])
        axis.set_xlabel("side of a patch, pixels")
        axis.set_ylabel(label)
        style_axis(axis)
    return figure
