"""What several claims do with a finished run: show its model images, count right answers, see how it started."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vitreous.data.base import Dataset
from vitreous.data.loader import EvaluationLoader
from vitreous.lab.estimate import Estimate, bootstrap
from vitreous.lab.instruments.chance import seeded
from vitreous.lab.trained import Trained, datasets
from vitreous.models.base import Backbone
from vitreous.samples import Batch
from vitreous.tasks.classify import values_of


def unseen(run: Trained, number: int) -> Batch:
    """Images that the run was not trained on, as its model wants them."""
    return shown(run.model, run.valid, number)


def learned(run: Trained, number: int) -> Batch:
    """Images that the run was trained on, not augmented."""
    return shown(run.model, datasets(run.run, run.recipe, run.trial)[0], number)


def shown(model: Backbone, data: Dataset, number: int) -> Batch:
    indices = np.arange(min(number, len(data)))
    loader = EvaluationLoader(data, model.spec.preprocess, batch_size=len(indices))
    return next(loader.part(indices))[1]


def right_answers(model: Backbone, batch: Batch) -> torch.Tensor:
    """(b,) of ones and zeros."""
    with torch.no_grad():
        answers = torch.cat([model(part) for part in batch.images.split(256)])
    return (answers.argmax(1) == values_of(batch).argmax(1)).float()


def share_right(model: Backbone, batch: Batch) -> float:
    return float(right_answers(model, batch).mean())


def pooled_accuracy(runs: Sequence[Trained], number: int) -> Estimate:
    """Of these very models, all their answers put together; it says nothing of other seeds."""
    answers = torch.cat([right_answers(run.model, unseen(run, number)) for run in runs])
    return bootstrap(answers.numpy(), lambda rows: float(rows.mean()), rounds=500)


def initial(run: Trained) -> Backbone:
    """The model as it was before the first step."""
    with seeded(run.recipe.train.seed):
        model = run.model.config.build()
    model.spec = run.model.spec
    return model.eval()


def convolutional_field(stages: int) -> int:
    """How many pixels wide a unit of the convolutional network can see after so many stages.

    Whitening looks at 2 pixels. A stage at stride s adds 2s by its first convolution, s by pooling, 4s by its second.
    """
    return 2 + 7 * (2**stages - 1)
