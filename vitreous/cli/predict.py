"""vitreous predict"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from vitreous.cli.image_paths import Images, Weights, fingerprint, make_predictor, report_skipped, with_progress
from vitreous.cli.resumable import forget, journalled
from vitreous.cli.show import err, longest, out, shortened
from vitreous.data.image_files import find_images, open_image, printable
from vitreous.deploy.engine import Wanted
from vitreous.deploy.predictor import Predictor, Skipped
from vitreous.files import need_room, write_atomically
from vitreous.tasks.predictions import Prediction

Format = Literal["table", "jsonl", "csv"]


def predict(
    weights: Weights,
    images: Images,
    model: str | None = None,
    top: int = 5,
    format: Format = "table",
    output: Path | None = None,
    draw: Path | None = None,
    engine: Wanted = "eager",
    batch_size: int = 32,
) -> None:
    """Predict what images show: classes, labels or masks, as the model's task says.

    Args:
        weights: A weights file of ours, one of others with --model, or the name of a public weight.
        images: Files, folders, or patterns in quotes.
        model: The model of a foreign weights file, such as deit_tiny_16.
        top: How many classes to tell.
        format: A table to read, or JSON lines or CSV to go on with.
        output: A file for jsonl or csv; an interrupted run goes on when it is started again.
        draw: A folder for the images with the predictions drawn on them.
        engine: Run the model as it is, or accelerate it for this CPU first (auto).
        batch_size: Images at a time.
    """
    prepare_places(format, output, draw)
    paths = find_images(images)
    predictor = make_predictor(weights, model, engine=engine, top=top, batch_size=batch_size)
    task = predictor.model.spec.task
    if format == "csv" and task not in ("classify", "multilabel"):
        raise ValueError(f"a CSV holds classes, this model's task is {task!r}; give --format jsonl")
    found = drawn(predictor.predict_many(paths), paths, draw)
    if format == "table":
        lines = answer(found, paths)
        out.print(pretty(lines))
    elif output is None:
        lines = stream(found, paths, format, top)
    else:
        lines = resume(predictor, paths, output, {"weights": fingerprint(weights), "top": top}, format, top)
        err.print(f"{sum('skipped' not in line for line in lines):,} images in {output}", markup=False)
    report_skipped({line["file"]: line["skipped"] for line in lines if "skipped" in line}, len(lines))


def prepare_places(format: Format, output: Path | None, draw: Path | None) -> None:
    """Refuse, before the work is done, places that do not go together or cannot be written to."""
    if output is not None:
        if format == "table":
            raise ValueError("a table is for reading; give --format jsonl or --format csv with --output")
        if draw is not None:
            raise ValueError("--draw and --output do not go together: an interrupted output is resumed without drawing")
        need_room(output)
    if draw is not None:
        draw.mkdir(parents=True, exist_ok=True)
        need_room(draw / "0000.png")


def answer(answers: Iterable[Prediction | Skipped], paths: list[Path]) -> list[dict[str, Any]]:
    counted = with_progress(answers, len(paths))
    return [as_line(path, one) for path, one in zip(paths, counted, strict=True)]


def as_line(path: Path, one: Prediction | Skipped) -> dict[str, Any]:
    if isinstance(one, Skipped):
        return {"file": printable(path), "skipped": one.reason}
    return {"file": printable(path), **one.to_json()}


def drawn(
    found: Iterable[Prediction | Skipped], paths: list[Path], folder: Path | None
) -> Iterator[Prediction | Skipped]:
    """The predictions, each drawn onto its image where there is a folder for that."""
    for number, (path, one) in enumerate(zip(paths, found, strict=True)):
        if folder is not None and isinstance(one, Prediction):
            one.draw(open_image(path)).save(folder / f"{number:04} {path.stem}.png")
        yield one


def stream(found: Iterable[Prediction | Skipped], paths: list[Path], format: Format, top: int) -> list[dict[str, Any]]:
    """Each line as soon as it is known."""
    lines = []
    for path, one in zip(paths, found, strict=True):
        lines.append(as_line(path, one))
        print(as_text(lines[-1:], format, top, header=len(lines) == 1), end="", flush=True)
    return lines


def resume(
    predictor: Predictor, paths: list[Path], output: Path, run: dict[str, Any], format: Format, top: int
) -> list[dict[str, Any]]:
    """Answer what no earlier run has answered; only when all is done does the output appear, whole."""
    lines = journalled(paths, output, run, predictor.predict_many, as_line)
    write_atomically(output, as_text(lines, format, top).encode())
    forget(output)
    return lines


def as_text(lines: list[dict[str, Any]], format: Format, top: int, *, header: bool = True) -> str:
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


def ranked(line: dict[str, Any]) -> dict[str, Any]:
    """Classes with their probabilities; of a mask the shares of the image that they cover."""
    shares = line.get("shares")
    return line if shares is None else {**line, "classes": list(shares), "probabilities": list(shares.values())}


def pretty(lines: list[dict[str, Any]]) -> Table:
    """The best class with a bar for its share, and the next ones small beside it."""
    good = [ranked(line) for line in lines if "skipped" not in line]
    wide = out.width >= 100
    names = [shortened(line["file"], 40 if wide else 26) for line in good]
    taken = longest(names) + longest(line["classes"][0] for line in good) + 6 + (12 + 3 if wide else 0) + 4 * 3
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("image", "prediction", "", *([""] if wide else [])):
        table.add_column(heading, no_wrap=True)
    table.add_column("or", style="dim", no_wrap=True)
    for name, line in zip(names, good, strict=True):
        (best, *others), (share, *rest) = line["classes"], line["probabilities"]
        bar = Text("█" * max(1, round(12 * share)), style="green" if share >= 0.5 else "yellow")
        also = Text(", ".join(f"{other} {part:.1%}" for other, part in zip(others, rest, strict=True)))
        also.truncate(max(10, out.width - taken), overflow="ellipsis")
        middle = [bar] if wide else []
        table.add_row(Text(name), Text(best, style="bold"), f"{share:6.1%}", *middle, also)
    return table
