"""Evaluate finished runs: batches of images, accuracies, and the model at initialization."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vitreous.data.base import Dataset
from vitreous.data.loader import EvaluationLoader
from vitreous.lab.estimate import Estimate, bootstrap
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.trained import Trained, datasets
from vitreous.models.base import Backbone
from vitreous.samples import Batch
from vitreous.tasks.classify import class_targets


def validation_batch(run: Trained, number: int) -> Batch:
    """Return validation images, preprocessed for the run's model."""
    return first_batch(run.model, run.valid, number)


def training_batch(run: Trained, number: int) -> Batch:
    """Return training images without augmentation."""
    return first_batch(run.model, datasets(run.run, run.recipe, run.trial)[0], number)


def first_batch(model: Backbone, data: Dataset, number: int) -> Batch:
    """Return the first ``number`` images of a dataset as one batch."""
    indices = np.arange(min(number, len(data)))
    loader = EvaluationLoader(data, model.spec.preprocess, batch_size=len(indices))
    return next(loader.batches(indices))[1]


def correct_predictions(model: Backbone, batch: Batch) -> torch.Tensor:
    """Return (b,) ones for correct predictions and zeros for wrong ones."""
    with torch.no_grad():
        answers = torch.cat([model(part) for part in batch.images.split(256)])
    return (answers.argmax(1) == class_targets(batch).argmax(1)).float()


def batch_accuracy(model: Backbone, batch: Batch) -> float:
    """Return the top-1 accuracy on a batch."""
    return float(correct_predictions(model, batch).mean())


def pooled_accuracy(runs: Sequence[Trained], number: int) -> Estimate:
    """Estimate the accuracy over the pooled predictions of these models; the interval excludes seed variance."""
    answers = torch.cat([correct_predictions(run.model, validation_batch(run, number)) for run in runs])
    return bootstrap(answers.numpy(), lambda rows: float(rows.mean()), rounds=500)


def initial_model(run: Trained) -> Backbone:
    """Build the model as it was initialized."""
    with seeded(run.recipe.train.seed):
        model = run.model.config.build()
    model.spec = run.model.spec
    return model.eval()


def convnet_receptive_field(stages: int) -> int:
    """Return the width in pixels of the convolutional network's receptive field after some stages.

    Whitening covers 2 pixels. A stage at stride s adds 2s by its first convolution, s by pooling, 4s by its second.
    """
    return 2 + 7 * (2**stages - 1)
