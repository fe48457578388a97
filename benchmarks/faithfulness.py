"""Compare every explanation method with random maps, on photos and on scenes with a known subject.

    python -m benchmarks.faithfulness WEIGHTS PHOTOS.npz RUN     writes docs/records/faithfulness.json
    python -m benchmarks.faithfulness … --quick                  few images in a temporary folder, as a smoke test

WEIGHTS are those of DeiT-Tiny, or of any model with --model. PHOTOS.npz holds concatenated JPEG files: ``data``,
``offsets`` (n + 1) and ``labels``. RUN is the folder, or the model file, of a model trained on Shapes.

Photos are explained for the predicted class; scenes for their subject's class, whose mask the pointing game uses.
Deletion and insertion use five steps over cells of the model's grid, hidden by a blur; integrated gradients use 16
steps; intervals come from 2,000 bootstrap resamples of the images; float32, one thread.
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
from vitreous.explain.faithfulness import FaithfulnessTable, MeanInterval, compare_methods, summarize
from vitreous.explain.score import class_score

RECORDS = Path(__file__).parents[1] / "docs" / "records"
SEED = 0


def read_photos(path: Path, number: int, transform: Any) -> tuple[Tensor, Tensor]:
    """Return the first photos of the file, preprocessed for a model, and their labels."""
    with np.load(path) as file:
        data, offsets, labels = file["data"], file["offsets"], file["labels"]
    files = [data[offsets[i] : offsets[i + 1]].tobytes() for i in range(number)]
    images = torch.stack([transform(Image.open(io.BytesIO(content))) for content in files])
    return images, torch.from_numpy(labels[:number].astype(np.int64))


def methods(model: vt.Backbone) -> dict[str, Method]:
    """All methods the model supports, with half the steps of integrated gradients, which would dominate the time."""
    return methods_for(model) | {"integrated gradients": partial(integrated_gradients, steps=16)}


@torch.no_grad()
def predictions(model: vt.Backbone, images: Tensor) -> Tensor:
    return torch.cat([model(part).argmax(dim=1) for part in images.split(50)])


def evaluate_photos(weights: Path, name: str, photos: Path, *, number: int, steps: int) -> dict[str, Any]:
    model = vt.load(weights, model=name).eval()
    images, labels = read_photos(photos, number, vt.transforms(model))
    predicted = predictions(model, images)
    table = compare_methods(model, images, class_score(predicted), methods=methods(model), steps=steps, seed=SEED)
    return report(f"{name} on {number} photos", table, steps, (predicted == labels).double().mean().item())


def evaluate_scenes(run: Path, *, number: int, steps: int) -> dict[str, Any]:
    model = vt.load(run / "model.safetensors" if run.is_dir() else run).eval()
    prepare = model.spec.preprocess
    scenes = vt.Shapes(number, prepare.image_size, seed=TEST_SEED).batch(range(number))
    mean, std = (torch.tensor(values)[:, None, None] for values in (prepare.mean, prepare.std))
    images = (torch.from_numpy(scenes.images).float() / 255 - mean) / std
    labels = torch.from_numpy(scenes.labels)
    accuracy = (predictions(model, images) == labels).double().mean().item()
    masks = torch.from_numpy(scenes.masks[:, 0])
    score = class_score(labels)
    table = compare_methods(
        model, images, score, methods=methods(model), masks=masks, steps=steps, seed=SEED, batch_size=50
    )
    area = masks.double().mean().item()
    return report(f"{type(model).__name__} on {number} scenes", table, steps, accuracy) | {"subject_area": area}


def report(title: str, table: FaithfulnessTable, steps: int, accuracy: float) -> dict[str, Any]:
    """Print the table and return what is recorded of it."""
    print(f"\n## {title} (accuracy {accuracy:.1%})\n\n{markdown(table)}\n\n{summarize(table)}")
    facts = {"title": title, "images": table.num_images, "steps": steps, "accuracy": accuracy}
    return facts | {"methods": table.to_json(), "trust": summarize(table)}


def markdown(table: FaithfulnessTable) -> str:
    measures = list(table.values["random"])
    best_first = sorted(table.values, key=lambda name: -table.mean(name).mean)
    arrows = {"deletion": "deletion ↓", "insertion": "insertion ↑", "pointing": "pointing ↑"}
    heads = ["method", *(arrows.get(name, name) for name in measures), "faithfulness − random's", "verdict"]
    rows = [
        [name, *(format_interval(table.mean(name, measure)) for measure in measures), *against_random(table, name)]
        for name in best_first
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))


def against_random(table: FaithfulnessTable, name: str) -> tuple[str, str]:
    return ("–", "–") if name == "random" else (format_interval(table.paired_difference(name)), table.verdict(name))


def format_interval(estimate: MeanInterval) -> str:
    return f"{estimate.mean:.3f} ({estimate.low:.3f} … {estimate.high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--model", default="deit_tiny_16", help="architecture of the weights")
    parser.add_argument("--quick", action="store_true", help="few images and steps, nothing written to docs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    photos, scenes, steps = (10, 20, 2) if options.quick else (100, 500, 5)
    begin = time.perf_counter()
    results = [
        evaluate_photos(options.weights, options.model, options.photos, number=photos, steps=steps),
        evaluate_scenes(options.run, number=scenes, steps=steps),
    ]
    seconds = time.perf_counter() - begin
    folder = Path(tempfile.mkdtemp(prefix="faithfulness-")) if options.quick else RECORDS
    path = folder / "faithfulness.json"
    write_record(path, "benchmarks.faithfulness", SEED, seconds=round(seconds, 1), results=results)
    print(f"\n{seconds:.0f} s; written to {path}")


if __name__ == "__main__":
    main()
