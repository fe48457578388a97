"""Runs of the sweep, trained with the library's own loop: each once, and kept in the laboratory's folder."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.data.base import Arrays, Dataset, one_hot
from vitreous.data.shapes import Shapes
from vitreous.data.sources import open_data
from vitreous.files import digest, write_atomically
from vitreous.lab.sweep import RUNS, Pair, Run, base, pairs, seeds
from vitreous.lab.trial import Trial
from vitreous.lab.workers import side_by_side
from vitreous.models.base import Backbone, Model
from vitreous.runs.prepare import spec_of
from vitreous.runs.recipe import Recipe
from vitreous.train.loop import Diverged, Trainer
from vitreous.train.parallel import World
from vitreous.weights.files import read, save

SEEN_IMAGES = 2_000  # of the training set, that the generalization gap is measured on


@dataclass(frozen=True)
class Trained:
    """A finished run. The model is loaded, and the images are opened, when somebody asks for them."""

    recipe: Recipe
    accuracy: float  # on ``valid``
    train_accuracy: float  # on training images, not augmented
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
        assert isinstance(model, Backbone)
        model.load_state_dict(file.tensors)
        model.spec = file.spec
        if self.run.change is not None:
            self.run.change(model)
        return model.eval()

    @cached_property
    def valid(self) -> Dataset:
        """The images that the accuracy was measured on, which training never saw."""
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
    """One process at a time; the lock of one that is killed is free again.

    Windows has no such locks: there two processes may train the same run, and the later one is kept.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        yield
        return
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def key(run: Run, recipe: Recipe) -> str:
    """What a finished run depends on; where CIFAR-10 lies does not matter."""
    described = recipe.to_json()
    described["data"]["source"] = recipe.data.source == "shapes"
    outside = [getattr(part, "__name__", "") for part in (run.data, run.change)]
    return digest(json.dumps([described, outside], sort_keys=True))[:16]


def kept(path: Path, key: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found if found.pop("key") == key else None
    except (FileNotFoundError, ValueError, KeyError):
        return None


def datasets(run: Run, recipe: Recipe, trial: Trial) -> Pair:
    """Training and validation images."""
    if run.data is not None:
        train, valid = run.data(trial)
    else:
        train, valid = usual_images(trial.cifar if not trial.quick else "", recipe.model.image_size[0])
    if number := recipe.data.limit:
        train = train.subset(np.random.default_rng(recipe.train.seed).permutation(len(train))[:number])
    return train, valid


@lru_cache(maxsize=2)
def usual_images(cifar: str, side: int) -> Pair:
    """CIFAR-10 with its test set or, where it is not given, centered shapes."""
    if not cifar:
        return centred_shapes(250 * side, side, seed=0), centred_shapes(500, side, seed=1)
    splits = open_data(cifar, valid_share=0.0)
    assert splits.test is not None
    return splits.train, splits.test


def centred_shapes(number: int, side: int, *, seed: int) -> Arrays:
    """Scenes of one object, cut to a square around its center: easy enough to be learned in a second."""
    scenes = Shapes(number, 2 * side, seed=seed, max_objects=1).batch(np.arange(number))
    corners = scenes.composition.center[:, 0] - side // 2
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
        seen = data.subset(np.arange(min(SEEN_IMAGES, len(data))))
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
    model.spec = spec_of(model, data, recipe.task, pretrained=False)
    if run.change is not None:
        assert isinstance(model, Backbone)
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
    arrays = trainer.measure(data).meter.arrays()  # a model that diverged has no metrics, but still answers
    return float((arrays["logits"].argmax(1) == arrays["targets"].argmax(1)).mean())


def plain(model: Model) -> Model:
    """The same weights in a model that nothing was changed in."""
    fresh = model.config.build()
    fresh.load_state_dict(model.state_dict())
    fresh.spec = model.spec
    return fresh
