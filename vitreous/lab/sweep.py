"""Table of the small training runs shared by several claims, each defined by its difference from a base run.

In full mode, a plain ViT and its variants train on CIFAR-10 for a minute; in quick mode, a smaller ViT trains on
centered shapes for a second. ``trained.py`` trains each run once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from vitreous.data.augment import Augment
from vitreous.data.base import Dataset
from vitreous.lab.instruments.halves import two_halves
from vitreous.lab.trial import Trial
from vitreous.layers.block import PreNormBlock
from vitreous.layers.position import Grid
from vitreous.models.base import Backbone
from vitreous.models.vit import ViTConfig
from vitreous.recipes.cifar10_convnet import ConvNetConfig
from vitreous.runs.recipe import DataConfig, Recipe
from vitreous.tasks.classify import Classify
from vitreous.train.config import TrainConfig
from vitreous.train.optim import SGD, AdamW
from vitreous.train.schedule import Cosine

RecipeEdit = Callable[[Recipe], Recipe]
TrainValid = tuple[Dataset, Dataset]


@dataclass(frozen=True)
class SweepRun:
    """The difference of a run from the base recipe.

    ``data`` replaces the training and validation images. ``change`` modifies the built model where no config option
    exists, without renaming or reshaping its parameters.
    """

    alter: RecipeEdit = lambda recipe: recipe
    seeds: int = 2
    quick_seeds: int = 1  # 0: not in the quick sweep
    data: Callable[[Trial], TrainValid] | None = None
    change: Callable[[Backbone], None] | None = None


def base_recipe(trial: Trial) -> Recipe:
    """Return the base recipe: a plain ViT with class token and learned positions, on 64 patches (quick mode: 16)."""
    common: dict[str, Any] = {"schedule": Cosine(warmup=0.1), "evaluate_every": 0, "log_every": 1}
    if trial.quick:
        model = ViTConfig(image_size=(16, 16), patch_size=(4, 4), dim=32, depth=2, num_heads=2, mlp_ratio=2.0)
        train = TrainConfig(steps=100, batch_size=64, optimizer=AdamW(lr=4e-3), **common)
        return Recipe(model, DataConfig("shapes"), Augment(crop="none", flip_rate=0.0), Classify(), train)
    model = ViTConfig(image_size=(32, 32), patch_size=(4, 4), dim=64, depth=4, num_heads=2, mlp_ratio=2.0)
    train = TrainConfig(steps=500, batch_size=64, optimizer=AdamW(lr=2e-3), **common)
    augment = Augment(crop="pad", pad=4) if trial.cifar else Augment(crop="none", flip_rate=0.0)
    return Recipe(model, DataConfig(trial.cifar or "shapes", valid="test"), augment, Classify(), train)


def set_model(**options: Any) -> RecipeEdit:
    """Override fields of the model config."""
    return lambda recipe: replace(recipe, model=recipe.model.override(**options))


def set_training(**options: Any) -> RecipeEdit:
    """Override fields of the training config."""
    return lambda recipe: replace(recipe, train=recipe.train.override(**options))


def set_weight_decay(weight_decay: float) -> RecipeEdit:
    """Set the weight decay of the recipe's optimizer."""
    return lambda recipe: set_training(optimizer=recipe.train.optimizer.override(weight_decay=weight_decay))(recipe)


def use_convnet(recipe: Recipe) -> Recipe:
    """Replace the ViT by a convolutional network of similar size and speed."""
    size, channels = recipe.model.image_size, recipe.model.num_channels
    return replace(recipe, model=ConvNetConfig(image_size=size, num_channels=channels, dim=size[0] * 3))


def scale_width(factor: float) -> RecipeEdit:
    """Scale the embedding dimension."""

    def edit(recipe: Recipe) -> Recipe:
        assert isinstance(recipe.model, ViTConfig)
        return set_model(dim=round(recipe.model.dim * factor))(recipe)

    return edit


def scale_patch_size(factor: float) -> RecipeEdit:
    """Scale the patch size."""

    def edit(recipe: Recipe) -> Recipe:
        assert isinstance(recipe.model, ViTConfig)
        return set_model(patch_size=round(recipe.model.patch_size[0] * factor))(recipe)

    return edit


def limit_images(number: int) -> RecipeEdit:
    """Train on a random subset of this many images, drawn per seed."""
    return lambda recipe: replace(recipe, data=replace(recipe.data, limit=number))


def no_augmentation(recipe: Recipe) -> Recipe:
    """Disable augmentation."""
    return replace(recipe, augment=Augment(crop="none", flip_rate=0.0))


def use_local_convnet(recipe: Recipe) -> Recipe:
    """Use a convolutional network with a receptive field smaller than the image: 9 of 16 pixels, 23 of 32."""
    size = recipe.model.image_size
    stages = 1 if size[0] == 16 else 2
    return no_augmentation(replace(recipe, model=ConvNetConfig(image_size=size, num_stages=stages, dim=size[0] * 2)))


def compose(first: RecipeEdit, second: RecipeEdit) -> RecipeEdit:
    """Apply two edits in order."""
    return lambda recipe: second(first(recipe))


def no_regularization(recipe: Recipe) -> Recipe:
    """Disable augmentation and weight decay."""
    return no_augmentation(set_weight_decay(0.0)(recipe))


def deit_regularization(recipe: Recipe) -> Recipe:
    """Apply DeiT's regularization: RandAugment, Mixup/CutMix, random erasing, label smoothing, drop path, decay 0.1."""
    augment = replace(recipe.augment, randaugment_ops=2, erase_rate=0.25, mixup=0.8, cutmix=1.0)
    regularized = set_model(drop_path_rate=0.1)(set_weight_decay(0.1)(recipe))
    return replace(regularized, augment=augment, task=Classify(smoothing=0.1))


def without_residuals(model: Backbone) -> None:
    """Remove the residual connections: each branch's output replaces its input."""
    for block in model.blocks:
        assert isinstance(block, PreNormBlock)
        forward = partial(forward_without_residuals, block)
        setattr(block, "forward", forward)  # noqa: B010 (mypy rejects assigning to a method)


def forward_without_residuals(block: PreNormBlock, x: Tensor, grid: Grid | None, num_prefix: int = 0) -> Tensor:
    """Forward pass of a pre-norm block without its residual additions."""
    mixed: Tensor = block.mixer(block.norm1(x), grid, num_prefix)
    out: Tensor = block.mlp(block.norm2(mixed))
    return out


def with_relu(model: Backbone) -> None:
    """Replace every GELU by a ReLU."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.GELU):
                setattr(module, name, nn.ReLU())


FEW, SOME, MANY = limit_images(500), limit_images(2_000), limit_images(8_000)

RUNS: dict[str, SweepRun] = {
    "patch_half": SweepRun(scale_patch_size(0.5), quick_seeds=0),
    "width_double": SweepRun(scale_width(2)),
    "base": SweepRun(seeds=3, quick_seeds=2),
    "cnn": SweepRun(use_convnet, seeds=3, quick_seeds=2),
    "base_few": SweepRun(FEW),
    "base_some": SweepRun(SOME, quick_seeds=0),
    "base_many": SweepRun(MANY, quick_seeds=0),
    "cnn_few": SweepRun(compose(use_convnet, FEW)),
    "cnn_some": SweepRun(compose(use_convnet, SOME), quick_seeds=0),
    "cnn_many": SweepRun(compose(use_convnet, MANY), quick_seeds=0),
    "width_quarter": SweepRun(scale_width(0.25)),
    "width_half": SweepRun(scale_width(0.5)),
    "mean_pooling": SweepRun(set_model(pool="mean", class_token=False), seeds=3),
    "max_pooling": SweepRun(set_model(pool="max", class_token=False), seeds=3, quick_seeds=0),
    "sincos_positions": SweepRun(set_model(position="sincos_2d"), seeds=3, quick_seeds=0),
    "no_positions": SweepRun(set_model(position="none"), seeds=3),
    "patch_double": SweepRun(scale_patch_size(2)),
    "patch_quadruple": SweepRun(scale_patch_size(4), quick_seeds=0),
    "no_residual": SweepRun(change=without_residuals),
    "sgd": SweepRun(set_training(optimizer=SGD(lr=0.1))),
    "no_clipping": SweepRun(set_training(clip=0.0), quick_seeds=0),
    "relu": SweepRun(change=with_relu, quick_seeds=0),
    "bare_some": SweepRun(compose(no_regularization, SOME), quick_seeds=0),
    "heavy_some": SweepRun(compose(deit_regularization, SOME), quick_seeds=0),
    "halves_vit": SweepRun(no_augmentation, seeds=3, quick_seeds=2, data=two_halves),
    "halves_cnn": SweepRun(use_local_convnet, seeds=3, quick_seeds=2, data=two_halves),
}


def runs_and_seeds(trial: Trial) -> list[tuple[str, int]]:
    """List the name and seed of every run of the sweep."""
    return [(name, seed) for name in RUNS for seed in run_seeds(trial, name)]


def run_seeds(trial: Trial, name: str) -> range:
    """Return the seeds of a run, in quick or full mode."""
    return range(trial.choose(RUNS[name].quick_seeds, RUNS[name].seeds))
