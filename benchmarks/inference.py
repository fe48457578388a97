"""Ours and everybody else's, interleaved in one run: images a second as ratios, and as a share of what the CPU can do.

    make bench                                    everything: some minutes for each model and batch size
    python -m benchmarks.inference --models vit_base_16 --batches 8 --seconds 120
    python -m benchmarks.inference --docs docs    also writes the page, its figure and its record
    python -m benchmarks.inference --quick        few rounds: does it work?

All contestants (``rivals.py``) are built and run once, which compiles what compiles; then they take turns, round by
round, for as long as ``--seconds`` says. Images are noise and weights fresh, which cost what real ones cost. ``error``
is the distance of the logits from those of timm's model with the same weights in float32, relative to their length.
Who cannot take part is named with the reason.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from benchmarks.interleave import interleave_for, speed_up, spread
from benchmarks.limit import cpu, limits
from benchmarks.record import write_record
from benchmarks.rivals import BASELINE, CONTESTANTS, TIMM_NAMES, Contestant, Course, Runner
from benchmarks.standings import draw, page, table

MODELS = ("vit_tiny_16", "vit_small_16", "vit_base_16", "swin_tiny")
SEED = 0

Standing = dict[str, Any]  # one contestant's row, or one race's rows: what the record holds


def race(name: str, batch: int, seconds: float, fewest: int, console: Console) -> Standing:
    """One model at one batch size: everybody's row, the limits of the CPU meanwhile, and who did not run and why."""
    with tempfile.TemporaryDirectory() as folder:
        course = Course.lay(name, batch, Path(folder))
        runners, rows, absent = line_up(course, console)
        with console.status(f"{name}, batch {batch}: {len(runners)} contestants take turns"), torch.inference_mode():
            before = limits()
            times = interleave_for(
                seconds, {key: lambda run=run: run(course.images) for key, run in runners.items()}, fewest
            )
            reached = {key: max(rate, before.get(key, 0.0)) for key, rate in limits().items()}
    for row in rows:
        row |= timing(times, row["name"], batch)
        row["share"] = share(row, course.operations / batch, reached)
    rounds = len(times[BASELINE])
    return {"model": name, "batch": batch, "rounds": rounds, "limits": reached, "rows": rows, "absent": absent}


def line_up(course: Course, console: Console) -> tuple[dict[str, Runner], list[Standing], dict[str, str]]:
    """Who can run, what is known of them before the race, and who cannot and why."""
    runners: dict[str, Runner] = {}
    rows: list[Standing] = []
    absent: dict[str, str] = {}
    with torch.inference_mode():
        truth = course.reference(course.images)
    for contestant in CONTESTANTS:
        with console.status(f"{course.name}, batch {len(course.images)}: preparing {contestant.name}"):
            try:
                runners[contestant.name], row = enter(contestant, course, truth)
                rows.append(row)
            except Exception as error:
                absent[contestant.name] = reason(error)
    return runners, rows, absent


def enter(contestant: Contestant, course: Course, truth: Tensor) -> tuple[Runner, Standing]:
    """Built and run once: the first pass compiles, or fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = contestant.build(course)
        with torch.inference_mode():
            logits = runner(course.images)
    error = float((logits - truth).norm() / truth.norm()) if contestant.same_weights else None
    report = getattr(runner, "report", None)
    return runner, {
        "name": contestant.name,
        "precision": getattr(report, "precision", contestant.precision),
        "engine": getattr(report, "engine", None),
        "report": str(report) if report else None,
        "error": error,
    }


def reason(error: Exception) -> str:
    """In one line; a package that is missing says so."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed"
    first = next(iter(str(error).strip().splitlines()), "no reason given")
    return first if isinstance(error, ValueError) else f"{type(error).__name__}: {first}"


def timing(times: Mapping[str, list[float]], name: str, batch: int) -> Standing:
    low, median, high = spread(times, BASELINE)[name]
    return {
        "images_per_second": batch / min(times[name]),
        "speed_up": speed_up(times, BASELINE)[name][0],
        "median": median,
        "quartiles": [low, high],
    }


def share(row: Standing, operations: float, rates: Mapping[str, float]) -> float | None:
    """Of the limit in the row's precision; None where that is not known."""
    limit = rates.get(row["precision"])
    return row["images_per_second"] * operations / limit if limit else None


def races(options: argparse.Namespace, console: Console) -> Iterator[Standing]:
    for name in options.models:
        for batch in options.batches:
            fewest, seconds = (3, 5.0) if options.quick else (5, options.seconds)
            yield race(name, batch, seconds, fewest, console)
            torch._dynamo.reset()
            gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=TIMM_NAMES, default=MODELS, metavar="NAME")
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 8))
    parser.add_argument("--seconds", type=float, default=60, help="of rounds, for each model and batch size")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--docs", type=Path, help="folder that gets bench.md, images/bench.png and images/bench.json")
    options = parser.parse_args()
    console = Console(stderr=True)
    print(f"{cpu()}, torch {torch.__version__}, {torch.get_num_threads()} threads, 224 pixels")
    results: list[Standing] = []
    for result in races(options, console):
        results.append(result)
        print(table(result), flush=True)
        if options.docs:
            publish(options.docs, results)


def publish(docs: Path, results: list[Standing]) -> None:
    """After every race, so that one which ends the process does not take the others with it."""
    images = docs / "images"
    record = write_record(images / "bench.json", "benchmarks.inference", SEED, machine=cpu(), results=results)
    draw(results).savefig(images / "bench.png", dpi=110)
    (docs / "bench.md").write_text(page(record))


if __name__ == "__main__":
    main()
