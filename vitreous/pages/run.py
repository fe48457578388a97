"""Write the report of a run: metrics, learning curves, confusion matrix, calibration, worst mistakes, settings."""

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
from vitreous.pages.run_folder import Predictions, RunFolder, is_number, read_run_folder
from vitreous.pages.run_masks import mask_sections
from vitreous.tasks import metrics

MAX_CLASSES_IN_MATRIX = 50
MAX_PAIRS = 20
MAX_MISTAKES = 24

#: Metrics at the top of the page, in this order, if the run has them: key, label, format.
FACTS = (
    ("accuracy", "accuracy", "{:.2%}"),
    ("top5", "top-5 accuracy", "{:.2%}"),
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

#: Metrics whose curves are drawn beside the loss, by task: key in the log, title.
SCORES = {
    "classify": (("accuracy", "accuracy"),),
    "multilabel": (("auroc", "AUROC"),),
    "segment": (("pixel_accuracy", "pixel accuracy"), ("miou", "mean IoU")),
}


def write_report(run: Path) -> Path:
    """Write ``report.html`` into the folder of a run, from those of its files that exist.

    Returns:
        The path of the report.

    Raises:
        ValueError: If the folder does not exist, or holds nothing to report.
    """
    folder = Path(run)
    if not folder.is_dir():
        raise ValueError(f"there is no run folder {folder}; pass the folder that training wrote")
    contents = read_run_folder(folder)
    sections = [section for section in page_sections(contents) if section]
    if not sections:
        raise ValueError(f"nothing to report in {folder}: no readable config.json, log.jsonl or result.json")
    path = folder / "report.html"
    write_atomically(path, html.page(folder.resolve().name, subtitle(contents), sections, contents.notes).encode())
    return path


def page_sections(run: RunFolder) -> Iterator[str]:
    """The sections of the page from top to bottom; empty where there is no data."""
    yield headline(run)
    yield curves_section(run)
    if run.predictions is not None:
        yield from prediction_sections(run, run.predictions)
    if run.task == "segment":
        yield from mask_sections(run)
    yield mistakes_section(run)
    yield settings_section(run)


def prediction_sections(run: RunFolder, predictions: Predictions) -> Iterator[str]:
    """Sections about the predictions on the validation images; a note in their place if they cannot be evaluated."""
    try:
        if run.task == "multilabel":
            yield label_section(run, predictions)
        else:
            yield confusion_section(run, predictions)
            yield class_section(run, predictions)
            yield reliability_section(predictions)
    except ValueError as error:
        run.notes.append(f"The predictions were skipped: {error}.")


def subtitle(run: RunFolder) -> str:
    known = ((name, run.result.get(name)) for name in ("seed", "threads", "commit"))
    return " · ".join(f"{name} {str(value)[:12]}" for name, value in known if value is not None)


def headline(run: RunFolder) -> str:
    measures = dict(run.measures)
    seconds, images = measures.get("seconds"), measures.get("images")
    if is_number(images) and is_number(seconds) and seconds > 0:
        measures["images_per_second"] = images / seconds
    facts = [(label, form.format(measures[key])) for key, label, form in FACTS if is_number(measures.get(key))]
    if is_number(seconds):
        facts.append(("time", clock(seconds)))
    return html.cards(facts) if facts else ""


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{seconds:.3g} s"


def curves_section(run: RunFolder) -> str:
    score = SCORES.get(run.task, SCORES["classify"])
    panels = []
    for key, title in (("loss", "loss"), *score, ("lr", "learning rate")):
        lines = {name: run.line(kind, key) for name, kind in (("training", "train"), ("validation", "valid"))}
        if known := {name: points for name, points in lines.items() if points[0]}:
            panels.append(figures.learning_curve(title, known))
    if not panels:
        return ""
    reading = (
        "In good training both losses fall together. A validation loss that rises while the training loss still falls "
        "indicates overfitting. With strong augmentation or mixup the training loss may well be the higher one: its "
        "images are harder."
    )
    return html.section("Learning curves", html.drawing(*panels, width=400), reading)


def confusion_section(run: RunFolder, predictions: Predictions) -> str:
    counts = metrics.confusion(predictions.logits, predictions.labels)
    names = [run.name(index) for index in range(len(counts))]
    if len(counts) <= MAX_CLASSES_IN_MATRIX:
        reading = (
            "Rows are true classes, columns predicted classes. Blue cells are correct predictions, orange ones are "
            "mistakes; the stronger the color, the larger the fraction of the row. Hover for the numbers."
        )
        return html.section("Confusion matrix", html.matrix(counts, names), reading)
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_PAIRS]
    pairs = [divmod(int(flat), len(counts)) for flat in order if wrong.flat[flat]]
    rows = [(names[i], names[j], f"{wrong[i, j]:,}", f"{wrong[i, j] / counts[i].sum():.1%}") for i, j in pairs]
    reading = "The most frequent mistakes; the fraction is relative to all images of the true class."
    columns = ("true class", "predicted", "count", "fraction")
    return html.section("Most frequent confusions", html.table(columns, rows, words=2), reading)


def class_section(run: RunFolder, predictions: Predictions) -> str:
    table = metrics.per_class(metrics.confusion(predictions.logits, predictions.labels))
    order = np.argsort(np.nan_to_num(table.f1, nan=2.0), kind="stable")
    rows = [
        (
            run.name(i),
            *(percent(values[i]) for values in (table.recall, table.precision, table.f1)),
            str(table.support[i]),
        )
        for i in order
    ]
    reading = (
        "Sorted by F1, the hardest classes first. Recall: correct / belonging to the class. Precision: correct / "
        "predicted as the class. F1 is their harmonic mean."
    )
    columns = ("class", "recall", "precision", "F1", "images")
    return html.section("Per-class metrics", html.table(columns, rows), reading)


def percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1%}"


def reliability_section(predictions: Predictions) -> str:
    bins = metrics.reliability(metrics.softmax(predictions.logits), predictions.labels)
    gap = float(np.nansum(bins.count * (bins.confidence - bins.accuracy)) / bins.count.sum())
    verdict = "overconfident" if gap > 0.005 else "underconfident" if gap < -0.005 else "well calibrated on average"
    reading = (
        f"Reliability diagram: accuracy of the predictions by confidence. On the dashed line accuracy equals "
        f"confidence; bars below it are overconfident. This model is {verdict}. Expected calibration error "
        f"{bins.error:.1%}: the mean distance between dots and line over {len(bins.count)} bins, weighted by the "
        f"number of predictions in each."
    )
    return html.section("Calibration", html.drawing(figures.reliability_diagram(bins), width=520), reading)


def label_section(run: RunFolder, predictions: Predictions) -> str:
    names = [run.name(index) for index in range(predictions.logits.shape[1])]
    columns = list(zip(predictions.logits.T, predictions.targets.T, strict=True))
    areas = [metrics.auroc(scores, truth) for scores, truth in columns]
    rows = [
        (name, number(area), number(metrics.average_precision(scores, truth)), *label_counts(truth))
        for name, area, (scores, truth) in zip(names, areas, columns, strict=True)
    ]
    order = np.argsort(np.nan_to_num(areas, nan=2.0), kind="stable")
    known = [i for i in order if not math.isnan(areas[i])][:MAX_CLASSES_IN_MATRIX]
    drawn = html.bars([names[i] for i in known], [areas[i] for i in known], chance=0.5)
    table = html.table(("class", "AUROC", "average precision", "with", "without", "unknown"), [rows[i] for i in order])
    reading = (
        "Sorted by AUROC, the hardest labels first; bars start at chance level (0.5), and orange ones are below it. "
        "AUROC is the probability that an image with the label scores above one without it. Average precision is lower "
        "for rare labels, so compare it with their frequency. A dash means that all images, or none, have the label."
    )
    return html.section("Per-label metrics", drawn + table, reading)


def number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def label_counts(truth: NDArray[Any]) -> tuple[str, str, str]:
    """Number of images with the label, without it, and with unknown label."""
    return str(int((truth > 0.5).sum())), str(int((truth <= 0.5).sum())), str(int(np.isnan(truth).sum()))


def mistakes_section(run: RunFolder) -> str:
    if not run.mistakes:
        return ""
    heat = run.mistakes.get("attention")
    rows = zip(*(run.mistakes[name] for name in ("images", "true", "predicted", "probability")), strict=True)
    items = [
        (
            figures.panels(image, None if heat is None else heat[index]),
            f"{run.name(int(true))} → {run.name(int(predicted))}",
            f"confidence {float(probability):.0%}",
        )
        for index, (image, true, predicted, probability) in enumerate(rows)
        if index < MAX_MISTAKES
    ]
    reading = "True class → predicted class, and the confidence of the prediction."
    if heat is not None:
        reading += " The second image shows the mean attention of the last block: where it reads, not what decides."
    return html.section("Most confident mistakes", html.gallery(items), reading)


def settings_section(run: RunFolder) -> str:
    if not run.config:
        return ""
    rows = list(flattened(run.config))
    return html.section(
        "Settings", html.folded(f"{len(rows)} settings", html.table(("setting", "value"), rows, words=2))
    )


def flattened(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten nested settings to dotted names such as ``train.optimizer.lr``."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)
