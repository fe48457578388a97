"""vitreous predict"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from vitreous.cli.arguments import Architecture, Images, Weights, defaults_to
from vitreous.cli.display import abbreviated, err, longest, out, shortened
from vitreous.cli.image_paths import EngineChoice, fingerprint, make_predictor, report_skipped, with_progress
from vitreous.cli.resumable import remove_journal, run_resumable
from vitreous.data.image_files import find_images, open_image, printable
from vitreous.deploy.predictor import Predictor, Skipped
from vitreous.files import check_writable, write_atomically
from vitreous.tasks.predictions import Prediction

Format = Literal["table", "jsonl", "csv"]


def predict(
    weights: Weights,
    images: Images,
    model: Architecture = None,
    top: int = 5,
    format: Format = "table",
    output: Annotated[Path | None, defaults_to("standard output")] = None,
    draw: Annotated[Path | None, defaults_to("no drawings")] = None,
    engine: EngineChoice = "eager",
    batch_size: int = 32,
) -> None:
    """Predict classes, labels or masks of images, depending on the model's task.

    Args:
        top: Number of classes per image.
        format: A table for reading, or JSON lines or CSV for further processing.
        output: File for JSON lines or CSV; if interrupted, the same command resumes.
        draw: Folder for copies of the images with the predictions drawn on them.
        batch_size: Images per batch.
    """
    check_outputs(format, output, draw)
    paths = find_images(images)
    predictor = make_predictor(weights, model, engine=engine, top=top, batch_size=batch_size)
    task = predictor.model.spec.task
    if format == "csv" and task not in ("classify", "multilabel"):
        raise ValueError(f"CSV output supports classification only, this model's task is {task!r}; use --format jsonl")
    found = drawn(predictor.predict_many(paths), paths, draw)
    if format == "table":
        lines = collect(found, paths)
        out.print(prediction_table(lines))
    elif output is None:
        lines = stream(found, paths, format, top)
    else:
        lines = predict_resumable(predictor, paths, output, {"weights": fingerprint(weights), "top": top}, format, top)
        err.print(f"{sum('skipped' not in line for line in lines):,} predictions written to {output}", markup=False)
    report_skipped({line["file"]: line["skipped"] for line in lines if "skipped" in line}, len(lines))


def check_outputs(format: Format, output: Path | None, draw: Path | None) -> None:
    """Reject conflicting options and unwritable outputs before any image is processed."""
    if output is not None:
        if format == "table":
            raise ValueError("--output needs --format jsonl or --format csv, not a table")
        if draw is not None:
            raise ValueError(
                "--draw cannot be combined with --output: a resumed run would not draw the images already done"
            )
        check_writable(output)
    if draw is not None:
        draw.mkdir(parents=True, exist_ok=True)
        check_writable(draw / "0000.png")


def collect(found: Iterable[Prediction | Skipped], paths: list[Path]) -> list[dict[str, Any]]:
    """Run every prediction, with a progress bar."""
    counted = with_progress(found, len(paths))
    return [as_line(path, one) for path, one in zip(paths, counted, strict=True)]


def as_line(path: Path, one: Prediction | Skipped) -> dict[str, Any]:
    """Convert a prediction to a JSON record."""
    if isinstance(one, Skipped):
        return {"file": printable(path), "skipped": one.reason}
    return {"file": printable(path), **one.to_json()}


def drawn(
    found: Iterable[Prediction | Skipped], paths: list[Path], folder: Path | None
) -> Iterator[Prediction | Skipped]:
    """Yield the predictions; if ``folder`` is given, save each image with its prediction drawn on it."""
    for number, (path, one) in enumerate(zip(paths, found, strict=True)):
        if folder is not None and isinstance(one, Prediction):
            one.draw(open_image(path)).save(folder / f"{number:04} {path.stem}.png")
        yield one


def stream(found: Iterable[Prediction | Skipped], paths: list[Path], format: Format, top: int) -> list[dict[str, Any]]:
    """Print each prediction as soon as it is available."""
    lines = []
    for path, one in zip(paths, found, strict=True):
        lines.append(as_line(path, one))
        print(as_text(lines[-1:], format, top, header=len(lines) == 1), end="", flush=True)
    return lines


def predict_resumable(
    predictor: Predictor, paths: list[Path], output: Path, run: dict[str, Any], format: Format, top: int
) -> list[dict[str, Any]]:
    """Predict the images that no interrupted run has finished, then write the output atomically."""
    lines = run_resumable(paths, output, run, predictor.predict_many, as_line)
    write_atomically(output, as_text(lines, format, top).encode())
    remove_journal(output)
    return lines


def as_text(lines: list[dict[str, Any]], format: Format, top: int, *, header: bool = True) -> str:
    """Format records as JSON lines or CSV."""
    if format == "jsonl":
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        ranked = (f"{kind}{rank}" for rank in range(1, top + 1) for kind in ("class", "probability"))
        writer.writerow(["file", *ranked, "skipped"])
    for line in lines:
        pairs = zip(line.get("classes", []), line.get("probabilities", []), strict=True)
        cells = [cell for pair in pairs for cell in pair]
        writer.writerow([line["file"], *cells, *[""] * (2 * top - len(cells)), line.get("skipped", "")])
    return text.getvalue()


def with_classes(line: dict[str, Any]) -> dict[str, Any]:
    """Treat the area fractions of a mask as class probabilities."""
    shares = line.get("shares")
    return line if shares is None else {**line, "classes": list(shares), "probabilities": list(shares.values())}


def prediction_table(lines: list[dict[str, Any]]) -> Table:
    """Tabulate the best class with a bar for its probability, and the runners-up beside it."""
    good = [with_classes(line) for line in lines if "skipped" not in line]
    wide = out.width >= 100
    names = [shortened(line["file"], 40 if wide else 26) for line in good]
    if len(set(names)) < len(names):  # the same file name in several folders
        names = [abbreviated(line["file"], 40 if wide else 26) for line in good]
    taken = longest(names) + longest(line["classes"][0] for line in good) + 6 + (12 + 3 if wide else 0) + 4 * 3
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("image", "prediction", "", *([""] if wide else [])):
        table.add_column(heading, no_wrap=True)
    table.add_column("next", style="dim", no_wrap=True)
    for name, line in zip(names, good, strict=True):
        (best, *others), (share, *rest) = line["classes"], line["probabilities"]
        bar = Text("█" * max(1, round(12 * share)), style="green" if share >= 0.5 else "yellow")
        also = Text(", ".join(f"{other} {part:.1%}" for other, part in zip(others, rest, strict=True)))
        also.truncate(max(10, out.width - taken), overflow="ellipsis")
        middle = [bar] if wide else []
        table.add_row(Text(name), Text(best, style="bold"), f"{share:6.1%}", *middle, also)
    return table
