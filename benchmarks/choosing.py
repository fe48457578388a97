"""Cost of one image for models of every family, and of twice the image size, for docs/concepts/choosing.md.

    python -m benchmarks.choosing            writes docs/images/choosing.json and docs/images/choosing.png
    python -m benchmarks.choosing --quick    small images and few rounds in a temporary folder, as a smoke test

Random weights, evaluation mode, float32, no gradients, one thread, one image at a time; FastViT in its folded form. The
models alternate, and the minimum over several rounds counts.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import vitreous as vt
from benchmarks.growth import spread_apart
from benchmarks.interleave import interleave
from benchmarks.record import write_record
from vitreous.weights.accuracy import PUBLISHED_ACCURACY

DOCS = Path(__file__).parents[1] / "docs"
SMALL = ("deit_tiny_16", "xcit_tiny_12_16", "pvt_v2_b1", "convnext_atto", "mobilevit_s", "poolformer_s12",
         "efficientformer_l1", "fastvit_t12", "resnet18")  # fmt: skip
MEDIUM = ("deit_small_16", "xcit_small_12_16", "pvt_small", "pvt_v2_b2", "swin_tiny", "dat_tiny", "cvt_13", "coatnet_0",
          "caformer_s18", "convformer_s18", "poolformer_s24", "efficientformer_l3", "fastvit_sa24", "convnext_tiny",
          "resnet50")  # fmt: skip
SIZES, SEED = (224, 448), 0


def build(name: str, side: int) -> vt.Backbone:
    model = vt.create_model(name, image_size=side).eval()
    return vt.fold(model) if name.startswith("fastvit") else model


@torch.inference_mode()
def best_seconds(names: tuple[str, ...], side: int, rounds: int) -> dict[str, float]:
    image = torch.randn(1, 3, side, side)
    models = {name: build(name, side) for name in names}
    seconds = interleave({name: lambda m=model: m(image) for name, model in models.items()}, rounds)
    return {name: min(times) for name, times in seconds.items()}


def measure(sizes: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    names = SMALL + MEDIUM
    seconds = {side: best_seconds(names, side, rounds) for side in sizes}
    costs = {side: {name: vt.cost(build(name, side)) for name in names} for side in sizes}
    return [
        {
            "model": name,
            "parameters": costs[sizes[0]][name].parameters,
            "macs": {side: costs[side][name].macs for side in sizes},
            "seconds": {side: seconds[side][name] for side in sizes},
            **published(name),
        }
        for name in names
    ]


def published(name: str) -> dict[str, Any]:
    """Published ImageNet-1k accuracy at the smallest resolution, distilled only if there is no other."""
    candidates = sorted((row.data != "in1k", row.pixels, row.top1) for row in PUBLISHED_ACCURACY if row.model == name)
    distilled, pixels, top1 = next((row for row in candidates if row[1] < 300), (False, None, None))
    return {"top1": top1, "tested_at": pixels, "with_teacher": distilled}


def show(rows: list[dict[str, Any]], sizes: tuple[int, ...]) -> None:
    small, large = sizes
    print(f"| model | parameters | MACs | ms at {small} px | G MACs/s | ms at {large} px | factor | top-1 |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for row in sorted(rows, key=lambda row: float(row["seconds"][small])):
        first, second = (1e3 * row["seconds"][side] for side in sizes)
        rate = row["macs"][small] / row["seconds"][small] / 1e9
        mark = "†" if row["with_teacher"] else ""
        accuracy = f"{row['top1']:.1f} % at {row['tested_at']}{mark}" if row["top1"] else "–"
        sizes_of = f"{row['parameters'] / 1e6:.1f} M | {row['macs'][small] / 1e9:.2f} G"
        print(
            f"| {row['model']} | {sizes_of} | {first:.0f} | {rate:.0f} | {second:.0f} | {second / first:.1f} "
            f"| {accuracy} |"
        )


def draw(rows: list[dict[str, Any]], side: int) -> Figure:
    """Plot accuracy over time; hollow: trained with a teacher; in parentheses: test size if it differs."""
    figure = Figure(figsize=(13, 6), dpi=100, layout="constrained")
    for axis, names in zip(figure.subplots(1, 2), (SMALL, MEDIUM), strict=True):
        shown = sorted((row for row in rows if row["model"] in names and row["top1"]), key=lambda row: row["top1"])
        accuracies = [row["top1"] for row in shown]
        heights = spread_apart(accuracies, gap=0.034 * (accuracies[-1] - accuracies[0]))
        for row, height in zip(shown, heights, strict=True):
            x = 1e3 * row["seconds"][side]
            axis.plot(
                x, row["top1"], "o", color="#0072B2", markerfacecolor="white" if row["with_teacher"] else "#0072B2"
            )
            at = "" if row["tested_at"] == side else f" ({row['tested_at']} px)"
            axis.annotate(
                row["model"] + at, (x, row["top1"]), (x * 1.02, height), va="center", fontsize=8.5,
                arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "#888888"},
            )  # fmt: skip
        axis.margins(x=0.15)
        axis.set_xlabel(f"milliseconds for one image of {side} pixels, one CPU thread")
        axis.grid(color="#EEEEEE")
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("published ImageNet-1k top-1, %")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    sizes = (64, 128) if quick else SIZES
    rows = measure(sizes, rounds=1 if quick else 7)
    show(rows, sizes)
    home = Path(tempfile.mkdtemp()) if quick else DOCS / "images"
    draw(rows, sizes[0]).savefig(home / "choosing.png")
    write_record(home / "choosing.json", "benchmarks.choosing", SEED, result=rows)
    print(f"\n{home / 'choosing.png'}")


if __name__ == "__main__":
    main()
