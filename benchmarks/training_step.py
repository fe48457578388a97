"""A training step of ours beside timm's model in a plain loop, and where our step spends its time.

    python -m benchmarks.training_step --data FOLDER/WITH/CIFAR

Both take the same batches from the same loader, crops and flips included, the same loss, clipping and fused AdamW, in
float32 with the same number of weights; neither keeps an average of them. Ours is ``Trainer.fit`` as ``vitreous train``
runs it, log included. Each has a process of its own, since how a process treats its memory is part of the answer, and
they take turns step by step.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer

from benchmarks.interleave import interleave, speed_up, spread
from benchmarks.record import write_record
from benchmarks.step_profile import by_operation, by_phase, table
from vitreous.data.loader import Loader
from vitreous.models.base import Backbone
from vitreous.models.vit import SIZES, ViTConfig
from vitreous.recipes.cifar10_vit_plain import recipe as plain
from vitreous.runs.prepare import Prepared, prepare
from vitreous.runs.recipe import Recipe
from vitreous.train.loop import Trainer
from vitreous.train.optim import AdamW
from vitreous.train.parallel import World

MODELS = {  # with the images of one step
    "tiny": (SIZES["tiny"].override(image_size=32, patch_size=4), 128),
    "recipe": (plain.model, 128),
    "small": (SIZES["small"], 8),
}
STEPS = 10_000  # more than anybody will wait for


@dataclass(frozen=True)
class Race:
    data: str
    model: str
    batch: int
    threads: int

    def recipe(self, name: str) -> Recipe:
        data = replace(plain.data, source=self.data, limit=2048)
        optimizer = AdamW(lr=plain.train.optimizer.lr, weight_decay=plain.train.optimizer.weight_decay)
        settings: dict[str, Any] = {"optimizer": optimizer, "steps": STEPS, "checkpoint_every": STEPS, "ema": 0.0}
        settings |= {"batch_size": self.batch, "device": "cpu", "compile": name.endswith("compiled")}
        model = MODELS[self.model][0]
        return replace(plain, model=model, data=data, train=replace(plain.train, **settings))


class StepByStep(Trainer):
    """Our loop, which waits for its turn after every step."""

    turn: Callable[[], None]

    def after_step(self, *arguments: Any) -> None:
        super().after_step(*arguments)
        self.turn()


def trainer_for(kind: type[Trainer], recipe: Recipe, prepared: Prepared, folder: str) -> Trainer:
    return kind(
        prepared.model,
        recipe.task,
        prepared.train,
        valid=None,
        augment=recipe.augment,
        config=recipe.train,
        folder=Path(folder),
        world=World(device="cpu"),
    )


def timm_like(ours: Backbone) -> VisionTransformer:
    config = ours.config
    assert isinstance(config, ViTConfig)
    model = VisionTransformer(
        img_size=config.image_size[0],
        patch_size=config.patch_size[0],
        num_classes=config.num_classes,
        embed_dim=config.dim,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp_ratio,
        class_token=config.class_token,
        global_pool="token" if config.pool == "class" else "avg",
    )
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in ours.parameters())
    return model


def plain_loop(recipe: Recipe, prepared: Prepared) -> Iterator[None]:
    """The loop that everybody writes, around timm's model."""
    model, train = timm_like(prepared.model).train(), recipe.train
    if train.compile:
        for block in model.blocks:
            block.compile()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=train.optimizer.lr, weight_decay=train.optimizer.weight_decay, fused=True
    )
    preprocess = prepared.model.spec.preprocess
    loader = Loader(prepared.train, preprocess, recipe.augment, batch_size=train.batch_size, seed=train.seed)
    for step in range(STEPS):
        batch = loader.batch(step)
        F.cross_entropy(model(batch.images), batch.targets, label_smoothing=0.1).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


def serve(name: str, race: Race, connection: Connection) -> None:
    """The process of one contestant: a step for every message but the last."""
    torch.set_num_threads(race.threads)
    recipe = race.recipe(name)
    prepared = prepare(recipe)

    def turn() -> None:
        connection.send("done")
        if connection.recv() == "stop":
            raise SystemExit

    if name.startswith("timm"):
        for _ in plain_loop(recipe, prepared):
            turn()
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        trainer = trainer_for(StepByStep, recipe, prepared, folder)
        assert isinstance(trainer, StepByStep)
        trainer.turn = turn
        trainer.fit()


class Contestant:
    """A process that takes a step when told to."""

    def __init__(self, name: str, race: Race) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(name, race, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.connection.recv()  # the first step, before which data are read and blocks compiled

    def step(self) -> None:
        self.connection.send("step")
        self.connection.recv()

    def stop(self) -> None:
        self.connection.send("stop")
        self.process.join()


def measured(names: list[str], race: Race, rounds: int) -> dict[str, list[float]]:
    contestants = {name: Contestant(name, race) for name in names}
    seconds = interleave({name: one.step for name, one in contestants.items()}, rounds)
    for one in contestants.values():
        one.stop()
    return seconds


def profiled(race: Race) -> dict[str, dict[str, float]]:
    """Shares of our eager step."""
    torch.set_num_threads(race.threads)
    recipe = race.recipe("vitreous")
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        trainer = trainer_for(Trainer, recipe, prepare(recipe), folder)
        return {"by phase": by_phase(trainer), "by operation": by_operation(trainer)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="the folder that holds CIFAR-10")
    parser.add_argument("--model", choices=MODELS, default="tiny", help="tiny and recipe at 32 pixels, small at 224")
    parser.add_argument("--batch", type=int, help="images of one step")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compiled", action="store_true", help="also both with their blocks compiled")
    parser.add_argument("--json", type=Path, help="where to write the record")
    options = parser.parse_args()
    race = Race(options.data, options.model, options.batch or MODELS[options.model][1], options.threads)
    names = ["timm", "vitreous", *(["timm, compiled", "vitreous, compiled"] if options.compiled else [])]
    seconds = measured(names, race, options.rounds)
    ratios, spreads = speed_up(seconds, "timm"), spread(seconds, "timm")
    print(f"{race.model}, batch {race.batch}, {race.threads} threads, {options.rounds} rounds; times faster than timm")
    for name, (best, median) in ratios.items():
        low, _, high = spreads[name]
        print(
            f"  {name:<20}{best:6.2f} by the minimum, {median:.2f} by the median, {low:.2f}–{high:.2f} the middle half"
        )
    profile = profiled(race)
    for title, shares in profile.items():
        print(table(f"our step {title}", shares))
    if options.json:
        about = {"model": race.model, "batch": race.batch, "rounds": options.rounds, "seconds": seconds}
        write_record(options.json, "benchmarks.training_step", 0, **about, ratios=ratios, profile=profile)


if __name__ == "__main__":
    main()
