"""Speed-up from folding a FastViT: a forward pass with all branches against one with merged convolutions.

    python -m benchmarks.folding            writes docs/records/folding.json
    python -m benchmarks.folding --quick    small images and few rounds in a temporary folder, as a smoke test

Evaluation mode, float32, no gradients, one thread, each model at its native size. Both forms alternate, and the minimum
over several rounds counts. Parameters and MACs alone would predict a smaller speed-up; the rest is memory traffic of
feature maps.
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

RECORDS = Path(__file__).parents[1] / "docs" / "records"
NAMES, BATCHES, SEED = ("fastvit_t8", "fastvit_sa12"), (1, 8), 0
FORMS = ("unfolded", "folded")

Row = dict[str, str | int | float]


@torch.inference_mode()
def measure(name: str, batch: int, side: int, rounds: int) -> Row:
    """Time both forms of a model with the same random weights, and compare their outputs."""
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
    titles = ("model", "pixels", "batch", "unfolded ms", "folded ms", "speed-up", "difference")
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
    folder = Path(tempfile.mkdtemp(prefix="folding-")) if options.quick else RECORDS
    write_record(folder / "folding.json", "benchmarks.folding", SEED, rounds=rounds, results=rows)
    print(f"\nwritten to {folder / 'folding.json'}")


if __name__ == "__main__":
    main()
