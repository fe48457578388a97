"""What it costs to look: a recorded forward pass beside a plain one, in time and in memory held.

    python -m benchmarks.recording            writes docs/figures/recording.json
    python -m benchmarks.recording --quick    a small model, few rounds, into a folder of its own: does it work?

ViT-B/16 at 384 pixels, one image, float32, no gradients, one thread. The ways take turns, and the least of several
rounds counts. Held is what the trace keeps afterwards. The peak is how far the resident memory rises above that of the
model at rest, measured in a process of its own, on Linux.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import vitreous as vt
from benchmarks.interleave import interleave
from benchmarks.record import write_record

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
SEED = 0
#: The ways to look, as options of ``vt.record``; None does not look.
WAYS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "all weights": {},
    "mean of heads": {"reduce": "mean_heads"},
    "class token": {"reduce": lambda weights: weights[:, :, 0]},
    "one layer": {"layers": "blocks.11"},
    "norms": {"what": "norms"},
}


def build(quick: bool) -> tuple[vt.Backbone, torch.Tensor]:
    side = 64 if quick else 384
    model = vt.create_model("vit_tiny_16" if quick else "vit_base_16", image_size=side).eval()
    return model, torch.randn(1, 3, side, side)


def look(model: vt.Backbone, images: torch.Tensor, options: dict[str, Any] | None) -> int:
    """One forward pass; how many bytes the trace holds afterwards."""
    if options is None:
        model(images)
        return 0
    with vt.record(model, **options) as trace:
        model(images)
    kept = [x for attention in trace.values() for x in attention.kept.values()]
    return sum(x.untyped_storage().nbytes() for x in [*kept, *trace.norms.values()])


def peak(way: str, quick: bool) -> float:
    """MiB by which the resident memory rises during the pass, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.recording", "--peak", way, *["--quick"] * quick]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(way: str, quick: bool) -> None:
    model, images = build(quick)
    look(model, images[..., :32, :32], None)  # what the libraries take once
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    look(model, images, WAYS[way])
    print(resident("VmHWM") - before)


def resident(line: str) -> float:
    """MiB by which Linux counts this process: at present (VmRSS), or at most (VmHWM)."""
    status = dict(row.split(":", 1) for row in Path("/proc/self/status").read_text().splitlines())
    return float(status[line].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model, few rounds, nothing written to docs")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peak", choices=list(WAYS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    with torch.no_grad():
        if options.peak:
            print_peak(options.peak, options.quick)
            return
        model, images = build(options.quick)
        rounds = 2 if options.quick else options.rounds
        calls: dict[str, Callable[[], Any]] = {
            way: lambda chosen=chosen: look(model, images, chosen) for way, chosen in WAYS.items()
        }
        seconds = interleave(calls, rounds)
        held = {way: call() / 2**20 for way, call in calls.items()}
    rows = [
        {
            "way": way,
            "seconds": min(seconds[way]),
            "times_plain": min(seconds[way]) / min(seconds["plain"]),
            "held_mib": held[way],
            "peak_mib": peak(way, options.quick),
        }
        for way in WAYS
    ]
    print(f"{'':14}{'time':>9}{'× plain':>9}{'held':>11}{'peak':>11}")
    for row in rows:
        print(
            f"{row['way']:14}{row['seconds']:>7.2f} s{row['times_plain']:>9.2f}"
            f"{row['held_mib']:>7.1f} MiB{row['peak_mib']:>7.0f} MiB"
        )
    folder = Path(tempfile.mkdtemp(prefix="recording-")) if options.quick else FIGURES
    write_record(folder / "recording.json", "benchmarks.recording", SEED, rounds=rounds, results=rows)
    print(f"\nwritten to {folder / 'recording.json'}")


if __name__ == "__main__":
    main()
