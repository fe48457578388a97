"""What DeiT-Tiny answers to photos of ImageNet's classes, and what they really show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.loader import EvaluationLoader
from vitreous.data.sources import open_data
from vitreous.lab.instruments.real import deit_tiny
from vitreous.lab.trial import Trial
from vitreous.spec import Preprocess
from vitreous.tasks.classify import values_of

Answers = NDArray[np.float32]  # a row per photo, a logarithm of a probability per class
Numbers = NDArray[np.int64]


def answers(trial: Trial, size: int, count: int) -> tuple[Answers, Numbers]:
    """(answers, number of the folder) of photos chosen by chance, ``size`` pixels a side."""
    model, photos = deit_tiny(trial), open_data(trial.photos, valid_share=0.0).train
    loader = EvaluationLoader(photos, replace(Preprocess(), image_size=(size, size)))
    rows = []
    with torch.inference_mode():
        for _, batch in loader.part(photos.order(0, 0)[:count]):
            rows.append((model(batch.images).log_softmax(1).numpy(), values_of(batch).argmax(1).numpy()))
    said, folders = (np.concatenate(column) for column in zip(*rows, strict=True))
    return said, folders


def classes_in_order(said: Answers, folders: Numbers) -> Numbers:
    """Every photo's class, for folders named by WordNet ids: ImageNet numbers its classes in their order.

    Of all increasing sequences of classes, one per folder, this is the one that all answers together like best.
    """
    names, home = np.unique(folders, return_inverse=True)
    liking = np.zeros((len(names), said.shape[1]))
    np.add.at(liking, home, said)
    totals = [liking[0]]
    for row in liking[1:]:
        best_before = np.maximum.accumulate(totals[-1])[:-1]
        totals.append(row + np.concatenate([[-np.inf], best_before]))
    last, found = said.shape[1], []
    for total in reversed(totals):
        last = int(total[:last].argmax())
        found.append(last)
    return np.array(found[::-1])[home]
