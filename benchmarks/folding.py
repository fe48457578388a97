"""What folding a FastViT saves: a forward pass with all branches beside one with a convolution in the place of each.

    python -m benchmarks.folding            writes docs/figures/folding.json
    python -m benchmarks.folding --quick    small images, few rounds, into a folder of its own: does it work?

Evaluation mode, float32, no gradients, one thread, each row at its native size. Both forms take turns, and the least of
several rounds counts. Parameters and MACs say what folding would save if they were all; the rest is maps that need not
be written and read again.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

import vitreous as vt
from benchmarks.interleave import interleave
from benchmarks.record import write_record
from vitreous.models import MODELS

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
NAMES, BATCHES, SEED = ("fastvit_t8", "fastvit_sa12"), (1, 8), 0
FORMS = ("unfolded", "folded")

Row = dict[str, str | int | float]


@torch.inference_mode()
def measure(name: str, batch: int, side: int, rounds: int) -> Row:
    """Both forms of a model with the same fresh weights, and how far apart their answers are."""
    unfolded = vt.create_model(name).eval()
    models = dict(zip(FORMS, (unfolded, vt.fold(unfolded)), strict=True))
    images = torch.randn(batch, 3, side, side)
    seconds = interleave({form: lambda m=model: m(images) for form, model in models.items()}, rounds)
    first, second = (model(images) for model in models.values())
    row: Row = {"model": name, "image_size": side, "batch": batch}
    for form, model in models.items():
        row[f"{form}_parameters"] = sum(p.numel() for p in model.parameters())
        row[f"{form}_macs"] = vt.cost(model, side).macs
        row[f"{form}_seconds"] = min(seconds[form])
    row["times_faster"] = min(seconds["unfolded"]) / min(seconds["folded"])
    row["relative_difference"] = ((first - second).abs().max() / first.abs().max()).item()
    return row


def show(rows: list[Row]) -> None:
    titles = ("model", "pixels", "batch", "unfolded ms", "folded ms", "times faster", "difference")
    cells = [
        (
            *(str(row[key]) for key in ("model", "image_size", "batch")),
            *(f"{1e3 * float(row[f'{form}_seconds']):.1f}" for form in FORMS),
            f"{row['times_faster']:.2f}",
            f"{row['relative_difference']:.0e}",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    for line in (titles, *cells):
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small images, few rounds, nothing written to docs")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    rounds = 2 if options.quick else options.rounds
    sides = {name: 64 if options.quick else MODELS[name].image_size[0] for name in NAMES}
    rows = [measure(name, batch, sides[name], rounds) for name in NAMES for batch in BATCHES]
    show(rows)
    folder = Path(tempfile.mkdtemp(prefix="folding-")) if options.quick else FIGURES
    write_record(folder / "folding.json", "benchmarks.folding", SEED, rounds=rounds, results=rows)
    print(f"\nwritten to {folder / 'folding.json'}")


if __name__ == "__main__":
    main()
