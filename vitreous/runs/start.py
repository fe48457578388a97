"""A model that was given as an object, as the start of a run: the object itself stays as it is."""

from __future__ import annotations

import copy

from vitreous.models.base import Backbone, Model, ModelConfig
from vitreous.models.edit import rebuild
from vitreous.models.segmenter import SegmenterConfig
from vitreous.weights.load import load_weights


def given_in_python(model: Model) -> str:
    """What such a model is called in a run's settings, where other runs name their weights."""
    return f"the {type(model).__name__} given in Python"


def has_learned(model: Model) -> bool:
    """Whether a model has been trained: what every fresh one has constant, such as biases, is so no more."""
    own = dict(model.named_parameters())
    fresh = rebuild(model.config, model.edits).named_parameters()
    constant = {name: value for name, value in fresh if value.numel() and bool((value == value.flatten()[0]).all())}
    return any(bool((own[name].cpu() != value).any()) for name, value in constant.items() if name in own)


def start_with(given: Model, config: ModelConfig, classes: tuple[str, ...]) -> tuple[Model, list[str]]:
    """A copy to be trained: with a new head where the classes are others, or inside of a model of ``config``."""
    if isinstance(given, Backbone) and isinstance(config, SegmenterConfig):
        segmenter = config.build()
        report = load_weights(segmenter.backbone, given.state_dict())
        segmenter.spec = given.spec
        return segmenter, [f"the weights of the given {type(given).__name__}: {report}"]
    model, names = copy.deepcopy(given).float(), given.spec.labels.names
    if given.config.num_classes == len(classes) and names in ((), classes):
        return model, []
    model.reset_head(len(classes))
    return model, [f"a new head: the given model has other classes ({given.config.num_classes})"]
