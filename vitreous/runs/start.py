"""Start a run from a model given as an object, without modifying it."""

from __future__ import annotations

import copy

from vitreous.models.base import Backbone, Model, ModelConfig
from vitreous.models.edit import rebuild
from vitreous.models.segmenter import SegmenterConfig
from vitreous.weights.load import load_weights


def in_memory_name(model: Model) -> str:
    """Return the entry for ``weights`` in the settings of a run that starts from a model object."""
    return f"the {type(model).__name__} given in Python"


def is_trained(model: Model) -> bool:
    """Return whether parameters with a constant initialization, such as biases, have changed by training."""
    current = dict(model.named_parameters())
    fresh = rebuild(model.config, model.edits).named_parameters()
    constant = {name: value for name, value in fresh if value.numel() and bool((value == value.flatten()[0]).all())}
    return any(bool((current[name].cpu() != value).any()) for name, value in constant.items() if name in current)


def copy_for_training(given: Model, config: ModelConfig, classes: tuple[str, ...]) -> tuple[Model, list[str]]:
    """Copy a model for training, with a new head if the classes differ, or as backbone of a segmenter ``config``."""
    if isinstance(given, Backbone) and isinstance(config, SegmenterConfig):
        segmenter = config.build()
        report = load_weights(segmenter.backbone, given.state_dict())
        segmenter.spec = given.spec
        return segmenter, [f"weights of the given {type(given).__name__}: {report}"]
    model, names = copy.deepcopy(given).float(), given.spec.labels.names
    if given.config.num_classes == len(classes) and names in ((), classes):
        return model, []
    model.reset_head(len(classes))
    return model, [f"a new head: the given model has different classes ({given.config.num_classes})"]
