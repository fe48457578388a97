"""The small runs that several claims share, as a table: how each differs from the base.

In full a plain ViT, and what is to be compared with it, learns CIFAR-10 for a minute; quickly, a still smaller one
learns centered shapes for a second. ``trained.py`` trains them, each once.
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

Alter = Callable[[Recipe], Recipe]
Pair = tuple[Dataset, Dataset]


@dataclass(frozen=True)
class Run:
    """How a run differs from the base; ``data`` gives it other images to train and to be measured on.

    ``change`` does to the built model what no config can say, without touching its parameters' names and shapes.
    """

    alter: Alter = lambda recipe: recipe
    seeds: int = 2
    quick_seeds: int = 1  # 0: no part of the quick sweep
    data: Callable[[Trial], Pair] | None = None
    change: Callable[[Backbone], None] | None = None


def base(trial: Trial) -> Recipe:
    """What every run starts from: a plain ViT with a class token and learned positions, 64 patches or (quickly) 16."""
    common: dict[str, Any] = {"schedule": Cosine(warmup=0.1), "evaluate_every": 0, "log_every": 1}
    if trial.quick:
        model = ViTConfig(image_size=(16, 16), patch_size=(4, 4), dim=32, depth=2, num_heads=2, mlp_ratio=2.0)
        train = TrainConfig(steps=100, batch_size=64, optimizer=AdamW(lr=4e-3), **common)
        return Recipe(model, DataConfig("shapes"), Augment(crop="none", flip_rate=0.0), Classify(), train)
    model = ViTConfig(image_size=(32, 32), patch_size=(4, 4), dim=64, depth=4, num_heads=2, mlp_ratio=2.0)
    train = TrainConfig(steps=500, batch_size=64, optimizer=AdamW(lr=2e-3), **common)
    augment = Augment(crop="pad", pad=4) if trial.cifar else Augment(crop="none", flip_rate=0.0)
    return Recipe(model, DataConfig(trial.cifar or "shapes", valid="test"), augment, Classify(), train)


def model(**options: Any) -> Alter:
    """Other values in the model's config."""
    return lambda recipe: replace(recipe, model=recipe.model.override(**options))


def training(**options: Any) -> Alter:
    return lambda recipe: replace(recipe, train=recipe.train.override(**options))


def decay(weight_decay: float) -> Alter:
    """Another weight decay, with the optimizer as it is."""
    return lambda recipe: training(optimizer=recipe.train.optimizer.override(weight_decay=weight_decay))(recipe)


def convolutional(recipe: Recipe) -> Recipe:
    """A network of convolutions, about as large and as slow as the base."""
    size, channels = recipe.model.image_size, recipe.model.num_channels
    return replace(recipe, model=ConvNetConfig(image_size=size, num_channels=channels, dim=size[0] * 3))


def width(factor: float) -> Alter:
    def alter(recipe: Recipe) -> Recipe:
        assert isinstance(recipe.model, ViTConfig)
        return model(dim=round(recipe.model.dim * factor))(recipe)

    return alter


def patch(factor: float) -> Alter:
    def alter(recipe: Recipe) -> Recipe:
        assert isinstance(recipe.model, ViTConfig)
        return model(patch_size=round(recipe.model.patch_size[0] * factor))(recipe)

    return alter


def images(number: int) -> Alter:
    """Only so many training images, another choice of them for every seed."""
    return lambda recipe: replace(recipe, data=replace(recipe.data, limit=number))


def unaugmented(recipe: Recipe) -> Recipe:
    return replace(recipe, augment=Augment(crop="none", flip_rate=0.0))


def local(recipe: Recipe) -> Recipe:
    """A network of convolutions whose units see less than the whole image: 9 of 16 pixels, 23 of 32."""
    size = recipe.model.image_size
    stages = 1 if size[0] == 16 else 2
    return unaugmented(replace(recipe, model=ConvNetConfig(image_size=size, num_stages=stages, dim=size[0] * 2)))


def both(first: Alter, second: Alter) -> Alter:
    return lambda recipe: second(first(recipe))


def bare(recipe: Recipe) -> Recipe:
    """No regularization of any kind."""
    return unaugmented(decay(0.0)(recipe))


def heavy(recipe: Recipe) -> Recipe:
    """Everything that DeiT is trained with: RandAugment, mixing, erasing, smoothing, drop path, strong decay."""
    augment = replace(recipe.augment, randaugment_ops=2, erase_rate=0.25, mixup=0.8, cutmix=1.0)
    regularized = model(drop_path_rate=0.1)(decay(0.1)(recipe))
    return replace(regularized, augment=augment, task=Classify(smoothing=0.1))


def without_residuals(model: Backbone) -> None:
    """Blocks whose branches replace the stream instead of being added to it."""
    for block in model.blocks:
        assert isinstance(block, PreNormBlock)
        setattr(block, "forward", partial(branches_only, block))  # noqa: B010 - mypy lets nobody assign to a method


def branches_only(block: PreNormBlock, x: Tensor, grid: Grid | None, num_prefix: int = 0) -> Tensor:
    mixed: Tensor = block.mixer(block.norm1(x), grid, num_prefix)
    answer: Tensor = block.mlp(block.norm2(mixed))
    return answer


def with_relu(model: Backbone) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.GELU):
                setattr(module, name, nn.ReLU())


FEW, SOME, MANY = images(500), images(2_000), images(8_000)

RUNS: dict[str, Run] = {
    "patch_half": Run(patch(0.5), quick_seeds=0),
    "width_double": Run(width(2)),
    "base": Run(seeds=3, quick_seeds=2),
    "cnn": Run(convolutional, seeds=3, quick_seeds=2),
    "base_few": Run(FEW),
    "base_some": Run(SOME, quick_seeds=0),
    "base_many": Run(MANY, quick_seeds=0),
    "cnn_few": Run(both(convolutional, FEW)),
    "cnn_some": Run(both(convolutional, SOME), quick_seeds=0),
    "cnn_many": Run(both(convolutional, MANY), quick_seeds=0),
    "width_quarter": Run(width(0.25)),
    "width_half": Run(width(0.5)),
    "mean_pooling": Run(model(pool="mean", class_token=False), seeds=3),
    "max_pooling": Run(model(pool="max", class_token=False), seeds=3, quick_seeds=0),
    "sincos_positions": Run(model(position="sincos_2d"), seeds=3, quick_seeds=0),
    "no_positions": Run(model(position="none"), seeds=3),
    "patch_double": Run(patch(2)),
    "patch_quadruple": Run(patch(4), quick_seeds=0),
    "no_residual": Run(change=without_residuals),
    "sgd": Run(training(optimizer=SGD(lr=0.1))),
    "no_clipping": Run(training(clip=0.0), quick_seeds=0),
    "relu": Run(change=with_relu, quick_seeds=0),
    "bare_some": Run(both(bare, SOME), quick_seeds=0),
    "heavy_some": Run(both(heavy, SOME), quick_seeds=0),
    "halves_vit": Run(unaugmented, seeds=3, quick_seeds=2, data=two_halves),
    "halves_cnn": Run(local, seeds=3, quick_seeds=2, data=two_halves),
}


def pairs(trial: Trial) -> list[tuple[str, int]]:
    """Every run of the sweep: its name and seed."""
    return [(name, seed) for name in RUNS for seed in seeds(trial, name)]


def seeds(trial: Trial, name: str) -> range:
    return range(trial.choose(RUNS[name].quick_seeds, RUNS[name].seeds))
