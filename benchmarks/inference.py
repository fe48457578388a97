"""Inference speed of Vitreous and other libraries, interleaved: ratios, and share of the CPU's measured limit.

    make bench                                    everything: some minutes per model and batch size
    python -m benchmarks.inference --models vit_base_16 --batches 8 --seconds 120
    python -m benchmarks.inference --docs docs    also writes the page, its figure and its record
    python -m benchmarks.inference --quick        a few rounds, as a smoke test

All implementations (``implementations.py``) are built and run once, including compilation; then they alternate, round
by round, for ``--seconds``. Images are noise and weights random, which cost the same as real ones. ``error`` is the
relative error of the logits against timm's model with the same weights in float32. Implementations that cannot run are
listed with the reason.
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

from benchmarks.implementations import BASELINE, IMPLEMENTATIONS, TIMM_NAMES, Implementation, Runner, Workload
from benchmarks.interleave import interleave_for, speed_up, spread
from benchmarks.limit import cpu, limits
from benchmarks.record import write_record
from benchmarks.standings import draw, page, table

MODELS = ("vit_tiny_16", "vit_small_16", "vit_base_16", "swin_tiny")
SEED = 0

ResultRow = dict[str, Any]  # an implementation's row, or a comparison's rows, as stored in the record


def compare(name: str, batch: int, seconds: float, fewest: int, console: Console) -> ResultRow:
    """Compare all implementations on one model and batch size, with the CPU's limits at the time."""
    with tempfile.TemporaryDirectory() as folder:
        workload = Workload.create(name, batch, Path(folder))
        runners, rows, absent = prepare_all(workload, console)
        with console.status(f"{name}, batch {batch}: timing {len(runners)} implementations"), torch.inference_mode():
            before = limits()
            times = interleave_for(
                seconds, {key: lambda run=run: run(workload.images) for key, run in runners.items()}, fewest
            )
            reached = {key: max(rate, before.get(key, 0.0)) for key, rate in limits().items()}
    for row in rows:
        row |= timing(times, row["name"], batch)
        row["share"] = share(row, workload.operations / batch, reached)
    rounds = len(times[BASELINE])
    return {"model": name, "batch": batch, "rounds": rounds, "limits": reached, "rows": rows, "absent": absent}


def prepare_all(workload: Workload, console: Console) -> tuple[dict[str, Runner], list[ResultRow], dict[str, str]]:
    """Return runners, their rows before timing, and the reasons of those that cannot run."""
    runners: dict[str, Runner] = {}
    rows: list[ResultRow] = []
    absent: dict[str, str] = {}
    with torch.inference_mode():
        reference_logits = workload.reference(workload.images)
    for implementation in IMPLEMENTATIONS:
        with console.status(f"{workload.name}, batch {len(workload.images)}: preparing {implementation.name}"):
            try:
                runners[implementation.name], row = prepare_one(implementation, workload, reference_logits)
                rows.append(row)
            except Exception as error:
                absent[implementation.name] = reason(error)
    return runners, rows, absent


def prepare_one(
    implementation: Implementation, workload: Workload, reference_logits: Tensor
) -> tuple[Runner, ResultRow]:
    """Build and run once: the first pass compiles, or fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = implementation.build(workload)
        with torch.inference_mode():
            logits = runner(workload.images)
    error = float((logits - reference_logits).norm() / reference_logits.norm()) if implementation.same_weights else None
    report = getattr(runner, "report", None)
    return runner, {
        "name": implementation.name,
        "precision": getattr(report, "precision", implementation.precision),
        "engine": getattr(report, "engine", None),
        "report": str(report) if report else None,
        "error": error,
    }


def reason(error: Exception) -> str:
    """Summarize an error in one line; a missing package is named."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed"
    first = next(iter(str(error).strip().splitlines()), "no reason given")
    return first if isinstance(error, ValueError) else f"{type(error).__name__}: {first}"


def timing(times: Mapping[str, list[float]], name: str, batch: int) -> ResultRow:
    low, median, high = spread(times, BASELINE)[name]
    return {
        "images_per_second": batch / min(times[name]),
        "speed_up": speed_up(times, BASELINE)[name][0],
        "median": median,
        "quartiles": [low, high],
    }


def share(row: ResultRow, operations: float, rates: Mapping[str, float]) -> float | None:
    """Share of the limit in the row's precision; None if that is unknown."""
    limit = rates.get(row["precision"])
    return row["images_per_second"] * operations / limit if limit else None


def comparisons(options: argparse.Namespace, console: Console) -> Iterator[ResultRow]:
    for name in options.models:
        for batch in options.batches:
            fewest, seconds = (3, 5.0) if options.quick else (5, options.seconds)
            yield compare(name, batch, seconds, fewest, console)
            torch._dynamo.reset()
            gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=TIMM_NAMES, default=MODELS, metavar="NAME")
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 8))
    parser.add_argument("--seconds", type=float, default=60, help="timing budget per model and batch size")
    parser.add_argument("--quick", action="store_true", help="a few rounds, as a smoke test")
    parser.add_argument(
        "--docs", type=Path, help="folder for benchmarks/inference.md, images/bench.png and images/bench.json"
    )
    options = parser.parse_args()
    console = Console(stderr=True)
    print(f"{cpu()}, torch {torch.__version__}, {torch.get_num_threads()} threads, 224 pixels")
    results: list[ResultRow] = []
    for result in comparisons(options, console):
        results.append(result)
        print(table(result), flush=True)
        if options.docs:
            publish(options.docs, results)


def publish(docs: Path, results: list[ResultRow]) -> None:
    """Write after every comparison, so that a crash loses only the current one."""
    images = docs / "images"
    record = write_record(images / "bench.json", "benchmarks.inference", SEED, machine=cpu(), results=results)
    draw(results).savefig(images / "bench.png", dpi=110)
    (docs / "benchmarks" / "inference.md").write_text(page(record))


if __name__ == "__main__":
    main()
