"""Pretrained weights and photos: DeiT-Tiny, its inputs, and features of its layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from vitreous.data.base import Dataset, Indices
from vitreous.data.loader import EvaluationLoader
from vitreous.data.scenes import ShapesDataset
from vitreous.data.shapes import Shapes
from vitreous.data.sources import open_data
from vitreous.explain.record import record
from vitreous.explain.recorder import What
from vitreous.explain.trace import Trace
from vitreous.lab.trial import Trial
from vitreous.models import create_model
from vitreous.models.base import Backbone
from vitreous.models.vit import ViT
from vitreous.spec import Preprocess
from vitreous.tasks.classify import class_targets
from vitreous.weights.load import is_name, load, load_weights


def deit_tiny(trial: Trial) -> ViT:
    """Load DeiT-Tiny from ``trial.weights``, in evaluation mode."""
    if is_name(trial.weights):
        model = load(trial.weights)
    else:
        with torch.random.fork_rng(devices=[]):  # the initial weights are replaced: leave the RNG unchanged
            model = create_model("deit_tiny_16")
        load_weights(model, trial.weights)
    if not isinstance(model, ViT):
        raise ValueError(f"--weights must be DeiT-Tiny, {trial.weights} holds {type(model).__name__}; give its weights")
    return model.eval()


def photos(trial: Trial, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return images preprocessed for DeiT-Tiny and their class indices: random photos, or synthetic scenes."""
    if not trial.photos:
        return draw_scenes(trial, "photos", count, seed=seed)
    data = open_data(trial.photos, valid_share=0.0).train
    return load_batch(data, data.order(seed, 0)[:count])


def draw_scenes(trial: Trial, missing: str, count: int, *, seed: int = 0, size: int = 224) -> tuple[Tensor, Tensor]:
    """Render synthetic scenes in place of missing images, and note this in the outcome."""
    note = f"no --{missing} given: synthetic scenes of simple shapes were used"
    if note not in trial.left_out:
        trial.left_out.append(note)
    return load_batch(ShapesDataset(Shapes(count, size, seed=seed)), np.arange(count), size=size)


def load_batch(data: Dataset, chosen: Indices, *, size: int = 224) -> tuple[Tensor, Tensor]:
    """Load chosen images of a dataset at ``size`` pixels with their classes, skipping unreadable ones."""
    batches = [batch for _, batch in EvaluationLoader(data, Preprocess((size, size))).batches(chosen)]
    return torch.cat([batch.images for batch in batches]), torch.cat(
        [class_targets(batch) for batch in batches]
    ).argmax(1)


def traces(model: Backbone, images: Tensor, *what: What, size: int = 8) -> Iterator[Trace]:
    """Record a model on the images in batches of ``size``, since attention weights are large."""
    for some in images.split(size):
        with record(model, what=what or "weights") as trace, torch.no_grad():
            model(some)
        yield trace


def block_features(model: ViT, images: Tensor) -> list[Tensor]:
    """Return features of every block, (images, 2 d): the class token concatenated with the mean patch token."""
    parts = [list(trace.stream.values()) for trace in traces(model, images, "stream", size=32)]
    streams = [torch.cat(same) for same in zip(*parts, strict=True)]
    return [torch.cat([x[:, 0], x[:, model.num_prefix :].mean(dim=1)], dim=1) for x in streams]
