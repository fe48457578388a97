"""vitreous evaluate"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from rich.progress import Progress, TaskID

from vitreous.cli.show import err, out, table
from vitreous.deploy.engine import Wanted
from vitreous.deploy.evaluate import Evaluation, open_split, targets_of
from vitreous.deploy.evaluate import evaluate as measure
from vitreous.files import need_room, write_atomically
from vitreous.samples import Classes
from vitreous.tasks.base import decoder_of
from vitreous.tasks.meter import Metric
from vitreous.weights.load import load

MANY_CLASSES = 20


def evaluate(
    weights: Annotated[str, tyro.conf.Positional],
    data: str,
    model: str | None = None,
    split: Literal["auto", "train", "valid", "test"] = "auto",
    image_size: tuple[int, ...] = (),
    engine: Wanted = "eager",
    batch_size: int = 64,
    output: Path | None = None,
) -> None:
    """Measure a model on labeled images: accuracy, calibration, each class, confusions, speed.

    Args:
        weights: A weights file of ours, one of others with --model, or the name of a public weight.
        data: A folder of class folders, a CSV file, shards, CIFAR's folder, shapes or digits.
        model: The model of a foreign weights file, such as deit_tiny_16.
        split: Which part of the data; by itself its test or validation part, and all where it has none.
        image_size: Sides in pixels to try one after the other; by itself the model's own.
        engine: Run the model as it is, or accelerate it for this CPU first (auto).
        batch_size: Images at a time.
        output: A JSON file for the numbers.
    """
    if output is not None:
        need_room(output)
    net = load(weights, model=model)
    dataset = open_split(data, split, net.config.image_size, target=targets_of(decoder_of(net.spec)))
    results = []
    for side in image_size or (None,):
        with Progress(console=err, transient=True) as bar:
            task = bar.add_task("looking", total=len(dataset))
            advance = functools.partial(show_progress, bar, task)
            results.append(
                measure(net, dataset, image_size=side, engine=engine, batch_size=batch_size, progress=advance)
            )
    out.print(summary(results, len(dataset)))
    if one_label := dataset.target is Classes:
        out.print(classes_table(results[0]))
    for where, reason in list(results[0].unreadable.items())[:3]:
        err.print(f"could not be read: {where} ({reason})", markup=False)
    if output is not None:
        write_atomically(output, json.dumps([as_json(result, one_label) for result in results], indent=1).encode())


def show_progress(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def summary(results: list[Evaluation], number: int) -> object:
    names = list(results[0].metrics)[:6]
    rows = [
        (
            f"{result.image_size[0]}×{result.image_size[1]}",
            *(as_text(result.metrics[name]) for name in names),
            f"{result.images_per_second:,.0f}",
        )
        for result in results
    ]
    return table(f"On {number:,} images", ("pixels", *names, "images/s"), rows)


def as_text(value: Metric) -> str:
    return f"{value:.2%}" if value.unit == "share" else str(value)


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.1%}"


def classes_table(result: Evaluation) -> object:
    """Each class with what it is mistaken for most; of many classes the worst."""
    confusion, scores = result.confusion, result.per_class
    wrong = confusion - np.diag(np.diag(confusion))
    worst = np.argsort(scores.recall)[:MANY_CLASSES] if len(confusion) > MANY_CLASSES else range(len(confusion))
    rows = []
    for index in worst:
        other = int(wrong[index].argmax())
        mistaken = f"{result.classes[other]} ({wrong[index, other]})" if wrong[index].any() else "–"
        numbers = (percent(values[index]) for values in (scores.recall, scores.precision, scores.f1))
        rows.append((result.classes[index], mistaken, *numbers, f"{int(scores.support[index]):,}"))
    title = "Each class" if len(confusion) <= MANY_CLASSES else f"The {MANY_CLASSES} hardest classes"
    return table(title, ("class", "mistaken most for", "recall", "precision", "F1", "images"), rows, left=2)


def as_json(result: Evaluation, one_label: bool) -> dict[str, object]:
    found = {
        "image_size": result.image_size,
        "metrics": result.metrics,
        "images_per_second": round(result.images_per_second, 1),
        "images": len(result.meter),
        "unreadable": result.unreadable,
        "classes": result.classes,
    }
    return found | {"confusion": result.confusion.tolist()} if one_label else found
