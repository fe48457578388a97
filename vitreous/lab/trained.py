"""Train the runs of the sweep with the library's training loop and cache each in the laboratory's folder."""

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
from vitreous.lab.sweep import RUNS, SweepRun, TrainValid, base_recipe, run_seeds, runs_and_seeds
from vitreous.lab.trial import Trial
from vitreous.lab.workers import parallel_map
from vitreous.models.base import Backbone, Model
from vitreous.runs.prepare import build_spec
from vitreous.runs.recipe import Recipe
from vitreous.train.loop import Diverged, Trainer
from vitreous.train.parallel import World
from vitreous.weights.files import read, save

MAX_TRAIN_IMAGES = 2_000  # training images on which the training accuracy is measured


@dataclass(frozen=True)
class Trained:
    """A finished run. The model and the validation images are loaded lazily."""

    recipe: Recipe
    accuracy: float  # on ``valid``
    train_accuracy: float  # on training images without augmentation
    losses: list[float]  # per step
    gradients: list[float]  # gradient norm per step, before clipping
    seconds: float  # training time
    diverged: bool  # training stopped at a NaN or infinite loss or gradient
    run: SweepRun
    trial: Trial
    weights: Path

    @cached_property
    def model(self) -> Backbone:
        """The trained model, in evaluation mode."""
        file = read(self.weights)
        assert file.spec is not None
        with torch.random.fork_rng(devices=[]):  # the initial weights are replaced: leave the RNG unchanged
            model = self.recipe.model.override(num_classes=len(file.spec.labels.names)).build()
        assert isinstance(model, Backbone)
        model.load_state_dict(file.tensors)
        model.spec = file.spec
        if self.run.change is not None:
            self.run.change(model)
        return model.eval()

    @cached_property
    def valid(self) -> Dataset:
        """The held-out images on which the accuracy was measured."""
        return datasets(self.run, self.recipe, self.trial)[1]


def trained_run(trial: Trial, name: str, seed: int = 0) -> Trained:
    """Return a run of the sweep, training it first if it is not cached; concurrent processes wait for each other."""
    run = RUNS[name]
    recipe = run.alter(base_recipe(trial))
    recipe = replace(recipe, train=replace(recipe.train, seed=seed))
    folder = trial.folder / "sweep" / ("quick" if trial.quick else "full")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{seed}"
    with file_lock(path.with_suffix(".lock")):
        found = read_cached(path.with_suffix(".json"), cache_key(run, recipe))
        if found is None:
            found = train_and_save(run, recipe, trial, path)
    return Trained(recipe, **found, run=run, trial=trial, weights=path.with_suffix(".safetensors"))


def trained_runs(trial: Trial, name: str) -> list[Trained]:
    """Return a run for each of its seeds."""
    return [trained_run(trial, name, seed) for seed in run_seeds(trial, name)]


def train_all(trial: Trial, jobs: int) -> Iterator[tuple[str, int]]:
    """Train all missing runs in ``jobs`` processes; yield name and seed of each finished run."""
    return parallel_map(train_one, [(trial, *pair) for pair in runs_and_seeds(trial)], jobs)


def train_one(trial: Trial, name: str, seed: int) -> tuple[str, int]:
    """Train one run, as a function that can be sent to a worker process."""
    trained_run(trial, name, seed)
    return name, seed


@contextmanager
def file_lock(lock: Path) -> Iterator[None]:
    """Hold an exclusive file lock, which the system releases if the process is killed.

    Without ``fcntl`` (on Windows) nothing is locked: two processes may train the same run, and the last result is kept.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        yield
        return
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_key(run: SweepRun, recipe: Recipe) -> str:
    """Hash everything a run's result depends on, except the path of CIFAR-10."""
    settings = recipe.to_json()
    settings["data"]["source"] = recipe.data.source == "shapes"
    functions = [getattr(part, "__name__", "") for part in (run.data, run.change)]
    return digest(json.dumps([settings, functions], sort_keys=True))[:16]


def read_cached(path: Path, key: str) -> dict[str, Any] | None:
    """Return the record of a finished run with this key, else None."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found if found.pop("key") == key else None
    except (FileNotFoundError, ValueError, KeyError):
        return None


def datasets(run: SweepRun, recipe: Recipe, trial: Trial) -> TrainValid:
    """Return the training and validation images of a run."""
    if run.data is not None:
        train, valid = run.data(trial)
    else:
        train, valid = default_datasets(trial.cifar if not trial.quick else "", recipe.model.image_size[0])
    if number := recipe.data.limit:
        train = train.subset(np.random.default_rng(recipe.train.seed).permutation(len(train))[:number])
    return train, valid


@lru_cache(maxsize=2)
def default_datasets(cifar: str, side: int) -> TrainValid:
    """Return CIFAR-10 with its test set, or centered shapes if ``cifar`` is empty."""
    if not cifar:
        return centered_shapes(250 * side, side, seed=0), centered_shapes(500, side, seed=1)
    splits = open_data(cifar, valid_share=0.0)
    assert splits.test is not None
    return splits.train, splits.test


def centered_shapes(number: int, side: int, *, seed: int) -> Arrays:
    """Render scenes of one object, cropped to a square around its center: learnable in a second of training."""
    scenes = Shapes(number, 2 * side, seed=seed, max_objects=1).batch(np.arange(number))
    corners = scenes.composition.center[:, 0] - side // 2
    cut = [image[:, y : y + side, x : x + side] for image, (y, x) in zip(scenes.images, corners, strict=True)]
    return Arrays(np.stack(cut), one_hot(scenes.labels, len(Shapes.classes)), Shapes.classes)


def train_and_save(run: SweepRun, recipe: Recipe, trial: Trial, path: Path) -> dict[str, Any]:
    """Train a run and save the weights, then the metrics: a killed run leaves no metrics and is trained again."""
    data, valid = datasets(run, recipe, trial)
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]), redirect_stderr(io.StringIO()):
        trainer = make_trainer(run, recipe, data, valid, Path(folder))
        diverged = False
        try:
            trainer.fit()
        except Diverged:
            diverged = True
        lines = [json.loads(line) for line in (Path(folder) / "log.jsonl").read_text().splitlines()]
        steps = [line for line in lines if line["kind"] == "train"]
        seen = data.subset(np.arange(min(MAX_TRAIN_IMAGES, len(data))))
        found = {
            "accuracy": measure_accuracy(trainer, valid),
            "train_accuracy": measure_accuracy(trainer, seen),
            "losses": [round(line["loss"], 5) for line in steps],
            "gradients": [round(line["gradient"], 5) for line in steps],
            "seconds": round(sum(trainer.loader.batch_size / line["images_per_second"] for line in steps), 2),
            "diverged": diverged,
        }
        save(unmodified_copy(trainer.model), path.with_suffix(".safetensors"))
    write_atomically(path.with_suffix(".json"), json.dumps({"key": cache_key(run, recipe), **found}).encode())
    return found


def make_trainer(run: SweepRun, recipe: Recipe, data: Dataset, valid: Dataset, folder: Path) -> Trainer:
    """Build the model, apply the run's change, and set up its trainer."""
    torch.manual_seed(recipe.train.seed)
    model = recipe.model.override(num_classes=len(data.classes)).build()
    model.spec = build_spec(model, data, recipe.task, pretrained=False)
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


def measure_accuracy(trainer: Trainer, data: Dataset) -> float:
    """Return the top-1 accuracy."""
    arrays = trainer.measure(data).meter.arrays()  # not from metrics: a diverged model has none
    return float((arrays["logits"].argmax(1) == arrays["targets"].argmax(1)).mean())


def unmodified_copy(model: Model) -> Model:
    """Copy the weights to a model built from the config alone, without the run's change."""
    fresh = model.config.build()
    fresh.load_state_dict(model.state_dict())
    fresh.spec = model.spec
    return fresh
