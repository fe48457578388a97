"""Real weights and real images: a trained DeiT-Tiny, what it is shown, and what its layers hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from vitreous.data.base import Dataset, Indices
from vitreous.data.loader import EvaluationLoader
from vitreous.data.scenes import ShapesData
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
from vitreous.tasks.classify import values_of
from vitreous.weights.load import is_name, load, load_weights


def deit_tiny(trial: Trial) -> ViT:
    """The model that ``trial.weights`` holds, ready to be looked at."""
    if is_name(trial.weights):
        model = load(trial.weights)
    else:
        with torch.random.fork_rng(devices=[]):  # first weights are drawn, only to be replaced
            model = create_model("deit_tiny_16")
        load_weights(model, trial.weights)
    if not isinstance(model, ViT):
        raise ValueError(
            f"--weights should hold DeiT-Tiny, {trial.weights} holds {type(model).__name__}; give its file"
        )
    return model.eval()


def photos(trial: Trial, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(images as DeiT-Tiny takes them, numbers of their classes): photos by chance, or drawn scenes without any."""
    if not trial.photos:
        return drawn(trial, "photos", count, seed=seed)
    data = open_data(trial.photos, valid_share=0.0).train
    return prepared(data, data.order(seed, 0)[:count])


def drawn(trial: Trial, missing: str, count: int, *, seed: int = 0, size: int = 224) -> tuple[Tensor, Tensor]:
    """Scenes of the library's own dataset in the place of images that were not given, which is noted."""
    note = f"no --{missing} given: scenes of simple shapes, drawn by the library, stood in"
    if note not in trial.left_out:
        trial.left_out.append(note)
    return prepared(ShapesData(Shapes(count, size, seed=seed)), np.arange(count), size=size)


def prepared(data: Dataset, chosen: Indices, *, size: int = 224) -> tuple[Tensor, Tensor]:
    """Some images of a dataset, so many pixels a side, and their classes; unreadable ones are left out."""
    batches = [batch for _, batch in EvaluationLoader(data, Preprocess((size, size))).part(chosen)]
    return torch.cat([batch.images for batch in batches]), torch.cat([values_of(batch) for batch in batches]).argmax(1)


def traces(model: Backbone, images: Tensor, *what: What, size: int = 8) -> Iterator[Trace]:
    """What ``vt.record`` keeps of the images, some at a time: attention is large."""
    for some in images.split(size):
        with record(model, what=what or "weights") as trace, torch.no_grad():
            model(some)
        yield trace


def block_features(model: ViT, images: Tensor) -> list[Tensor]:
    """By block, (images, 2 d): the class token beside the mean of the patches."""
    parts = [list(trace.stream.values()) for trace in traces(model, images, "stream", size=32)]
    streams = [torch.cat(same) for same in zip(*parts, strict=True)]
    return [torch.cat([x[:, 0], x[:, model.num_prefix :].mean(dim=1)], dim=1) for x in streams]
