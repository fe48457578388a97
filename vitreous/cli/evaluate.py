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

from vitreous.cli.arguments import DATA_HELP, Architecture, WeightsOrName, defaults_to
from vitreous.cli.display import err, out, table
from vitreous.cli.image_paths import EngineChoice
from vitreous.data.base import Dataset
from vitreous.deploy.evaluate import Evaluation, open_split, targets_of
from vitreous.deploy.evaluate import evaluate as measure
from vitreous.files import check_writable, write_atomically
from vitreous.runs.fingerprint import Fingerprint, count_trained_on
from vitreous.samples import Classes
from vitreous.tasks.base import find_decoder
from vitreous.tasks.many_classes import MANY_CLASSES
from vitreous.tasks.meter import Metric
from vitreous.weights.load import load

SHOWN_CLASSES = 20


def evaluate(
    weights: WeightsOrName,
    data: Annotated[str, tyro.conf.arg(help=DATA_HELP)],
    model: Architecture = None,
    split: Literal["auto", "train", "valid", "test"] = "auto",
    image_size: Annotated[tuple[int, ...], defaults_to("the model's own")] = (),
    engine: EngineChoice = "eager",
    batch_size: int = 64,
    output: Annotated[Path | None, defaults_to("not written")] = None,
) -> None:
    """Evaluate a model on labeled images: accuracy, calibration, per-class metrics, confusions and throughput.

    Args:
        split: Split to evaluate on; auto takes the test split, else the validation split, else all images.
        image_size: One or more side lengths in pixels, evaluated in turn.
        batch_size: Images per batch.
        output: JSON file for the results.
    """
    if output is not None:
        check_writable(output)
    net = load(weights, model=model)
    dataset = open_split(data, split, net.config.image_size, target=targets_of(find_decoder(net.spec)))
    warn_of_training_images(Path(weights), dataset, Path(data))
    results = []
    for side in image_size or (None,):
        with Progress(console=err, transient=True) as bar:
            task = bar.add_task("evaluating", total=len(dataset))
            advance = functools.partial(show_progress, bar, task)
            results.append(
                measure(net, dataset, image_size=side, engine=engine, batch_size=batch_size, progress=advance)
            )
    out.print(summary(results, len(dataset)))
    if one_label := dataset.target is Classes:
        out.print(classes_table(results[0]))
    if by_class := [name for name in results[0].metrics if "/" in name]:  # such as iou/background
        rows = [(name.partition("/")[2], as_text(results[0].metrics[name])) for name in by_class]
        out.print(table("By class", ("class", by_class[0].partition("/")[0]), rows))
    for where, reason in list(results[0].unreadable.items())[:3]:
        err.print(f"unreadable image: {where} ({reason})", markup=False)
    if output is not None:
        write_atomically(output, json.dumps([as_json(result, one_label) for result in results], indent=1).encode())


def warn_of_training_images(weights: Path, dataset: Dataset, source: Path) -> None:
    """Warn if the run that made the weights was trained on some of the images."""
    record = weights.parent / "data.json"
    if not record.is_file():
        return
    try:
        fingerprint = Fingerprint.from_bytes(record.read_bytes())
    except ValueError:
        return
    root = source if source.is_dir() else source.parent
    if number := count_trained_on(fingerprint, dataset, root):
        err.print(
            f"[yellow]warning:[/yellow] the model was trained on {number:,} of these {len(dataset):,} images, so the "
            "results are too optimistic; --split valid takes the images that its training held out",
            soft_wrap=True,
        )


def show_progress(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def summary(results: list[Evaluation], number: int) -> object:
    """Tabulate metrics and throughput, one row per image size."""
    names = [name for name in results[0].metrics if "/" not in name][:6]
    rows = [
        (
            f"{result.image_size[0]}×{result.image_size[1]}",
            *(as_text(result.metrics[name]) for name in names),
            f"{result.images_per_second:,.0f}",
        )
        for result in results
    ]
    return table(f"Evaluation on {number:,} images", ("pixels", *names, "images/s"), rows)


def as_text(value: Metric) -> str:
    return f"{value:.2%}" if value.unit == "share" else str(value)


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.1%}"


def classes_table(result: Evaluation) -> object:
    """Tabulate per-class metrics and confusions, for the classes of lowest recall if there are many."""
    scores, many = result.per_class, len(result.classes) > SHOWN_CLASSES
    worst = np.argsort(scores.recall)[:SHOWN_CLASSES] if many else range(len(result.classes))
    rows = []
    for index in worst:
        wrong = result.confused(index).copy()
        wrong[index] = 0
        other = int(wrong.argmax())
        confused = f"{result.classes[other]} ({wrong[other]})" if wrong.any() else "–"
        numbers = (percent(values[index]) for values in (scores.recall, scores.precision, scores.f1))
        rows.append((result.classes[index], confused, *numbers, f"{int(scores.support[index]):,}"))
    title = f"The {SHOWN_CLASSES} classes of lowest recall" if many else "Per-class metrics"
    return table(title, ("class", "most confused with", "recall", "precision", "F1", "images"), rows, left=2)


def as_json(result: Evaluation, one_label: bool) -> dict[str, object]:
    found = {
        "image_size": result.image_size,
        "metrics": result.metrics,
        "images_per_second": round(result.images_per_second, 1),
        "images": len(result.meter),
        "unreadable": result.unreadable,
        "classes": result.classes,
    }
    drawable = one_label and len(result.classes) <= MANY_CLASSES
    return found | {"confusion": result.confusion.tolist()} if drawable else found
