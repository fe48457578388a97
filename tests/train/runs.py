"""Small recipes and helpers shared by the training tests."""

from dataclasses import replace

import numpy as np

from vitreous.data.augment import Augment
from vitreous.models.vit import ViTConfig
from vitreous.runs.recipe import DataConfig, Recipe
from vitreous.tasks.classify import Classify
from vitreous.train.config import TrainConfig
from vitreous.weights.files import read

RECIPE = Recipe(
    model=ViTConfig(
        image_size=(32, 32), patch_size=(8, 8), dim=32, depth=2, num_heads=2, drop_path_rate=0.2, drop_rate=0.1
    ),
    data=DataConfig("shapes", limit=64),
    augment=Augment(crop="pad", pad=2, randaugment_ops=1, erase_rate=0.3, mixup=0.5, cutmix=1.0),
    task=Classify(smoothing=0.1),
    train=TrainConfig(
        steps=12, batch_size=16, ema=0.9, checkpoint_every=4, log_every=1, evaluate_every=1, device="cpu", seed=3
    ),
)

#: Without dropout and stochastic depth, so that results do not depend on the number of processes.
PLAIN = replace(
    RECIPE,
    model=replace(RECIPE.model, drop_rate=0.0, drop_path_rate=0.0),
    train=replace(RECIPE.train, steps=20),
)


def with_training(**changes):
    return replace(RECIPE, train=replace(RECIPE.train, **changes))


def tensors(path):
    """Read a safetensors file as arrays."""
    return {name: value.numpy() for name, value in read(path).tensors.items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert np.array_equal(value, other[name], equal_nan=True), f"{name} differs"
