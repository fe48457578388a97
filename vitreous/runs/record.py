"""Write the results of a finished run to its folder: metrics, predictions, worst mistakes, report."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.base import Dataset
from vitreous.data.loader import EvaluationLoader
from vitreous.explain.record import record
from vitreous.files import commit, write_atomically
from vitreous.layers.attention import AttentionOp
from vitreous.models.base import Backbone, Model
from vitreous.models.edit import rebuild
from vitreous.pages.run import write_report
from vitreous.runs.prepare import Prepared
from vitreous.runs.recipe import Recipe
from vitreous.samples import Masks
from vitreous.train.loop import TrainOutcome
from vitreous.train.parallel import World
from vitreous.weights.load import load_weights

SHOWN_MISTAKES, SHOWN_EXAMPLES = 12, 12


def write_record(
    folder: Path,
    outcome: TrainOutcome,
    prepared: Prepared,
    recipe: Recipe,
    *,
    world: World,
    command: str,
    facts: dict[str, str],
) -> None:
    """Write ``result.json``, ``classes.json``, ``predictions.npz``, mistakes or examples, and ``report.html``."""
    result = {
        **outcome.metrics,
        "steps": outcome.steps,
        "stopped_early": outcome.stopped_early,
        "images": outcome.images,
        "seconds": round(outcome.seconds, 1),
        "images_per_second": round(outcome.images / max(outcome.seconds, 1e-9), 1),
        "parameters": sum(parameter.numel() for parameter in prepared.model.parameters()),
        "train_images": len(prepared.train),
        "valid_images": 0 if outcome.meter is None else len(outcome.meter),
        "unreadable": outcome.unreadable,
        "task": prepared.model.spec.task,
        "command": command,
        "seed": recipe.train.seed,
        "threads": torch.get_num_threads(),
        "processes": world.size,
        "device": world.device,
        "torch": torch.__version__,
        "commit": commit(),
        **facts,
    }
    write_atomically(folder / "result.json", json.dumps(result, indent=1).encode())
    write_atomically(folder / "classes.json", json.dumps(list(prepared.train.classes)).encode())
    if prepared.valid is not None and outcome.meter is not None:
        arrays = outcome.meter.arrays()
        write_arrays(folder / "predictions.npz", arrays)
        if prepared.model.spec.task == "classify":
            model = load_best_model(folder, prepared)
            assert isinstance(model, Backbone)
            write_arrays(folder / "mistakes.npz", worst_mistakes(model, prepared.valid, arrays))
        elif prepared.model.spec.task == "segment":
            examples = segmentation_examples(load_best_model(folder, prepared), prepared.valid)
            write_arrays(folder / "examples.npz", examples)
    write_report(folder)


def load_best_model(folder: Path, prepared: Prepared) -> Model:
    """Load the best model of the run, also for a custom model class."""
    model = rebuild(prepared.model.config, prepared.model.edits).eval()
    load_weights(model, folder / "model.safetensors")
    model.spec = prepared.model.spec
    return model


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_atomically(path, buffer.getvalue())


def segmentation_examples(model: Model, valid: Dataset) -> dict[str, NDArray[Any]]:
    """Return some validation images with their true and predicted masks."""
    loader = EvaluationLoader(valid, model.spec.preprocess)
    chosen = np.linspace(0, len(valid) - 1, min(SHOWN_EXAMPLES, len(valid))).astype(np.int64)
    arrays: dict[str, list[NDArray[Any]]] = {"images": [], "true": [], "predicted": []}
    for _, batch in loader.batches(chosen):
        with torch.inference_mode():
            masks = model.outputs(batch.inputs)["masks"].argmax(1).to(torch.uint8)
        assert isinstance(batch.targets, Masks)
        arrays["images"].append(denormalize(batch.images, model))
        arrays["true"].append(batch.targets.values.numpy())
        arrays["predicted"].append(masks.numpy())
    return {name: np.concatenate(parts) for name, parts in arrays.items()}


def worst_mistakes(model: Backbone, valid: Dataset, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the most confident wrong predictions, with the attention map of the last global attention layer."""
    if "logits" in arrays:
        probabilities = torch.from_numpy(arrays["logits"]).softmax(1).numpy()
        true, predicted, confidence = arrays["targets"].argmax(1), probabilities.argmax(1), probabilities.max(1)
    else:
        true, predicted, confidence = arrays["labels"], arrays["predicted"][:, 0], arrays["probabilities"][:, 0]
    wrongness = np.where(predicted == true, -1.0, confidence)
    worst = np.argsort(-wrongness)[: min(SHOWN_MISTAKES, int((wrongness >= 0).sum()))]
    found = {"true": true[worst], "predicted": predicted[worst], "probability": confidence[worst]}
    if not len(worst):
        return found | {"images": np.zeros((0, 3, *model.config.image_size), np.uint8)}
    loader = EvaluationLoader(valid, model.spec.preprocess)
    images = torch.cat([batch.images for _, batch in loader.batches(arrays["indices"][worst])])
    if any(isinstance(module, AttentionOp) for module in model.modules()):
        with torch.inference_mode(), record(model) as trace:
            model(images)
        if trace.self_attentions():
            found["attention"] = trace.mean_map().numpy()
    return found | {"images": denormalize(images, model)}


def denormalize(images: torch.Tensor, model: Model) -> NDArray[np.uint8]:
    """Undo the normalization; return bytes (b, 3, y, x)."""
    own = model.spec.preprocess
    mean, std = (torch.tensor(values)[:, None, None] for values in (own.mean, own.std))
    pixels = ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    return pixels.expand(-1, 3, -1, -1).numpy() if pixels.shape[1] == 1 else pixels[:, :3].numpy()
