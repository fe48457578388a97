"""Every model by name. A family is a file that ends with its record; its name stands here, in one line."""

from __future__ import annotations

import fnmatch
from importlib import import_module
from typing import Any, overload

from vitreous.models.base import Backbone, Config, Model, ModelConfig
from vitreous.models.family import Family, Paper
from vitreous.options import did_you_mean

#: The files of this folder that hold a family, in the order of :func:`list_models`.
FILES = (
    "vit",
    "pyramid",
    "resnet",
    "swin",
    "dat",
    "pvt",
    "pvt_v2",
    "xcit",
    "cvt",
    "hybrid_resnet",
    "coatnet",
    "convnext",
    "mobilevit",
    "efficientformer",
    "fastvit",
    "metaformer",
    "hybrid",
    "segmenter",
)

#: Families by the name that a weights file gives their config.
FAMILIES: dict[str, Family] = {name: import_module(f"vitreous.models.{name}").FAMILY for name in FILES}

MODELS: dict[str, Config] = {name: config for family in FAMILIES.values() for name, config in family.variants.items()}


def list_models(pattern: str = "*") -> list[str]:
    """Names that match a shell pattern, as in ``list_models("deit*")``."""
    return [name for name in MODELS if fnmatch.fnmatchcase(name, pattern)]


@overload
def create_model(model: str | Config, **overrides: Any) -> Backbone: ...


@overload
def create_model(model: ModelConfig, **overrides: Any) -> Model: ...


def create_model(model: str | ModelConfig, **overrides: Any) -> Model:
    """A freshly initialized model, by name or by config, with any of the config's fields overridden.

    >>> create_model("vit_tiny_16", num_classes=10, image_size=(64, 96), num_channels=1)
    """
    return find_config(model).override(**overrides).build()


@overload
def find_config(model: str | Config) -> Config: ...


@overload
def find_config(model: str | ModelConfig) -> ModelConfig: ...


def find_config(model: str | ModelConfig) -> ModelConfig:
    if isinstance(model, ModelConfig):
        return model
    if not isinstance(model, str):
        raise ValueError(f"a model is given by name or by config, got {type(model).__name__}")
    if model not in MODELS:
        raise ValueError(f"there is no model {model!r}{did_you_mean(model, MODELS)} (vt.list_models() shows all)")
    return MODELS[model]


def find_family(config: ModelConfig) -> Family | None:
    """The family of a config, or of the one it is derived from; None for a config of one's own."""
    families = {family.config: family for family in FAMILIES.values()}
    return next((families[kind] for kind in type(config).__mro__ if kind in families), None)


def paper_of(model: str) -> Paper:
    """The paper to cite for a model of the table."""
    return next(family.paper_of(model) for family in FAMILIES.values() if model in family.variants)
