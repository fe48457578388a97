"""Predictions of DeiT-Tiny on photos of ImageNet classes, and their true classes."""

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
from vitreous.tasks.classify import class_targets

LogProbabilities = NDArray[np.float32]  # (photos, classes)
ClassIndices = NDArray[np.int64]


def predict_photos(trial: Trial, size: int, count: int) -> tuple[LogProbabilities, ClassIndices]:
    """Return log-probabilities and folder indices of randomly chosen photos, resized to ``size`` pixels."""
    model, photos = deit_tiny(trial), open_data(trial.photos, valid_share=0.0).train
    loader = EvaluationLoader(photos, replace(Preprocess(), image_size=(size, size)))
    rows = []
    with torch.inference_mode():
        for _, batch in loader.batches(photos.order(0, 0)[:count]):
            rows.append((model(batch.images).log_softmax(1).numpy(), class_targets(batch).argmax(1).numpy()))
    log_probabilities, folders = (np.concatenate(column) for column in zip(*rows, strict=True))
    return log_probabilities, folders


def match_ordered_classes(log_probabilities: LogProbabilities, folders: ClassIndices) -> ClassIndices:
    """Return every photo's class for folders named by WordNet id, whose order is that of the ImageNet class indices.

    Among all increasing assignments of classes to folders, dynamic programming finds the one of largest likelihood.
    """
    names, index = np.unique(folders, return_inverse=True)
    likelihood = np.zeros((len(names), log_probabilities.shape[1]))
    np.add.at(likelihood, index, log_probabilities)
    totals = [likelihood[0]]
    for row in likelihood[1:]:
        best_before = np.maximum.accumulate(totals[-1])[:-1]
        totals.append(row + np.concatenate([[-np.inf], best_before]))
    last, found = log_probabilities.shape[1], []
    for total in reversed(totals):
        last = int(total[:last].argmax())
        found.append(last)
    return np.array(found[::-1])[index]
