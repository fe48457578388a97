"""Sane settings from nothing but the data: what to train, how long and how, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vitreous.data.augment import Augment
from vitreous.data.base import ArrayDataset, Dataset, FileDataset
from vitreous.data.image_files import BadImage
from vitreous.data.pack import image_at
from vitreous.data.sources import open_data
from vitreous.models import find_config
from vitreous.models.base import Config
from vitreous.models.vit import ViTConfig
from vitreous.runs.recipe import DataConfig, Recipe
from vitreous.samples import MultiLabels
from vitreous.spec import Size
from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify
from vitreous.tasks.multilabel import MultiLabel
from vitreous.train.config import TrainConfig
from vitreous.train.optim import AdamW, Muon
from vitreous.train.probe import can_probe
from vitreous.train.schedule import Cosine
from vitreous.weights.files import read
from vitreous.weights.published import PUBLISHED

SIDES = (32, 48, 64, 96, 128, 160, 224)


@dataclass(frozen=True)
class Choice:
    setting: str
    value: str
    reason: str


def choose(source: str, model: str = "", weights: str = "") -> tuple[Recipe, list[Choice]]:
    """A recipe for this data, and why."""
    data = open_data(source).train
    choices: list[Choice] = []
    config = choose_model(data, model, weights, choices)
    if isinstance(data, ArrayDataset):
        config = config.override(num_channels=data.num_channels)
    train = choose_training(len(data), bool(weights), config, choices)
    augment = choose_augmentation(data, config, bool(weights), choices)
    several = data.target is MultiLabels
    task: Task = MultiLabel() if several else Classify(smoothing=0.1)
    reason = "images carry several labels" if several else "each image has one label"
    choices.append(Choice("task", type(task).__name__, reason))
    return Recipe(config, DataConfig(source), augment, task, train, weights), choices


def choose_model(data: Dataset, model: str, weights: str, choices: list[Choice]) -> Config:
    typical = typical_side(data)
    if weights:
        config = find_config(model) if model else model_of(weights)
        choices.append(Choice("model", model or type(config).__name__, f"it starts from {Path(weights).name}"))
        return with_size(config, None, choices, "its weights were trained at this size")
    side = max([s for s in SIDES if s <= typical], default=SIDES[0])
    if model:
        config = find_config(model)
        choices.append(Choice("model", model, "you asked for it"))
        config = with_size(config, (side, side), choices, f"images are typically {typical} pixels")
        return smaller_patches(config, choices)
    patch = 8 if side <= 128 else 16
    choices.append(Choice("model", "small ViT, residual stem", "early convolutions help where no weights do"))
    config = ViTConfig(
        patch_size=(patch, patch),
        stem="residual",
        dim=192,
        depth=4,
        num_heads=4,
        mlp_ratio=2.0,
        class_token=False,
        pool="mean",
        init="deit",
    )
    return with_size(config, (side, side), choices, f"images are typically {typical} pixels")


def model_of(weights: str) -> Config:
    """The model that weights belong to, where they say so."""
    if weights in PUBLISHED:
        known = PUBLISHED[weights]
        return find_config(known.model).override(**known.config)
    config = read(weights).config
    if config is None:
        raise ValueError(f"{weights} does not say which model it belongs to; name it with --model, e.g. deit_tiny_16")
    if not isinstance(config, Config):
        raise ValueError(f"{weights} holds no backbone to start from; give a recipe with its model")
    return config


def with_size(config: Config, size: Size | None, choices: list[Choice], reason: str) -> Config:
    size = size or config.image_size
    choices.append(Choice("image size", f"{size[0]}×{size[1]} pixels", reason))
    return config.override(image_size=size)


def smaller_patches(config: Config, choices: list[Choice]) -> Config:
    """Patches so that there are about 8 × 8 of them at least."""
    if not isinstance(config, ViTConfig):
        return config
    side = min(config.image_size)
    patch = config.patch_size[0]
    while patch > 2 and side // patch < 8:
        patch //= 2
    if patch != config.patch_size[0]:
        choices.append(Choice("patch size", f"{patch}×{patch} pixels", "larger ones would leave fewer than 64 tokens"))
    return config.override(patch_size=patch)


def typical_side(data: Dataset, sample: int = 64) -> int:
    """The median of the shorter sides."""
    if isinstance(data, ArrayDataset):
        return min(data.image_size)
    assert isinstance(data, FileDataset)
    sides = []
    for index in np.linspace(0, len(data) - 1, min(sample, len(data))).astype(int):
        try:
            sides.append(min(image_at(data, int(index)).size))
        except BadImage:
            continue
    if not sides:
        raise ValueError("none of the images looked at could be read; vitreous data inspect says why")
    return int(np.median(sides))


def choose_training(number: int, pretrained: bool, config: Config, choices: list[Choice]) -> TrainConfig:
    batch = 128 if number >= 10_000 else 64 if number >= 2_000 else 32
    choices.append(Choice("batch", f"{batch} images", f"there are {number:,} images to learn from"))
    seen = 60_000 if pretrained else 600_000
    epochs = float(np.clip(round(seen / number), 3, 30 if pretrained else 100))
    choices.append(Choice("length", f"{epochs:g} epochs", f"it then sees about {number * epochs:,.0f} images"))
    steps = epochs * max(1, number // batch)
    common = TrainConfig(
        batch_size=batch, epochs=epochs, schedule=Cosine(warmup=0.1), ema=0.99 if steps >= 600 else 0.0
    )
    if pretrained:
        lr = 5e-4 * batch / 128
        choices.append(Choice("rate", f"{lr:.1e}, layer decay 0.75", "early layers need to change least"))
        common = common.override(optimizer=AdamW(lr=lr), layer_decay=0.75)
        if not has_one_linear_head(config):
            return common
        choices.append(Choice("new head", "linear probe", "the features are good before the first step"))
        return common.override(new_head="probe")
    choices.append(
        Choice("optimizer", "Muon, with AdamW for what is no matrix", "it is made to learn fast on small budgets")
    )
    return common.override(optimizer=Muon(lr=2e-3, matrix_lr=0.02))


def has_one_linear_head(config: Config) -> bool:
    with torch.device("meta"):
        return can_probe(config.build())


def choose_augmentation(data: Dataset, config: Config, pretrained: bool, choices: list[Choice]) -> Augment:
    same = isinstance(data, ArrayDataset) and data.image_size == config.image_size and min(data.image_size) <= 64
    if same:
        pad = max(1, min(config.image_size) // 8)
        choices.append(Choice("crops", f"shifted by up to {pad} pixels", "images have the model's size already"))
        return Augment(crop="pad", pad=pad, flip_rate=flips(choices))
    scale = (0.5, 1.0) if pretrained or len(data) < 10_000 else (0.25, 1.0)
    choices.append(Choice("crops", f"{scale[0]:.0%} to all of the image", "any part shows what it is"))
    return Augment(crop="resized", crop_scale=scale, flip_rate=flips(choices))


def flips(choices: list[Choice]) -> float:
    choices.append(
        Choice("mirroring", "half of the images", "left and right rarely matter; else --augment.flip-rate 0")
    )
    return 0.5
