"""Which explanation to trust: every method against random, on photos and on scenes whose subject is known.

    python -m benchmarks.faithfulness WEIGHTS PHOTOS.npz RUN     writes docs/figures/faithfulness.json
    python -m benchmarks.faithfulness … --quick                  few images, into a folder of its own: does it work?

WEIGHTS are those of DeiT-Tiny, or of any model with --model. PHOTOS.npz holds JPEG files end to end: ``data``,
``offsets`` (n + 1) and ``labels``. RUN is the folder, or the model file, of a model that has learned Shapes.

Photos are explained for the class that the model names; scenes for their subject's class, since its mask is what the
pointing game asks for. Deletion and insertion in five steps over cells of the model's own grid, hidden by a blur;
integrated gradients in 16 steps; intervals are those of 2,000 resamples of the images; float32, one thread.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vitreous as vt
from benchmarks.record import write_record
from vitreous.data.scenes import TEST_SEED
from vitreous.explain.attribution import Method, integrated_gradients, methods_for
from vitreous.explain.faithfulness import Estimate, Table, compare_methods, trust
from vitreous.explain.score import class_score

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
SEED = 0


def read_photos(path: Path, number: int, transform: Any) -> tuple[Tensor, Tensor]:
    """The first photos of the file, prepared for a model, and their labels."""
    with np.load(path) as file:
        data, offsets, labels = file["data"], file["offsets"], file["labels"]
    files = [data[offsets[i] : offsets[i + 1]].tobytes() for i in range(number)]
    images = torch.stack([transform(Image.open(io.BytesIO(content))) for content in files])
    return images, torch.from_numpy(labels[:number].astype(np.int64))


def methods(model: vt.Backbone) -> dict[str, Method]:
    """All that can serve the model, integrated gradients in half the steps: they would take half of the time."""
    return methods_for(model) | {"integrated gradients": partial(integrated_gradients, steps=16)}


@torch.no_grad()
def answers(model: vt.Backbone, images: Tensor) -> Tensor:
    return torch.cat([model(part).argmax(dim=1) for part in images.split(50)])


def judge_photos(weights: Path, name: str, photos: Path, *, number: int, steps: int) -> dict[str, Any]:
    model = vt.load(weights, model=name).eval()
    images, labels = read_photos(photos, number, vt.transforms(model))
    said = answers(model, images)
    table = compare_methods(model, images, class_score(said), methods=methods(model), steps=steps, seed=SEED)
    return told(f"{name} on {number} photos", table, steps, (said == labels).double().mean().item())


def judge_scenes(run: Path, *, number: int, steps: int) -> dict[str, Any]:
    model = vt.load(run / "model.safetensors" if run.is_dir() else run).eval()
    prepare = model.spec.preprocess
    scenes = vt.Shapes(number, prepare.image_size, seed=TEST_SEED).batch(range(number))
    mean, std = (torch.tensor(values)[:, None, None] for values in (prepare.mean, prepare.std))
    images = (torch.from_numpy(scenes.images).float() / 255 - mean) / std
    labels = torch.from_numpy(scenes.labels)
    right = (answers(model, images) == labels).double().mean().item()
    masks = torch.from_numpy(scenes.masks[:, 0])
    score = class_score(labels)
    table = compare_methods(
        model, images, score, methods=methods(model), masks=masks, steps=steps, seed=SEED, batch_size=50
    )
    area = masks.double().mean().item()
    return told(f"{type(model).__name__} on {number} scenes", table, steps, right) | {"subject_area": area}


def told(title: str, table: Table, steps: int, accuracy: float) -> dict[str, Any]:
    """Prints the table and gives what is to be recorded of it."""
    print(f"\n## {title} (accuracy {accuracy:.1%})\n\n{markdown(table)}\n\n{trust(table)}")
    facts = {"title": title, "images": table.num_images, "steps": steps, "accuracy": accuracy}
    return facts | {"methods": table.to_json(), "trust": trust(table)}


def markdown(table: Table) -> str:
    measures = list(table.values["random"])
    best_first = sorted(table.values, key=lambda name: -table.estimate(name).mean)
    arrows = {"deletion": "deletion ↓", "insertion": "insertion ↑", "pointing": "pointing ↑"}
    heads = ["method", *(arrows.get(name, name) for name in measures), "faithfulness − random's", "verdict"]
    rows = [
        [name, *(shown(table.estimate(name, measure)) for measure in measures), *against_random(table, name)]
        for name in best_first
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))


def against_random(table: Table, name: str) -> tuple[str, str]:
    return ("–", "–") if name == "random" else (shown(table.against(name)), table.verdict(name))


def shown(estimate: Estimate) -> str:
    return f"{estimate.mean:.3f} ({estimate.low:.3f} … {estimate.high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--model", default="deit_tiny_16", help="what the weights belong to")
    parser.add_argument("--quick", action="store_true", help="few images and steps, nothing written to docs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    photos, scenes, steps = (10, 20, 2) if options.quick else (100, 500, 5)
    begin = time.perf_counter()
    results = [
        judge_photos(options.weights, options.model, options.photos, number=photos, steps=steps),
        judge_scenes(options.run, number=scenes, steps=steps),
    ]
    seconds = time.perf_counter() - begin
    folder = Path(tempfile.mkdtemp(prefix="faithfulness-")) if options.quick else FIGURES
    path = folder / "faithfulness.json"
    write_record(path, "benchmarks.faithfulness", SEED, seconds=round(seconds, 1), results=results)
    print(f"\n{seconds:.0f} s; written to {path}")


if __name__ == "__main__":
    main()
