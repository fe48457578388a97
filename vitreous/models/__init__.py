"""Model registry: every model by name. To add a family, write a file that ends with ``FAMILY`` and list it here."""

from __future__ import annotations

import fnmatch
from importlib import import_module
from typing import Any, overload

from vitreous.models.base import Backbone, Config, Model, ModelConfig
from vitreous.models.family import Family, Paper
from vitreous.models.timm_names import from_timm
from vitreous.options import did_you_mean

#: Files of this folder that define a family, in the order of :func:`list_models`.
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

#: Families by the name of their config in weights files.
FAMILIES: dict[str, Family] = {name: import_module(f"vitreous.models.{name}").FAMILY for name in FILES}

MODELS: dict[str, Config] = {name: config for family in FAMILIES.values() for name, config in family.variants.items()}


def list_models(pattern: str = "*") -> list[str]:
    """List the names of models that match a shell pattern.

    >>> list_models("deit*distilled*")
    ['deit_tiny_distilled_16', 'deit_small_distilled_16', 'deit_base_distilled_16']
    """
    return [name for name in MODELS if fnmatch.fnmatchcase(name, pattern)]


@overload
def create_model(model: str | Config, **overrides: Any) -> Backbone: ...


@overload
def create_model(model: ModelConfig, **overrides: Any) -> Model: ...


def create_model(model: str | ModelConfig, **overrides: Any) -> Model:
    """Create a model with randomly initialized weights.

    Args:
        model: A name from :func:`list_models`, or a config.
        **overrides: Fields of the config to replace, such as ``num_classes``, ``image_size`` or ``num_channels``.

    Returns:
        The model, in training mode on the CPU. For pretrained weights use ``vt.load``.

    Raises:
        ValueError: Unknown name or option, or an invalid value; the message suggests the nearest match.

    >>> model = create_model("vit_tiny_16", num_classes=10, image_size=(64, 96), num_channels=1)
    """
    return find_config(model).override(**overrides).build()


@overload
def find_config(model: str | Config) -> Config: ...


@overload
def find_config(model: str | ModelConfig) -> ModelConfig: ...


def find_config(model: str | ModelConfig) -> ModelConfig:
    """Look up a model's config by name; a config is returned as it is."""
    if isinstance(model, ModelConfig):
        return model
    if not isinstance(model, str):
        raise ValueError(f"a model must be given by name or by config, got {type(model).__name__}")
    if model in MODELS:
        return MODELS[model]
    name, pixels = from_timm(model) or (model, None)
    if name not in MODELS:
        raise ValueError(f"unknown model {model!r}{did_you_mean(model, MODELS)} (vt.list_models() lists all)")
    return MODELS[name] if pixels is None else MODELS[name].override(image_size=pixels)


def find_family(config: ModelConfig) -> Family | None:
    """Find the family of a config or of its base class; None for a user-defined config."""
    families = {family.config: family for family in FAMILIES.values()}
    return next((families[kind] for kind in type(config).__mro__ if kind in families), None)


def paper_of(model: str) -> Paper:
    """Find the paper to cite for a registered model."""
    return next(family.paper_of(model) for family in FAMILIES.values() if model in family.variants)
