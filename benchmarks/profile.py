"""Profile a forward pass of Vitreous and timm: share of time by kind of operation, and number of copies.

    python -m benchmarks.profile            writes docs/records/profile.json, prints its table
    python -m benchmarks.profile --quick    one small model and few rounds in a temporary folder, as a smoke test

Evaluation mode, eager, float32, no gradients, one thread, 224 pixels, the same random weights. Both alternate; the
median over several rounds counts for every operation. ``benchmarks.inference`` compares the time of whole passes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity

import vitreous as vt
from benchmarks.record import write_record

RECORDS = Path(__file__).parents[1] / "docs" / "records"
SEED, BATCHES = 0, (1, 8)
TIMM_NAMES = {
    "vit_tiny_16": "vit_tiny_patch16_224",
    "vit_small_16": "vit_small_patch16_224",
    "vit_base_16": "vit_base_patch16_224",
    "swin_tiny": "swin_tiny_patch4_window7_224",
    "pvt_v2_b1": "pvt_v2_b1",
}
KINDS = {  # kind → prefixes of operation names; the first match counts
    "products": ("aten::addmm", "aten::mm"),
    "attention": ("aten::_scaled_dot_product", "aten::bmm", "aten::baddbmm", "aten::_softmax", "aten::softmax"),
    "convolution": ("aten::mkldnn_convolution", "aten::_convolution"),
    "activation": ("aten::gelu",),
    "norm": ("aten::native_layer_norm",),
    "copies": ("aten::copy_", "aten::cat", "aten::index", "aten::roll"),
    "sums": ("aten::add", "aten::mul", "aten::masked_fill"),
}
Row = dict[str, Any]


def operations(model: nn.Module, images: Tensor) -> dict[str, tuple[int, float]]:
    """Calls of every operation in a forward pass, and seconds excluding nested operations."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profile:
        model(images)
    return {event.key: (event.count, event.self_cpu_time_total / 1e6) for event in profile.key_averages()}


def kind_of(operation: str) -> str:
    return next((kind for kind, names in KINDS.items() if operation.startswith(names)), "views and the rest")


def summary(rounds: list[dict[str, tuple[int, float]]]) -> Row:
    """Shares by kind of every operation's median time, and the number of copies of any size.

    Not the minimum: over five rounds it once gave whole kinds no time at all.
    """
    seconds: Counter[str] = Counter()
    for name in rounds[0]:
        seconds[kind_of(name)] += median(found[name][1] for found in rounds if name in found)
    shares = {kind: round(seconds[kind] / seconds.total(), 4) for kind in (*KINDS, "views and the rest")}
    copies = sum(count for name, (count, _) in rounds[0].items() if name in ("aten::copy_", "aten::cat"))
    return {"shares": shares, "times_copied": copies}


@torch.inference_mode()
def measure(name: str, batch: int, rounds: int) -> list[Row]:
    timm_model = timm.create_model(TIMM_NAMES[name]).eval()
    vitreous_model = vt.create_model(name).eval()
    vt.load_weights(vitreous_model, timm_model.state_dict())
    images = torch.randn(batch, 3, 224, 224)
    models = {"vitreous": vitreous_model, "timm": timm_model}
    for model in models.values():
        model(images)
    profiles = [{library: operations(model, images) for library, model in models.items()} for _ in range(rounds)]
    return [
        {"model": name, "batch": batch, "whose": library} | summary([found[library] for found in profiles])
        for library in models
    ]


def show(rows: list[Row]) -> None:
    titles = ["model", "batch", "library", *rows[0]["shares"], "times copied"]
    print("| " + " | ".join(titles) + " |\n|" + "---|" * len(titles))
    for row in rows:
        shares = (f"{100 * share:.1f} %" for share in row["shares"].values())
        cells = [f"`{row['model']}`", row["batch"], row["whose"], *shares, row["times_copied"]]
        print("| " + " | ".join(map(str, cells)) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small model, few rounds, nothing written to docs")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    names, rounds = (("vit_tiny_16",), 2) if options.quick else (tuple(TIMM_NAMES), options.rounds)
    batches = (1,) if options.quick else BATCHES
    rows = [row for name in names for batch in batches for row in measure(name, batch, rounds)]
    show(rows)
    folder = Path(tempfile.mkdtemp(prefix="profile-")) if options.quick else RECORDS
    write_record(folder / "profile.json", "benchmarks.profile", SEED, rounds=rounds, results=rows)
    print(f"\nwritten to {folder / 'profile.json'}")


if __name__ == "__main__":
    main()
