"""A finished run as one page: how it learned, what it confuses, how far to believe it, where it fails and looks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.draw import run as figures
from vitreous.files import write_atomically
from vitreous.pages import html
from vitreous.pages.run_folder import Predictions, Run, is_number, read_run
from vitreous.pages.run_masks import mask_sections
from vitreous.tasks import metrics

MOST_CLASSES_IN_MATRIX = 50
MOST_PAIRS = 20
MOST_MISTAKES = 24

#: What the head of the page tells, in this order, where the run knows it: key, words, format.
FACTS = (
    ("accuracy", "accuracy", "{:.2%}"),
    ("top5", "among the best five", "{:.2%}"),
    ("miou", "mean IoU", "{:.2%}"),
    ("pixel_accuracy", "pixel accuracy", "{:.2%}"),
    ("auroc", "mean AUROC", "{:.3f}"),
    ("average_precision", "average precision", "{:.3f}"),
    ("loss", "loss", "{:.3f}"),
    ("calibration_error", "calibration error", "{:.1%}"),
    ("images", "images seen", "{:,.0f}"),
    ("images_per_second", "images per second", "{:,.0f}"),
    ("parameters", "parameters", "{:,.0f}"),
)

#: The metrics whose curves are drawn beside the loss, by task: key in the log, title.
SCORES = {
    "classify": (("accuracy", "accuracy"),),
    "multilabel": (("auroc", "AUROC"),),
    "segment": (("pixel_accuracy", "pixel accuracy"), ("miou", "mean IoU")),
}


def write_report(run: Path) -> Path:
    """Write ``report.html`` into a run's folder, from whatever of its files is there."""
    run = Path(run)
    if not run.is_dir():
        raise ValueError(f"there is no run folder {run}; give the folder that the training wrote")
    told = read_run(run)
    sections = [part for part in parts(told) if part]
    if not sections:
        raise ValueError(f"{run} holds nothing to report: neither config.json, log.jsonl nor result.json can be read")
    path = run / "report.html"
    write_atomically(path, html.page(run.resolve().name, subtitle(told), sections, told.notes).encode())
    return path


def parts(run: Run) -> Iterator[str]:
    """The page from top to bottom."""
    yield headline(run)
    yield learning(run)
    if run.predictions is not None:
        yield from answers(run, run.predictions)
    if run.task == "segment":
        yield from mask_sections(run)
    yield mistakes_section(run)
    yield settings_section(run)


def answers(run: Run, predictions: Predictions) -> Iterator[str]:
    """What the answers on the test images show; a note instead when they cannot be measured."""
    try:
        if run.task == "multilabel":
            yield label_section(run, predictions)
        else:
            yield confusion_section(run, predictions)
            yield class_section(run, predictions)
            yield reliability_section(predictions)
    except ValueError as error:
        run.notes.append(f"The predictions were left out: {error}.")


def subtitle(run: Run) -> str:
    known = ((name, run.result.get(name)) for name in ("seed", "threads", "commit"))
    return " · ".join(f"{name} {str(value)[:12]}" for name, value in known if value is not None)


def headline(run: Run) -> str:
    told = dict(run.measures)
    seconds, images = told.get("seconds"), told.get("images")
    if is_number(images) and is_number(seconds) and seconds > 0:
        told["images_per_second"] = images / seconds
    facts = [(words, form.format(told[key])) for key, words, form in FACTS if is_number(told.get(key))]
    if is_number(seconds):
        facts.append(("time", clock(seconds)))
    return html.cards(facts) if facts else ""


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{seconds:.3g} s"


def learning(run: Run) -> str:
    score = SCORES.get(run.task, SCORES["classify"])
    panels = []
    for key, title in (("loss", "loss"), *score, ("lr", "learning rate")):
        lines = {name: run.line(kind, key) for name, kind in (("training", "train"), ("validation", "valid"))}
        if known := {name: points for name, points in lines.items() if points[0]}:
            panels.append(figures.curve(title, known))
    if not panels:
        return ""
    reading = (
        "Good training brings both losses down together. A validation loss that rises while the training loss still "
        "falls means that images are learned by heart. With mixed or strongly changed images the training line may "
        "well be the worse one: its images are harder."
    )
    return html.section("How it learned", html.drawing(*panels, width=400), reading)


def confusion_section(run: Run, predictions: Predictions) -> str:
    counts = metrics.confusion(predictions.logits, predictions.labels)
    names = [run.name(index) for index in range(len(counts))]
    if len(counts) <= MOST_CLASSES_IN_MATRIX:
        reading = (
            "A row holds the images of one class, a column those that were called so. Blue cells are right, orange "
            "ones are mistakes; the stronger the color, the larger the share of the row. Hover for the numbers."
        )
        return html.section("What it confuses", html.matrix(counts, names), reading)
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]
    pairs = [divmod(int(place), len(counts)) for place in order if wrong.flat[place]]
    rows = [(names[i], names[j], f"{wrong[i, j]:,}", f"{wrong[i, j] / counts[i].sum():.1%}") for i, j in pairs]
    reading = "The commonest mistakes; the share is of all images that truly belong to the class."
    return html.section("What it confuses", html.table(("is", "called", "times", "share"), rows, words=2), reading)


def class_section(run: Run, predictions: Predictions) -> str:
    table = metrics.per_class(metrics.confusion(predictions.logits, predictions.labels))
    order = np.argsort(np.nan_to_num(table.f1, nan=2.0), kind="stable")
    rows = [
        (
            run.name(i),
            *(share(values[i]) for values in (table.recall, table.precision, table.f1)),
            str(table.support[i]),
        )
        for i in order
    ]
    reading = (
        "The hardest classes first. Recall: of the images of the class, the share that was found. Precision: of the "
        "images called so, the share that was right. F1 is high only when both are."
    )
    columns = ("class", "recall", "precision", "F1", "images")
    return html.section("Class by class", html.table(columns, rows), reading)


def share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1%}"


def reliability_section(predictions: Predictions) -> str:
    bins = metrics.reliability(metrics.softmax(predictions.logits), predictions.labels)
    gap = float(np.nansum(bins.count * (bins.confidence - bins.accuracy)) / bins.count.sum())
    habit = (
        "more sure than right" if gap > 0.005 else "more right than sure" if gap < -0.005 else "about as sure as right"
    )
    reading = (
        f"Answers sorted by confidence: on the dashed line they are right as often as they claim; bars below it claim "
        f"too much. This model is, on the whole, {habit}. Calibration error {bins.error:.1%}: the mean distance "
        f"between dots and line over {len(bins.count)} bins, weighted by the number of answers in each."
    )
    return html.section("How far to believe it", html.drawing(figures.reliability_diagram(bins), width=520), reading)


def label_section(run: Run, predictions: Predictions) -> str:
    names = [run.name(index) for index in range(predictions.logits.shape[1])]
    columns = list(zip(predictions.logits.T, predictions.targets.T, strict=True))
    areas = [metrics.auroc(scores, truth) for scores, truth in columns]
    rows = [
        (name, number(area), number(metrics.average_precision(scores, truth)), *kinds(truth))
        for name, area, (scores, truth) in zip(names, areas, columns, strict=True)
    ]
    order = np.argsort(np.nan_to_num(areas, nan=2.0), kind="stable")
    known = [i for i in order if not math.isnan(areas[i])][:MOST_CLASSES_IN_MATRIX]
    drawn = html.bars([names[i] for i in known], [areas[i] for i in known], chance=0.5)
    table = html.table(("class", "AUROC", "average precision", "with", "without", "unknown"), [rows[i] for i in order])
    reading = (
        "The hardest labels first; bars start at guessing, and orange ones are worse than that. AUROC is the chance "
        "that an image with the label scores above one without it: 0.5 is guessing, 1 is perfect. Average precision "
        "falls with rare labels, so compare it with their share. A dash: images with, or without, the label are "
        "missing."
    )
    return html.section("Label by label", drawn + table, reading)


def number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def kinds(truth: NDArray[Any]) -> tuple[str, str, str]:
    """How many images have the label, have it not, and are unknown."""
    return str(int((truth > 0.5).sum())), str(int((truth <= 0.5).sum())), str(int(np.isnan(truth).sum()))


def mistakes_section(run: Run) -> str:
    if not run.mistakes:
        return ""
    heat = run.mistakes.get("attention")
    rows = zip(*(run.mistakes[name] for name in ("images", "true", "predicted", "probability")), strict=True)
    items = [
        (
            figures.panels(image, None if heat is None else heat[index]),
            f"{run.name(int(true))} → {run.name(int(predicted))}",
            f"{float(probability):.0%} sure",
        )
        for index, (image, true, predicted, probability) in enumerate(rows)
        if index < MOST_MISTAKES
    ]
    reading = "What the image shows → what the model said, and how sure it was."
    if heat is not None:
        reading += " The second image is bright where the last layer looked: where it fetched from, not what for."
    return html.section("Worst mistakes", html.gallery(items), reading)


def settings_section(run: Run) -> str:
    if not run.config:
        return ""
    rows = list(flattened(run.config))
    return html.section(
        "Settings", html.folded(f"{len(rows)} settings", html.table(("setting", "value"), rows, words=2))
    )


def flattened(config: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """``train.optimizer.lr`` for nested settings."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value if isinstance(value, str) else json.dumps(value)
