"""Compare a training step with timm's model in a plain loop, and profile the step.

    python -m benchmarks.training_step --data FOLDER/WITH/CIFAR

Both take the same batches from the same loader, crops and flips included, with the same loss, clipping, fused AdamW and
number of weights, in float32 without weight averaging. Vitreous runs ``Trainer.fit`` as ``vitreous train`` does, log
included. Each runs in its own process, since allocator behavior affects the result, and they alternate step by step.
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
from vitreous.runs.prepare import Prepared, prepare_run
from vitreous.runs.recipe import Recipe
from vitreous.train.loop import Trainer
from vitreous.train.optim import AdamW
from vitreous.train.parallel import World

MODELS = {  # with the default batch size
    "tiny": (SIZES["tiny"].override(image_size=32, patch_size=4), 128),
    "recipe": (plain.model, 128),
    "small": (SIZES["small"], 8),
}
STEPS = 10_000  # more than are ever run


@dataclass(frozen=True)
class Comparison:
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
    """The library's training loop, which waits for a message after every step."""

    wait: Callable[[], None]

    def after_step(self, *arguments: Any) -> None:
        super().after_step(*arguments)
        self.wait()


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


def timm_like(vitreous_model: Backbone) -> VisionTransformer:
    config = vitreous_model.config
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
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in vitreous_model.parameters())
    return model


def plain_loop(recipe: Recipe, prepared: Prepared) -> Iterator[None]:
    """A minimal training loop around timm's model."""
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


def run_steps(name: str, comparison: Comparison, connection: Connection) -> None:
    """Process of one candidate: run a step for every message except "stop"."""
    torch.set_num_threads(comparison.threads)
    recipe = comparison.recipe(name)
    prepared = prepare_run(recipe)

    def wait() -> None:
        connection.send("done")
        if connection.recv() == "stop":
            raise SystemExit

    if name.startswith("timm"):
        for _ in plain_loop(recipe, prepared):
            wait()
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        trainer = trainer_for(StepByStep, recipe, prepared, folder)
        assert isinstance(trainer, StepByStep)
        trainer.wait = wait
        trainer.fit()


class StepProcess:
    """A subprocess that runs a training step on request."""

    def __init__(self, name: str, comparison: Comparison) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child_connection = context.Pipe()
        self.process = context.Process(target=run_steps, args=(name, comparison, child_connection), daemon=True)
        self.process.start()
        child_connection.close()
        self.connection.recv()  # the first step includes reading data and compiling blocks

    def step(self) -> None:
        self.connection.send("step")
        self.connection.recv()

    def stop(self) -> None:
        self.connection.send("stop")
        self.process.join()


def measure(names: list[str], comparison: Comparison, rounds: int) -> dict[str, list[float]]:
    processes = {name: StepProcess(name, comparison) for name in names}
    seconds = interleave({name: one.step for name, one in processes.items()}, rounds)
    for one in processes.values():
        one.stop()
    return seconds


def profile_step(comparison: Comparison) -> dict[str, dict[str, float]]:
    """Shares of an eager Vitreous step, by phase and by operation."""
    torch.set_num_threads(comparison.threads)
    recipe = comparison.recipe("vitreous")
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        trainer = trainer_for(Trainer, recipe, prepare_run(recipe), folder)
        return {"by phase": by_phase(trainer), "by operation": by_operation(trainer)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="folder with CIFAR-10")
    parser.add_argument("--model", choices=MODELS, default="tiny", help="tiny and recipe at 32 pixels, small at 224")
    parser.add_argument("--batch", type=int, help="batch size")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compiled", action="store_true", help="also compare both with compiled blocks")
    parser.add_argument("--json", type=Path, help="path of the JSON record")
    options = parser.parse_args()
    comparison = Comparison(options.data, options.model, options.batch or MODELS[options.model][1], options.threads)
    names = ["timm", "vitreous", *(["timm, compiled", "vitreous, compiled"] if options.compiled else [])]
    seconds = measure(names, comparison, options.rounds)
    ratios, spreads = speed_up(seconds, "timm"), spread(seconds, "timm")
    setting = f"{comparison.model}, batch {comparison.batch}, {comparison.threads} threads, {options.rounds} rounds"
    print(f"{setting}; speed-up over timm")
    for name, (best, median) in ratios.items():
        low, _, high = spreads[name]
        print(f"  {name:<20}{best:6.2f} by minimum, {median:.2f} by median, interquartile range {low:.2f}–{high:.2f}")
    profile = profile_step(comparison)
    for title, shares in profile.items():
        print(table(f"Vitreous step {title}", shares))
    if options.json:
        about = {"model": comparison.model, "batch": comparison.batch, "rounds": options.rounds, "seconds": seconds}
        write_record(options.json, "benchmarks.training_step", 0, **about, ratios=ratios, profile=profile)


if __name__ == "__main__":
    main()
