"""The small runs that several claims share: each is trained once, with the library's own models, data and loop.

A run is a name in :data:`RUNS` and a seed. :func:`trained` reads it from the laboratory's folder, and trains it first
where it is missing. In full a plain ViT (and what is to be compared with it) learns CIFAR-10 for a minute; quickly, a
still smaller one learns to name centred shapes for a second.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.data.augment import Augment
from vitreous.data.base import Arrays, Dataset, one_hot
from vitreous.data.shapes import Shapes
from vitreous.data.sources import open_data
from vitreous.lab.halves import two_halves
from vitreous.lab.trial import Trial
from vitreous.lab.workers import side_by_side
from vitreous.layers.block import PreNormBlock
from vitreous.layers.position import Grid
from vitreous.models.base import Backbone
from vitreous.models.vit import ViTConfig
from vitreous.recipes.base import DataConfig, Recipe
from vitreous.recipes.cifar10_convnet import ConvNetConfig
from vitreous.recipes.materials import preprocess_of
from vitreous.spec import Labels, Spec
from vitreous.tasks.classify import Classify
from vitreous.train.config import TrainConfig
from vitreous.train.loop import Diverged, Trainer
from vitreous.train.parallel import World
from vitreous.weights.files import read, save, write_atomically

SEEN_PICTURES = 2_000  # of the training set, that the generalisation gap is measured on

Alter = Callable[[Recipe], Recipe]
Pair = tuple[Dataset, Dataset]


@dataclass(frozen=True)
class Run:
    """How a run differs from the base; ``data`` gives it other pictures to train and to be measured on.

    ``change`` does to the built model what no config can say, without touching its parameters' names and shapes.
    """

    alter: Alter = lambda recipe: recipe
    seeds: int = 2
    quick_seeds: int = 1  # 0: no part of the quick sweep
    data: Callable[[Trial], Pair] | None = None
    change: Callable[[Backbone], None] | None = None


def base(trial: Trial) -> Recipe:
    """What every run starts from: a plain ViT with a class token and learned positions, 64 patches or (quickly) 16."""
    if trial.quick:
        model = ViTConfig(image_size=(16, 16), patch_size=(4, 4), dim=32, depth=2, num_heads=2, mlp_ratio=2.0)
        train = TrainConfig(steps=100, batch_size=64, lr=4e-3, warmup=0.1, evaluate_every=0, log_every=1)
        return Recipe(model, DataConfig("shapes"), Augment(crop="none", flip_rate=0.0), Classify(), train)
    model = ViTConfig(image_size=(32, 32), patch_size=(4, 4), dim=64, depth=4, num_heads=2, mlp_ratio=2.0)
    train = TrainConfig(steps=500, batch_size=64, lr=2e-3, warmup=0.1, evaluate_every=0, log_every=1)
    augment = Augment(crop="pad", pad=4) if trial.cifar else Augment(crop="none", flip_rate=0.0)
    return Recipe(model, DataConfig(trial.cifar or "shapes", valid="test"), augment, Classify(), train)


def model(**options: Any) -> Alter:
    """Other values in the model's config."""
    return lambda recipe: replace(recipe, model=recipe.model.override(**options))


def training(**options: Any) -> Alter:
    return lambda recipe: replace(recipe, train=replace(recipe.train, **options))


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


def pictures(number: int) -> Alter:
    """Only so many training pictures, another choice of them for every seed."""
    return lambda recipe: replace(recipe, data=replace(recipe.data, limit=number))


def unaugmented(recipe: Recipe) -> Recipe:
    return replace(recipe, augment=Augment(crop="none", flip_rate=0.0))


def local(recipe: Recipe) -> Recipe:
    """A network of convolutions whose units see less than the whole picture: 9 of 16 pixels, 23 of 32."""
    size = recipe.model.image_size
    stages = 1 if size[0] == 16 else 2
    return unaugmented(replace(recipe, model=ConvNetConfig(image_size=size, num_stages=stages, dim=size[0] * 2)))


def both(first: Alter, second: Alter) -> Alter:
    return lambda recipe: second(first(recipe))


def bare(recipe: Recipe) -> Recipe:
    """No regularisation of any kind."""
    return unaugmented(training(weight_decay=0.0)(recipe))


def heavy(recipe: Recipe) -> Recipe:
    """Everything that DeiT is trained with: RandAugment, mixing, erasing, smoothing, drop path, strong decay."""
    augment = replace(recipe.augment, randaugment_ops=2, erase_rate=0.25, mixup=0.8, cutmix=1.0)
    regularised = model(drop_path_rate=0.1)(training(weight_decay=0.1)(recipe))
    return replace(regularised, augment=augment, task=Classify(smoothing=0.1))


def without_residuals(model: Backbone) -> None:
    """Blocks whose branches replace the stream instead of being added to it."""
    for block in model.blocks():
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


FEW, SOME, MANY = pictures(500), pictures(2_000), pictures(8_000)

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
    "sgd": Run(training(optimiser="sgd", lr=0.1)),
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


@dataclass(frozen=True)
class Trained:
    """A finished run. The model is loaded, and the pictures are opened, when somebody asks for them."""

    recipe: Recipe
    accuracy: float  # on ``valid``
    train_accuracy: float  # on training pictures, not augmented
    losses: list[float]  # of every step
    gradients: list[float]  # their length at every step, before clipping
    seconds: float  # of training
    diverged: bool  # loss or gradient stopped being a number, and training there
    run: Run
    trial: Trial
    weights: Path

    @cached_property
    def model(self) -> Backbone:
        """As it was trained, in evaluation mode."""
        file = read(self.weights)
        assert file.spec is not None
        with torch.random.fork_rng(devices=[]):  # first weights are drawn, only to be replaced
            model = self.recipe.model.override(num_classes=len(file.spec.labels.names)).build()
        model.load_state_dict(file.tensors)
        model.spec = file.spec
        if self.run.change is not None:
            self.run.change(model)
        return model.eval()

    @cached_property
    def valid(self) -> Dataset:
        """The pictures that the accuracy was measured on, which training never saw."""
        return datasets(self.run, self.recipe, self.trial)[1]


def trained(trial: Trial, name: str, seed: int = 0) -> Trained:
    """A run of the sweep, trained now if it never was; another process that wants the same one waits for it."""
    run = RUNS[name]
    recipe = run.alter(base(trial))
    recipe = replace(recipe, train=replace(recipe.train, seed=seed))
    folder = trial.folder / "sweep" / ("quick" if trial.quick else "full")
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{name}-{seed}"
    with alone(place.with_suffix(".lock")):
        found = kept(place.with_suffix(".json"), key(run, recipe))
        if found is None:
            found = train(run, recipe, trial, place)
    return Trained(recipe, **found, run=run, trial=trial, weights=place.with_suffix(".safetensors"))


def every(trial: Trial, name: str) -> list[Trained]:
    """A run with each of its seeds."""
    return [trained(trial, name, seed) for seed in seeds(trial, name)]


def train_all(trial: Trial, jobs: int) -> Iterator[tuple[str, int]]:
    """Train whatever is missing, in ``jobs`` processes; names and seeds as they are finished."""
    return side_by_side(train_one, [(trial, *pair) for pair in pairs(trial)], jobs)


def train_one(trial: Trial, name: str, seed: int) -> tuple[str, int]:
    trained(trial, name, seed)
    return name, seed


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """One process at a time; the lock of one that is killed is free again."""
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def key(run: Run, recipe: Recipe) -> str:
    """What a finished run depends on; where CIFAR-10 lies does not matter."""
    described = recipe.to_json()
    described["data"]["source"] = recipe.data.source == "shapes"
    outside = [getattr(part, "__name__", "") for part in (run.data, run.change)]
    return hashlib.sha256(json.dumps([described, outside], sort_keys=True).encode()).hexdigest()[:16]


def kept(path: Path, key: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found if found.pop("key") == key else None
    except (FileNotFoundError, ValueError, KeyError):
        return None


def datasets(run: Run, recipe: Recipe, trial: Trial) -> Pair:
    """Training and validation pictures."""
    if run.data is not None:
        train, valid = run.data(trial)
    else:
        train, valid = usual_pictures(trial.cifar if not trial.quick else "", recipe.model.image_size[0])
    if number := recipe.data.limit:
        train = train.subset(np.random.default_rng(recipe.train.seed).permutation(len(train))[:number])
    return train, valid


@lru_cache(maxsize=2)
def usual_pictures(cifar: str, side: int) -> Pair:
    """CIFAR-10 with its test set or, where it is not given, centred shapes."""
    if not cifar:
        return centred_shapes(250 * side, side, seed=0), centred_shapes(500, side, seed=1)
    splits = open_data(cifar, valid_share=0.0)
    assert splits.test is not None
    return splits.train, splits.test


def centred_shapes(number: int, side: int, *, seed: int) -> Arrays:
    """Scenes of one object, cut to a square around its centre: easy enough to be learned in a second."""
    scenes = Shapes(number, 2 * side, seed=seed, max_objects=1).batch(np.arange(number))
    corners = scenes.composition.centre[:, 0] - side // 2
    cut = [image[:, y : y + side, x : x + side] for image, (y, x) in zip(scenes.images, corners, strict=True)]
    return Arrays(np.stack(cut), one_hot(scenes.labels, len(Shapes.classes)), Shapes.classes)


def train(run: Run, recipe: Recipe, trial: Trial, place: Path) -> dict[str, Any]:
    """Train and keep: first the weights, then what was measured, so that a run that was killed counts for nothing."""
    data, valid = datasets(run, recipe, trial)
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]), redirect_stderr(io.StringIO()):
        trainer = prepare(run, recipe, data, valid, Path(folder))
        diverged = False
        try:
            trainer.fit()
        except Diverged:
            diverged = True
        lines = [json.loads(line) for line in (Path(folder) / "log.jsonl").read_text().splitlines()]
        steps = [line for line in lines if line["kind"] == "train"]
        seen = data.subset(np.arange(min(SEEN_PICTURES, len(data))))
        found = {
            "accuracy": accuracy(trainer, valid),
            "train_accuracy": accuracy(trainer, seen),
            "losses": [round(line["loss"], 5) for line in steps],
            "gradients": [round(line["gradient"], 5) for line in steps],
            "seconds": round(sum(trainer.loader.batch_size / line["images_per_second"] for line in steps), 2),
            "diverged": diverged,
        }
        save(plain(trainer.model), place.with_suffix(".safetensors"))
    write_atomically(place.with_suffix(".json"), json.dumps({"key": key(run, recipe), **found}).encode())
    return found


def prepare(run: Run, recipe: Recipe, data: Dataset, valid: Dataset, folder: Path) -> Trainer:
    """The model as the recipe says, changed where the run says so, with all that it takes to train it."""
    torch.manual_seed(recipe.train.seed)
    model = recipe.model.override(num_classes=len(data.classes)).build()
    model.spec = Spec(preprocess_of(model, data, False), Labels(data.classes))
    if run.change is not None:
        run.change(model)
    return Trainer(
        model,
        recipe.task,
        data,
        valid=valid,
        augment=recipe.augment,
        config=recipe.train,
        folder=folder,
        world=World(),
    )


def accuracy(trainer: Trainer, data: Dataset) -> float:
    logits, targets, *_ = trainer.predict(data)
    return float((logits.argmax(1) == targets.argmax(1)).mean())


def plain(model: Backbone) -> Backbone:
    """The same weights in a model that nothing was changed in."""
    fresh = model.config.build()
    fresh.load_state_dict(model.state_dict())
    fresh.spec = model.spec
    return fresh
