"""Choose a recipe for a dataset: model, training length, optimizer and augmentation, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
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
from vitreous.train.probe import MAX_CLASSES, can_probe
from vitreous.train.schedule import Cosine
from vitreous.weights.files import read
from vitreous.weights.published import PUBLISHED

#: Least number of images for each batch size: an epoch drops an incomplete last batch, so small sets take small ones.
BATCHES = ((10_000, 128), (2_000, 64), (256, 32), (128, 16))
CROPS = ("augment.crop", "augment.crop_scale", "augment.pad")
SIDES = (32, 48, 64, 96, 128, 160, 224)


@dataclass(frozen=True)
class ChosenSetting:
    """A setting that was chosen for the data, with the reason, as shown to the user."""

    setting: str
    value: str
    reason: str
    options: tuple[str, ...] = ()  # the fields of the recipe that the choice decides, such as train.batch_size

    def still_holds(self, before: Recipe, after: Recipe) -> bool:
        """Whether a recipe that was changed after the choice still has the chosen values."""
        return all(attrgetter(option)(before) == attrgetter(option)(after) for option in self.options)


def choose_recipe(source: str, model: str = "", weights: str = "") -> tuple[Recipe, list[ChosenSetting]]:
    """Choose a recipe for a data source, optionally for a given model or pretrained weights."""
    data = open_data(source).train
    choices: list[ChosenSetting] = []
    config = choose_model(data, model, weights, choices)
    if isinstance(data, ArrayDataset):
        config = config.override(num_channels=data.num_channels)
    train = choose_training(len(data), bool(weights), config, choices)
    augment = choose_augmentation(data, config, bool(weights), choices)
    several = data.target is MultiLabels
    task: Task = MultiLabel() if several else Classify(smoothing=0.1)
    reason = "images carry several labels" if several else "each image has one label"
    choices.append(ChosenSetting("task", type(task).__name__, reason, ("task",)))
    return Recipe(config, DataConfig(source), augment, task, train, weights), choices


def choose_model(data: Dataset, model: str, weights: str, choices: list[ChosenSetting]) -> Config:
    """Choose model, image size and patch size: of the weights, of a named model, or a small ViT for the image size."""
    typical = typical_side(data)
    if weights:
        config = find_config(model) if model else config_of_weights(weights)
        choices.append(
            ChosenSetting("model", model or type(config).__name__, f"it matches the weights {Path(weights).name}")
        )
        return with_size(config, None, choices, "the weights were trained at this size")
    side = max([s for s in SIDES if s <= typical], default=SIDES[0])
    if model:
        config = find_config(model)
        choices.append(ChosenSetting("model", model, "it was requested"))
        config = with_size(config, (side, side), choices, f"images are typically {typical} pixels")
        return smaller_patches(config, choices)
    patch = 8 if side <= 128 else 16
    choices.append(
        ChosenSetting("model", "small ViT, residual stem", "early convolutions help without pretrained weights")
    )
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


def config_of_weights(weights: str) -> Config:
    """Return the model config of pretrained weights, or raise if the file has none."""
    if weights in PUBLISHED:
        known = PUBLISHED[weights]
        return find_config(known.model).override(**known.config)
    config = read(weights).config
    if config is None:
        raise ValueError(f"{weights} does not contain a model config; name the model with --model, e.g. deit_tiny_16")
    if not isinstance(config, Config):
        raise ValueError(f"{weights} is not a backbone; use a recipe with its model")
    return config


def with_size(config: Config, size: Size | None, choices: list[ChosenSetting], reason: str) -> Config:
    size = size or config.image_size
    choices.append(ChosenSetting("image size", f"{size[0]}×{size[1]} pixels", reason, ("model.image_size",)))
    return config.override(image_size=size)


def smaller_patches(config: Config, choices: list[ChosenSetting]) -> Config:
    """Reduce the patch size until there are at least about 8 × 8 patches."""
    if not isinstance(config, ViTConfig):
        return config
    side = min(config.image_size)
    patch = config.patch_size[0]
    while patch > 2 and side // patch < 8:
        patch //= 2
    if patch != config.patch_size[0]:
        choices.append(
            ChosenSetting(
                "patch size",
                f"{patch}×{patch} pixels",
                "larger patches would give fewer than 64 tokens",
                ("model.patch_size",),
            )
        )
    return config.override(patch_size=patch)


def typical_side(data: Dataset, sample: int = 64) -> int:
    """Return the median of the images' shorter sides in pixels, estimated from ``sample`` images."""
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
        raise ValueError("none of the sampled images could be read; vitreous data inspect lists the reasons")
    return int(np.median(sides))


def choose_training(number: int, pretrained: bool, config: Config, choices: list[ChosenSetting]) -> TrainConfig:
    """Choose batch size, epochs and optimizer for a number of training images."""
    batch = next((size for least, size in BATCHES if number >= least), 8)
    choices.append(
        ChosenSetting("batch", f"{batch} images", f"there are {number:,} training images", ("train.batch_size",))
    )
    budget = 60_000 if pretrained else 600_000  # images
    epochs = float(np.clip(round(budget / number), 3, 30 if pretrained else 100))
    steps = epochs * max(1, number // batch)
    images = f"about {steps * min(batch, number):,.0f} images in total"
    choices.append(
        ChosenSetting("length", f"{epochs:g} epochs", images, ("train.epochs", "train.steps", "train.batch_size"))
    )
    common = TrainConfig(
        batch_size=batch, epochs=epochs, schedule=Cosine(warmup=0.1), ema=0.99 if steps >= 600 else 0.0
    )
    if pretrained:
        lr = 5e-4 * batch / 128
        decided = ("train.optimizer", "train.layer_decay")
        reason = "early layers need the smallest changes"
        choices.append(ChosenSetting("rate", f"{lr:.1e}, layer decay 0.75", reason, decided))
        common = common.override(optimizer=AdamW(lr=lr), layer_decay=0.75)
        if config.num_classes > MAX_CLASSES or not has_one_linear_head(config):
            return common
        choices.append(
            ChosenSetting(
                "new head", "linear probe", "pretrained features are useful before the first step", ("train.new_head",)
            )
        )
        return common.override(new_head="probe")
    choices.append(
        ChosenSetting(
            "optimizer",
            "Muon, with AdamW for non-matrix parameters",
            "it trains fast on small budgets",
            ("train.optimizer",),
        )
    )
    return common.override(optimizer=Muon(lr=2e-3, matrix_lr=0.02))


def has_one_linear_head(config: Config) -> bool:
    """Return whether the model's classifier can be initialized by a linear probe."""
    with torch.device("meta"):
        return can_probe(config.build())


def choose_augmentation(data: Dataset, config: Config, pretrained: bool, choices: list[ChosenSetting]) -> Augment:
    """Choose padded crops for small images of the model's size, random resized crops otherwise."""
    same = isinstance(data, ArrayDataset) and data.image_size == config.image_size and min(data.image_size) <= 64
    if same:
        pad = max(1, min(config.image_size) // 8)
        choices.append(
            ChosenSetting("crops", f"shifted by up to {pad} pixels", "images already have the model's size", CROPS)
        )
        return Augment(crop="pad", pad=pad, flip_rate=choose_flip_rate(choices))
    scale = (0.5, 1.0) if pretrained or len(data) < 10_000 else (0.25, 1.0)
    choices.append(
        ChosenSetting("crops", f"{scale[0]:.0%} to 100% of the image", "most crops still show the class", CROPS)
    )
    return Augment(crop="resized", crop_scale=scale, flip_rate=choose_flip_rate(choices))


def choose_flip_rate(choices: list[ChosenSetting]) -> float:
    choices.append(
        ChosenSetting(
            "mirroring",
            "half of the images",
            "left and right rarely matter; if they do, --augment.flip-rate 0",
            ("augment.flip_rate",),
        )
    )
    return 0.5
