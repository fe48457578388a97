"""Cost of every mixer as a function of the number of tokens: MACs and time on grids from 8×8 to 96×96.

    python -m benchmarks.growth            writes docs/images/growth.json and docs/images/growth.png
    python -m benchmarks.growth --quick    small grids in a temporary folder, as a smoke test

A mixer alone, including projections: width 192, 3 heads, no prefix tokens, one image, float32, no gradients, one
thread. Mixers alternate on each grid, and the minimum over several rounds counts. A slope is that of log cost over log
tokens, fitted over the upper half of the grids: 2 for quadratic cost, 1 for linear cost.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.interleave import interleave
from benchmarks.record import write_record
from vitreous.layers.mixer import MixerContext
from vitreous.layers.mixers import MIXERS

DOCS = Path(__file__).parents[1] / "docs"
SIDES = (8, 12, 16, 24, 32, 48, 64, 96)
DIM, NUM_HEADS, SEED = 192, 3, 0
UNITS = {"macs": "multiply-accumulates", "seconds": "seconds, one thread"}

Results = dict[str, dict[str, list[float]]]


def build(name: str, side: int) -> torch.nn.Module:
    return MIXERS[name].build(MixerContext(dim=DIM, num_heads=NUM_HEADS, grid=(side, side))).eval()


def macs(name: str, side: int) -> int:
    """MACs by torch's counter, on the meta device."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        build(name, side)(torch.empty(1, side * side, DIM), (side, side))
    return counter.get_total_flops() // 2


@torch.inference_mode()
def best_seconds(side: int, rounds: int) -> dict[str, float]:
    tokens = torch.randn(1, side * side, DIM)
    mixers = {name: build(name, side) for name in MIXERS}
    seconds = interleave({name: lambda m=mixer: m(tokens, (side, side)) for name, mixer in mixers.items()}, rounds)
    return {name: min(times) for name, times in seconds.items()}


def measure(sides: Sequence[int], rounds: int) -> Results:
    results: Results = {name: {"macs": [], "seconds": []} for name in MIXERS}
    for side in sides:
        print(f"{side}×{side} …", file=sys.stderr, flush=True)
        times = best_seconds(side, rounds)
        for name, row in results.items():
            row["macs"].append(macs(name, side))
            row["seconds"].append(times[name])
    return results


def slope(sides: Sequence[int], values: Sequence[float]) -> float:
    """Slope of log cost over log tokens on the upper half of the grids; 0 if the cost is 0."""
    if not all(values):
        return 0.0
    upper = len(sides) // 2
    return float(np.polyfit(2 * np.log(sides[upper:]), np.log(values[upper:]), 1)[0])


def slopes(sides: Sequence[int], results: Results) -> dict[str, dict[str, float]]:
    return {
        name: {unit: round(slope(sides, values), 3) for unit, values in row.items()} for name, row in results.items()
    }


def show(sides: Sequence[int], results: Results) -> None:
    fitted_slopes = slopes(sides, results)
    width = max(map(len, results)) + 2
    for unit, scale, digits in (("macs", 1e-6, 0), ("seconds", 1e3, 1)):
        print(f"\n{'millions of MACs' if unit == 'macs' else 'milliseconds'}, slope over the upper half of the grids")
        print(f"{'':<{width}}" + "".join(f"{f'{side}×{side}':>10}" for side in sides) + f"{'slope':>8}")
        for name in sorted(results, key=lambda name: -fitted_slopes[name][unit]):
            cells = "".join(f"{value * scale:>10,.{digits}f}" for value in results[name][unit])
            print(f"{name:<{width}}{cells}{fitted_slopes[name][unit]:>8.2f}")


def draw(record: Mapping[str, Any], path: Path) -> None:
    tokens, results = [side**2 for side in record["sides"]], record["results"]
    figure = Figure(figsize=(12, 6), layout="constrained")
    for axes, unit in zip(figure.subplots(1, 2), UNITS, strict=True):
        axes.set(
            title=UNITS[unit], xlabel="tokens", xscale="log", yscale="log", xlim=(tokens[0] / 1.15, tokens[-1] * 8)
        )
        axes.set_xticks(tokens, [f"{side}²" for side in record["sides"]])
        axes.set_xticks([], minor=True)
        axes.spines[["top", "right"]].set_visible(False)
        shown = {name: row[unit] for name, row in results.items() if all(row[unit])}
        draw_lines(axes, tokens, shown)
        label_ends(axes, tokens[-1], {name: (row[-1], record["slopes"][name][unit]) for name, row in shown.items()})
    figure.suptitle("Cost of one mixer by grid size; in parentheses the slope over the upper half of the grids")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def color(name: str) -> str | tuple[float, ...]:
    """Black for the first mixer, full attention, and one of 20 colors for the others."""
    index = list(MIXERS).index(name)
    tones = colormaps["tab20"].colors
    return (*tones[::2], *tones[1::2])[(index - 1) % 20] if index else "black"


def draw_lines(axes: Axes, tokens: Sequence[int], lines: Mapping[str, Sequence[float]]) -> None:
    for name, values in lines.items():
        axes.plot(tokens, values, marker="o", markersize=3, linewidth=1.3, color=color(name))
    start = min(values[0] for values in lines.values()) / 2
    for power, name in ((1, "n"), (2, "n²")):
        growth = [start * (count / tokens[0]) ** power for count in tokens]
        axes.plot(tokens, growth, color="0.75", linestyle=":", zorder=0)
        axes.annotate(name, (tokens[-1], growth[-1]), (6, 0), textcoords="offset points", color="0.5", va="center")


def label_ends(axes: Axes, last: int, ends: Mapping[str, tuple[float, float]]) -> None:
    """Annotate the ends of the lines with names and slopes, moved apart where they would overlap."""
    low, high = np.log(axes.get_ylim())
    order = sorted(ends, key=lambda name: ends[name][0])
    heights = spread_apart([(np.log(ends[name][0]) - low) / (high - low) for name in order], gap=0.04)
    colors = {name: color(name) for name in ends}
    for name, height in zip(order, heights, strict=True):
        value, slope = ends[name]
        axes.annotate(
            f"{name} ({slope:.2f})",
            (last, value),
            (last * 1.5, np.exp(low + height * (high - low))),
            color=colors[name],
            va="center",
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": colors[name], "linewidth": 0.5, "relpos": (0, 0.5)},
        )


def spread_apart(heights: Sequence[float], gap: float) -> list[float]:
    moved = list(heights)
    for _ in range(300):
        for i in range(len(moved) - 1):
            overlap = max(0.0, gap - (moved[i + 1] - moved[i]))
            moved[i] -= overlap / 2
            moved[i + 1] += overlap / 2
    return moved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small grids, few rounds, nothing written to docs")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    sides, rounds = (SIDES[:5], 2) if options.quick else (SIDES, options.rounds)
    results = measure(sides, rounds)
    show(sides, results)
    folder = Path(tempfile.mkdtemp(prefix="growth-")) if options.quick else DOCS
    record = write_record(
        folder / "images" / "growth.json",
        "benchmarks.growth",
        SEED,
        dim=DIM,
        num_heads=NUM_HEADS,
        rounds=rounds,
        sides=sides,
        slopes=slopes(sides, results),
        results=results,
    )
    draw(record, folder / "images" / "growth.png")
    print(f"\nwritten to {folder / 'images' / 'growth.json'} and {folder / 'images' / 'growth.png'}")


if __name__ == "__main__":
    main()
