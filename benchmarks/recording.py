"""Time and memory of a recorded forward pass, compared with a plain one.

    python -m benchmarks.recording            writes docs/records/recording.json
    python -m benchmarks.recording --quick    a small model and few rounds in a temporary folder, as a smoke test

ViT-B/16 at 384 pixels, one image, float32, no gradients, one thread. The variants alternate, and the minimum over
several rounds counts. "Held" is the memory of the trace afterwards. "Peak" is the increase of the resident memory over
that of the idle model, measured in a separate process, on Linux.
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

RECORDS = Path(__file__).parents[1] / "docs" / "records"
SEED = 0
#: Name → options of ``vt.record``; None does not record.
VARIANTS: dict[str, dict[str, Any] | None] = {
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


def run_recorded(model: vt.Backbone, images: torch.Tensor, options: dict[str, Any] | None) -> int:
    """Run one forward pass and return the bytes held by the trace."""
    if options is None:
        model(images)
        return 0
    with vt.record(model, **options) as trace:
        model(images)
    tensors = [x for attention in trace.values() for x in attention.tensors.values()]
    return sum(x.untyped_storage().nbytes() for x in [*tensors, *trace.norms.values()])


def peak(variant: str, quick: bool) -> float:
    """Increase of the resident memory during the pass in MiB, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.recording", "--peak", variant, *["--quick"] * quick]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(variant: str, quick: bool) -> None:
    model, images = build(quick)
    run_recorded(model, images[..., :32, :32], None)  # one-time allocations of the libraries
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = resident("VmRSS")
    run_recorded(model, images, VARIANTS[variant])
    print(resident("VmHWM") - before)


def resident(line: str) -> float:
    """Resident memory of this process in MiB: current (VmRSS) or peak (VmHWM)."""
    status = dict(row.split(":", 1) for row in Path("/proc/self/status").read_text().splitlines())
    return float(status[line].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model, few rounds, nothing written to docs")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peak", choices=list(VARIANTS), help=argparse.SUPPRESS)
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
            variant: lambda chosen=chosen: run_recorded(model, images, chosen) for variant, chosen in VARIANTS.items()
        }
        seconds = interleave(calls, rounds)
        held = {variant: call() / 2**20 for variant, call in calls.items()}
    rows = [
        {
            "way": variant,
            "seconds": min(seconds[variant]),
            "times_plain": min(seconds[variant]) / min(seconds["plain"]),
            "held_mib": held[variant],
            "peak_mib": peak(variant, options.quick),
        }
        for variant in VARIANTS
    ]
    print(f"{'':14}{'time':>9}{'× plain':>9}{'held':>11}{'peak':>11}")
    for row in rows:
        print(
            f"{row['way']:14}{row['seconds']:>7.2f} s{row['times_plain']:>9.2f}"
            f"{row['held_mib']:>7.1f} MiB{row['peak_mib']:>7.0f} MiB"
        )
    folder = Path(tempfile.mkdtemp(prefix="recording-")) if options.quick else RECORDS
    write_record(folder / "recording.json", "benchmarks.recording", SEED, rounds=rounds, results=rows)
    print(f"\nwritten to {folder / 'recording.json'}")


if __name__ == "__main__":
    main()
