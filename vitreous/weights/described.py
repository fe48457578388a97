"""Convert ``config.json`` and ``preprocessor_config.json`` of transformers and timm to Vitreous configs and specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vitreous.files import open_file
from vitreous.layers.window import Window
from vitreous.models import MODELS
from vitreous.models.base import ModelConfig
from vitreous.models.convnext import ConvNeXtConfig
from vitreous.models.swin import SwinConfig
from vitreous.models.vit import ViTConfig
from vitreous.options import did_you_mean
from vitreous.spec import Interpolation, Labels, Preprocess, Spec, pair
from vitreous.weights.bounds import MAX_JSON_LENGTH
from vitreous.weights.formats import strict_json
from vitreous.weights.published import PUBLISHED
from vitreous.weights.reading import describe_error

Json = Mapping[str, Any]
#: timm's settings that a config has an option for, or that matter only in training.
TIMM_SETTINGS = {"img_size", "in_chans", "num_classes", "global_pool", "drop_rate", "drop_path_rate"}
#: Pillow's numbers; its Lanczos filter (1) is approximated by the bicubic one.
RESAMPLING: dict[Any, Interpolation] = {0: "nearest", 1: "bicubic", 2: "bilinear", 3: "bicubic"}

ACTS: dict[str, Literal["gelu", "gelu_tanh"]] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True)
class ModelDescription:
    """Config and spec of the model in a folder, or the reason why there is no config."""

    config: ModelConfig | None = None
    spec: Spec | None = None
    no_config_reason: str = ""
    notes: tuple[str, ...] = ()  # assumptions


def read_description(folder: Path) -> ModelDescription:
    """Read a folder's ``config.json``; if it is not understood, the caller has to name the model."""
    data = read_json(folder / "config.json")
    preprocessor = folder / "preprocessor_config.json"
    try:
        if isinstance(data.get("architecture"), str):
            return timm_model(data)
        notes = () if preprocessor.is_file() else (f"no {preprocessor.name}: ImageNet preprocessing is assumed",)
        preprocess = Preprocess() if notes else preprocess_of(read_json(preprocessor))
        spec = Spec(preprocess, labels_of(data.get("id2label")))
        kind = data.get("model_type")
        if kind not in TRANSFORMERS:
            return ModelDescription(None, spec, f"has a config.json with the unsupported model type {kind!r}")
        return ModelDescription(with_classes(TRANSFORMERS[kind](data), spec), spec, notes=notes)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        return ModelDescription(
            no_config_reason=f"has a config.json that describes no supported model ({describe_error(error)})"
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from an untrusted file."""
    with open_file(path) as file:
        content = file.read(MAX_JSON_LENGTH + 1)
    try:
        data = strict_json(content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({describe_error(error)}); download it again") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} does not describe a model: it must contain one JSON object; download it again")
    return data


def with_classes(config: ModelConfig, spec: Spec) -> ModelConfig:
    return config.override(num_classes=len(spec.labels)) if spec.labels.names else config


def labels_of(names: Any) -> Labels:
    """Return class names ordered by index; the placeholders of transformers (``LABEL_0``) count as no names."""
    if not isinstance(names, Mapping):
        return Labels()
    by_number = {int(number): name for number, name in names.items()}
    if sorted(by_number) != list(range(len(by_number))) or all(f"LABEL_{n}" == name for n, name in by_number.items()):
        return Labels()
    return Labels(tuple(by_number[number] for number in range(len(by_number))))


def preprocess_of(data: Json) -> Preprocess:
    """Convert preprocessing of transformers: resize the shorter side, then crop; stretching is not supported."""
    size, crop = data.get("size", 224), data.get("crop_size") if data.get("do_center_crop") else None
    shorter = size.get("shortest_edge") if isinstance(size, Mapping) else size
    target = size_pair(crop if crop is not None else size)
    ratio = data.get("crop_pct") or (min(target) / shorter if shorter and crop is not None else 1.0)
    if data.get("crop_pct") and min(target) >= 384:
        ratio = 1.0  # ConvNeXt stretches images of this size or larger
    mean, std = data.get("image_mean"), data.get("image_std")
    given = {} if not mean or not std else {"mean": mean, "std": std}
    if data.get("do_normalize") is False:
        given = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    interpolation = RESAMPLING.get(data.get("resample"), "bicubic")
    return Preprocess(target, crop_ratio=min(1.0, ratio), interpolation=interpolation, **given)


def size_pair(size: Any) -> tuple[int, int]:
    if not isinstance(size, Mapping):
        return pair(size)
    return pair(size["shortest_edge"]) if "shortest_edge" in size else pair((size["height"], size["width"]))


def renamed_options(data: Json, **names: str) -> dict[str, Any]:
    """Return the values of given JSON keys under the names of the Vitreous options; ``names``: option → key."""
    return {option: data[key] for option, key in names.items() if data.get(key) is not None}


def vit(data: Json) -> ViTConfig:
    dim = data.get("hidden_size", 768)
    return ViTConfig(
        dim=dim,
        mlp=ACTS[data.get("hidden_act", "gelu")],
        mlp_ratio=data.get("intermediate_size", 3072) / dim,
        norm_eps=data.get("layer_norm_eps", 1e-12),
        **shape_of_vit(data),
    )


def shape_of_vit(data: Json) -> dict[str, Any]:
    same = {name: name for name in ("image_size", "patch_size", "num_channels", "qkv_bias")}
    return renamed_options(data, depth="num_hidden_layers", num_heads="num_attention_heads", **same)


def deit(data: Json) -> ViTConfig:
    """Convert a DeiT config; without the distillation head, the distillation token is a register."""
    distilled = "DeiTForImageClassificationWithTeacher" in data.get("architectures", ())
    return vit(data).override(init="deit", distilled=distilled, num_registers=0 if distilled else 1)


def dinov2(data: Json) -> ViTConfig:
    dim, hidden = data.get("hidden_size", 768), int(data.get("hidden_size", 768) * data.get("mlp_ratio", 4))
    gated = bool(data.get("use_swiglu_ffn", False))
    return ViTConfig(
        dim=dim,
        mlp="swiglu" if gated else "gelu",
        mlp_ratio=((int(hidden * 2 / 3) + 7) // 8 * 8 if gated else hidden) / dim,
        norm_eps=data.get("layer_norm_eps", 1e-6),
        layer_scale=data.get("layerscale_value", 1.0),
        num_registers=data.get("num_register_tokens", 4) if data["model_type"] == "dinov2_with_registers" else 0,
        init="deit",
        **{"patch_size": 14, **shape_of_vit(data)},
    )


def swin(data: Json) -> SwinConfig:
    if data.get("use_absolute_embeddings"):
        raise ValueError("use_absolute_embeddings is not supported; Swin has only relative position biases here")
    dim, depths = data.get("embed_dim", 96), data.get("depths", (2, 2, 6, 2))
    names = {name: name for name in ("image_size", "patch_size", "num_channels", "num_heads", "mlp_ratio", "qkv_bias")}
    return SwinConfig(
        dims=tuple(dim << stage for stage in range(len(depths))),
        depths=depths,
        mixer=Window(size=data.get("window_size", 7)),
        **renamed_options(data, norm_eps="layer_norm_eps", **names),
    )


def convnext(data: Json) -> ConvNeXtConfig:
    """Convert a ConvNeXt config; ``layer_norm_eps`` applies only to the final norm and is ignored as negligible."""
    dims = data.get("hidden_sizes", (96, 192, 384, 768))
    names = {name: name for name in ("image_size", "patch_size", "num_channels", "depths")}
    return ConvNeXtConfig(
        dims=dims,
        num_heads=(1,) * len(dims),
        layer_scale=data.get("layer_scale_init_value", 1e-6) or None,
        **renamed_options(data, **names),
    )


TRANSFORMERS: dict[Any, Callable[[Json], ModelConfig]] = {
    "vit": vit,
    "deit": deit,
    "dinov2": dinov2,
    "dinov2_with_registers": dinov2,
    "swin": swin,
    "convnext": convnext,
}


def timm_model(data: Json) -> ModelDescription:
    """Convert a timm config: a named architecture; refuse other settings that change the computation."""
    trained, given = {**data, **data.get("pretrained_cfg", {})}, data.get("model_args") or {}
    channels, height, width = trained.get("input_size", (3, 224, 224))
    spec = Spec(timm_preprocess(trained, (height, width)), timm_labels(trained))
    name = str(data["architecture"]).split(".")[0]
    config = timm_config(name)
    if config is None:
        return ModelDescription(
            None, spec, f"is timm's {name!r}, an unsupported architecture{did_you_mean(name, MODELS)}"
        )
    pool = timm_pool(config, given.get("global_pool", data.get("global_pool")))
    unsupported = sorted(set(given) - TIMM_SETTINGS) + (["global_pool"] if pool is None else [])
    if pool is None or unsupported:
        return ModelDescription(None, spec, f"is timm's {name!r} with unsupported settings ({', '.join(unsupported)})")
    config = config.override(image_size=(height, width), num_channels=channels, **pool)
    return ModelDescription(with_classes(config, spec), spec)


def timm_pool(config: ModelConfig, pool: Any) -> dict[str, str] | None:
    """Return the options for timm's ``global_pool``; None if it is not supported."""
    if isinstance(config, ViTConfig):
        return {None: {}, "token": {}, "avg": {"pool": "mean", "final_norm": "pooled"}}.get(pool)
    return {} if pool in (None, "avg") else None


def timm_config(name: str) -> ModelConfig | None:
    """Find the config of a timm architecture, by model name or by the name of a published file."""
    if name in MODELS:
        return MODELS[name]
    rows = (row for row in PUBLISHED.values() if row.repo.removeprefix("timm/").split(".")[0] == name)
    row = next(rows, None)
    return None if row is None else MODELS[row.model].override(**row.config)


def timm_labels(trained: Json) -> Labels:
    """Return class names: the descriptions where given, else the ids."""
    names, words = trained.get("label_names"), trained.get("label_descriptions") or {}
    if isinstance(names, Mapping):
        names = labels_of(names).names
    return Labels(tuple(words.get(name, name) for name in names)) if names else Labels()


def timm_preprocess(trained: Json, image_size: tuple[int, int]) -> Preprocess:
    preprocess = Preprocess(image_size, **renamed_options(trained, mean="mean", std="std", crop_ratio="crop_pct"))
    interpolation = trained.get("interpolation", "bicubic")
    return replace(preprocess, interpolation=interpolation if interpolation in RESAMPLING.values() else "bicubic")
