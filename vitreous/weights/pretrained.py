"""Create a model by name, randomly initialized or with public weights."""

from __future__ import annotations

from typing import Any, overload

from vitreous import models
from vitreous.models.base import Backbone, Config, Model, ModelConfig
from vitreous.weights import published
from vitreous.weights.hub import repository_of
from vitreous.weights.load import load


@overload
def create_model(model: str | Config, *, pretrained: bool = False, **overrides: Any) -> Backbone: ...


@overload
def create_model(model: ModelConfig, *, pretrained: bool = False, **overrides: Any) -> Model: ...


def create_model(model: str | ModelConfig, *, pretrained: bool = False, **overrides: Any) -> Model:
    """Create a model by name or by config.

    Args:
        model: A name from :func:`vitreous.list_models`, timm's name of the same architecture
            (``"vit_base_patch16_224"``), or a config.
        pretrained: Load public weights, downloaded once into the Hugging Face cache. A name without a tag means the
            default weights (ImageNet-1k if there are any); ``"deit_tiny_16.in1k"`` or timm's
            ``"vit_base_patch16_224.augreg_in1k"`` selects others, ``"hf_hub:user/name"`` any repository.
        **overrides: Any fields of the model's config. If ``num_classes`` differs from the weights, the head is
            re-initialized; if ``image_size`` differs, position embeddings are resampled.

    Returns:
        The model in training mode, like any new module; call ``.eval()`` before inference.

    Example:
        >>> create_model("vit_tiny_16", num_classes=10, image_size=(64, 96), num_channels=1)
        >>> create_model("deit_tiny_patch16_224", pretrained=True)
    """
    if not pretrained:
        if isinstance(model, str) and published.is_published(model):  # a name with a tag implies image size and classes
            known = published.find(model)
            return models.create_model(known.model, **(known.config | overrides))
        return models.create_model(model, **overrides)
    if not isinstance(model, str):
        raise ValueError("pretrained=True requires a model name, got a config; use vt.load_weights(model, source)")
    if repository_of(model) is not None and not published.is_published(model):
        return load(model, **overrides)
    return load(published.find_default(model).name, **overrides)
