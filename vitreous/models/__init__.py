"""Every model by name. A family adds its config to FAMILIES and its rows to MODELS: one line each."""

from __future__ import annotations

import fnmatch
from typing import Any, overload

from vitreous.models import (
    coatnet,
    convnext,
    cvt,
    dat,
    efficientformer,
    fastvit,
    hybrid,
    hybrid_resnet,
    metaformer,
    mobilevit,
    pvt,
    pvt_v2,
    pyramid,
    resnet,
    segmenter,
    swin,
    vit,
    xcit,
)
from vitreous.models.base import Backbone, Config, Model, ModelConfig
from vitreous.options import did_you_mean

#: Configs that a weights file may name.
FAMILIES: dict[str, type[ModelConfig]] = {
    "vit": vit.ViTConfig,
    "pyramid": pyramid.PyramidConfig,
    "resnet": resnet.ResNetConfig,
    "pvt": pvt.PVTConfig,
    "pvt_v2": pvt_v2.PVTv2Config,
    "xcit": xcit.XCiTConfig,
    "cvt": cvt.CvTConfig,
    "hybrid_resnet": hybrid_resnet.HybridResNetConfig,
    "swin": swin.SwinConfig,
    "dat": dat.DATConfig,
    "coatnet": coatnet.CoAtNetConfig,
    "convnext": convnext.ConvNeXtConfig,
    "mobilevit": mobilevit.MobileViTConfig,
    "efficientformer": efficientformer.EfficientFormerConfig,
    "fastvit": fastvit.FastViTConfig,
    "metaformer": metaformer.MetaFormerConfig,
    "hybrid": hybrid.HybridConfig,
    "segmenter": segmenter.SegmenterConfig,
}

MODELS: dict[str, Config] = {
    **vit.VARIANTS,
    **pyramid.VARIANTS,
    **resnet.VARIANTS,
    **swin.VARIANTS,
    **dat.VARIANTS,
    **pvt.VARIANTS,
    **pvt_v2.VARIANTS,
    **xcit.VARIANTS,
    **cvt.VARIANTS,
    **hybrid_resnet.VARIANTS,
    **coatnet.VARIANTS,
    **convnext.VARIANTS,
    **mobilevit.VARIANTS,
    **efficientformer.VARIANTS,
    **fastvit.VARIANTS,
    **metaformer.VARIANTS,
    **hybrid.VARIANTS,
}


def list_models(pattern: str = "*") -> list[str]:
    """Names that match a shell pattern, as in ``list_models("deit*")``."""
    return [name for name in MODELS if fnmatch.fnmatchcase(name, pattern)]


@overload
def create_model(model: str | Config, **overrides: Any) -> Backbone: ...


@overload
def create_model(model: ModelConfig, **overrides: Any) -> Model: ...


def create_model(model: str | ModelConfig, **overrides: Any) -> Model:
    """A freshly initialised model, by name or by config, with any of the config's fields overridden.

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
        raise ValueError(f"a model is given by name or by config, got {model!r}")
    if model not in MODELS:
        raise ValueError(f"there is no model {model!r}{did_you_mean(model, MODELS)} (vt.list_models() shows all)")
    return MODELS[model]
