"""The loop: batches in, a trained model and its record out.

State changes only in ``step``, and everything random there follows from (seed, step, process). A run that is killed
anywhere therefore reaches the same weights when it is resumed, on the same machine with as many threads and processes.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.augment import Augment
from vitreous.data.base import Dataset
from vitreous.data.loader import EvaluationLoader, Loader, first_of
from vitreous.memory import memory_kept
from vitreous.models.base import Backbone
from vitreous.models.edit import rebuild
from vitreous.spec import Batch
from vitreous.tasks.base import Heads, Task, combine
from vitreous.train.checkpoint import Checkpoints, fill, remember, state_of
from vitreous.train.config import TrainConfig
from vitreous.train.ema import Average
from vitreous.train.log import RunLog
from vitreous.train.meter import Meter, describe
from vitreous.train.optim import freeze, optimisers, rest, set_rate
from vitreous.train.outside import autocast, checkpoint_blocks, choose_precision, compile_blocks
from vitreous.train.parallel import World, spread, whole
from vitreous.train.schedule import rate
from vitreous.weights.files import read, save


class Interrupted(KeyboardInterrupt):
    """Somebody asked the run to stop; its state is saved."""


class Diverged(ValueError):
    """The loss or the gradient is no number any more."""


@dataclass(frozen=True)
class Outcome:
    """What a run ended with: the metrics of the model that it kept, and the logits behind them."""

    metrics: dict[str, float]
    steps: int
    images: int
    seconds: float
    unreadable: dict[str, str]
    logits: NDArray[np.float32] = field(repr=False)
    targets: NDArray[np.float32] = field(repr=False)
    indices: NDArray[np.int64] = field(repr=False)


class Trainer:
    """Trains ``model`` in place. The folder gets checkpoints, log and ``model.safetensors``, the best so far."""

    def __init__(
        self,
        model: Backbone,
        task: Task,
        train: Dataset,
        *,
        valid: Dataset | None,
        augment: Augment,
        config: TrainConfig,
        folder: Path,
        world: World,
    ) -> None:
        self.task, self.valid, self.config, self.folder, self.world = task, valid, config, folder, world
        self.preprocess = model.spec.preprocess
        self.precision, _ = choose_precision(config.precision, world.device)
        self.loader = Loader(
            train,
            self.preprocess,
            augment,
            batch_size=config.batch_size,
            rows=world.share(config.batch_size) if world.size > 1 else None,
            seed=config.seed,
            workers=config.workers,
        )
        self.total = config.steps or max(1, round(config.epochs * self.loader.steps_per_epoch))
        self.model = model.to(world.device)
        if config.parallel == "ddp":  # convolutions are faster so; FSDP wants parameters as they come
            self.model.to(memory_format=torch.channels_last)
        self.apply_from_outside()
        self.average = Average(self.model, config.ema) if config.ema else None
        self.checkpoints = Checkpoints(folder / "checkpoints", keep=config.keep, world=world)
        self.best = -math.inf
        self.begin = time.monotonic()
        self.stop_asked = False

    def apply_from_outside(self) -> None:
        config = self.config
        if config.parallel == "fsdp" and config.optimiser == "muon":
            raise ValueError("muon needs whole matrices, which fsdp divides; choose train.optimiser adamw, or ddp")
        freeze(self.model, config.freeze_blocks)
        if config.checkpoint_activations:
            checkpoint_blocks(self.model)
        if config.compile:
            compile_blocks(self.model)
        self.task.prepare(self.world.device, self.preprocess)
        self.forward = spread(Heads(self.model), self.world, config.parallel)
        on_mps = self.world.device == "mps"
        self.optimisers = optimisers(self.model, config, fused=config.parallel == "ddp" and not on_mps)

    # One run

    def fit(self, *, resume: bool = False) -> Outcome:
        start, seconds = self.restore() if resume else (0, 0.0)
        self.begin = time.monotonic() - seconds
        record = RunLog(self.folder, total=self.total, start=start, shown=self.world.is_main)
        with record as log, self.stoppable(), memory_kept():
            for complaint in self.checkpoints.complaints:
                log.say(f"[yellow]{complaint}[/yellow]")
            meter = Meter(self.loader.batch_size, one_label=not self.loader.data.multi_label)
            for step, batch in enumerate(self.loader.stream(start, self.total), start=start):
                self.step(step, batch.to(self.world.device), meter)
                self.after_step(step + 1, log, meter)
            outcome = self.evaluate_and_keep(self.total, log, final=True)
        seconds = time.monotonic() - self.begin
        return Outcome(steps=self.total, images=self.total * self.loader.batch_size, seconds=seconds, **outcome)

    def step(self, step: int, batch: Batch, meter: Meter) -> None:
        """One update from one global batch, computed in ``accumulate`` parts."""
        config, parts = self.config, split(batch, self.config.accumulate)
        torch.manual_seed(self.noise_seed(step))
        self.model.train()
        rest(self.model)
        share = rate(
            step, self.total, warmup=round(config.warmup * self.total), kind=config.schedule, final=config.final_lr
        )
        set_rate(self.optimisers, share)
        loss = torch.zeros((), device=self.world.device)
        for index, part in enumerate(parts, start=1):
            with self.no_sync(index < len(parts)), autocast(self.precision, self.world.device):
                part_loss, logits = self.task.loss(self.forward, part)
            (part_loss / len(parts)).backward()
            loss += part_loss.detach() / len(parts)
            meter.saw(logits, part.targets)
        norm = self.clip()
        meter.learned(loss, norm, share * config.lr)
        self.check(step, loss, norm)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        if config.parallel == "fsdp":
            self.world.agree_on_buffers(self.model)
        if self.average:
            self.average.update(self.model, step)

    def noise_seed(self, step: int) -> int:
        """Of dropout and its kin: another for every step and process, the same after a resume."""
        return int(np.random.SeedSequence([self.config.seed, step, self.world.rank]).generate_state(1)[0])

    def no_sync(self, waiting: bool) -> Any:
        pause = getattr(self.forward, "no_sync", None)
        return pause() if waiting and pause is not None else nullcontext()

    def clip(self) -> Tensor:
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        longest = self.config.clip or float("inf")
        return whole(torch.nn.utils.clip_grad_norm_(parameters, longest))

    def check(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Stop before a bad gradient reaches the weights; on a GPU only now and then, since looking costs time."""
        if self.world.device.startswith("cuda") and (step + 1) % self.config.log_every:
            return
        if not bool(torch.isfinite(loss + norm)):
            kept = self.checkpoints.newest()
            where = f"the last good checkpoint is {kept.stem}" if kept else "no checkpoint was written yet"
            raise Diverged(
                f"at step {step + 1} the loss is {loss.item():g} and the gradient's length {norm.item():g}; {where} in "
                f"{self.checkpoints.folder}. Resume with a lower train.lr, a longer train.warmup or train.clip 1"
            )

    # Around the steps

    def after_step(self, done: int, log: RunLog, meter: Meter) -> None:
        config = self.config
        if done % config.log_every == 0 or done == self.total:
            values = {name: self.mean(value) for name, value in meter.values().items()}
            log.write("train", done, values)
            log.progress(done, describe(values))
        every = max(1, round(config.evaluate_every * self.loader.steps_per_epoch)) if config.evaluate_every else 0
        if every and done % every == 0 and done < self.total and self.valid is not None:
            self.evaluate_and_keep(done, log)
            meter.restart()
        together = self.world.size == 1 or done % config.log_every == 0
        stop_now = together and self.world.anyone(self.stop_asked)
        saved = True
        if done % config.checkpoint_every == 0 or done == self.total or stop_now:
            saved = self.keep(done, log)
        if stop_now:
            state = (
                f"everything is saved in {self.folder}" if saved else "only the last checkpoint is left to go on from"
            )
            raise Interrupted(f"stopped after step {done:,} of {self.total:,}; {state}")

    def mean(self, value: float) -> float:
        return float(self.world.mean(torch.tensor(value, device=self.world.device)))

    def keep(self, done: int, log: RunLog) -> bool:
        before = len(self.checkpoints.complaints)
        saved = self.checkpoints.save(done, self.state(), seconds=time.monotonic() - self.begin)
        for complaint in self.checkpoints.complaints[before:]:
            log.say(f"[yellow]{complaint}[/yellow]")
        return saved is not None

    def state(self) -> dict[str, Tensor]:
        state = state_of(self.model, self.average.values if self.average else {}, self.optimisers)
        return state | {"best": torch.tensor(self.best, dtype=torch.float64)}

    def restore(self) -> tuple[int, float]:
        """Everything as it was after the newest whole checkpoint; the step and the seconds spent until then."""
        newest = self.checkpoints.newest()
        if newest is None:
            return 0, 0.0
        contents = self.checkpoints.contents(newest)
        remember(self.model, self.optimisers, contents)
        wanted = self.state()
        shapes = {name: tuple(value.shape) for name, value in wanted.items()}
        if different := sorted(name for name in {**shapes, **contents} if shapes.get(name) != contents.get(name)):
            raise ValueError(
                f"{newest.stem} does not fit: {different[0]} and {len(different) - 1} more differ; resume with the "
                "settings and the classes that the run was started with"
            )
        done, seconds = self.checkpoints.load(newest, wanted)
        self.best = wanted["best"].item()
        return done, seconds

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM let the step end and save; a second Ctrl-C stops at once."""

        def ask(number: int, frame: object) -> None:
            if self.stop_asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.stop_asked = True

        try:
            before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # only the main thread may listen
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # Evaluation

    def evaluate_and_keep(self, done: int, log: RunLog, *, final: bool = False) -> dict[str, Any]:
        """Measure on the validation set, with the average if there is one; save the model when it is the best."""
        with self.average.worn_by(self.model) if self.average else nullcontext():
            if self.valid is None:
                self.save_model(log)
                return {"metrics": {}, "unreadable": self.loader.unreadable, **nothing()}
            log.progress(done, "evaluating")
            logits, targets, indices, unreadable = self.predict(self.valid)
            metrics = self.task.measure(torch.from_numpy(logits), torch.from_numpy(targets), self.valid.classes)
            name, score = next(iter(metrics.items()))
            log.write("valid", done, metrics)
            log.say(f"step {done:,}: {name} {score:.1%} on {len(logits):,} validation pictures")
            score = -math.inf if math.isnan(score) else score
            if score >= self.best:
                self.best = score
                self.save_model(log)
            elif final:
                log.say(f"an earlier model was better; it is the one that is kept and reported, with {self.best:.1%}")
                fill(self.model.state_dict(), read(self.folder / "model.safetensors").tensors)
                logits, targets, indices, unreadable = self.predict(self.valid)
                metrics = self.task.measure(torch.from_numpy(logits), torch.from_numpy(targets), self.valid.classes)
        unreadable = {**self.loader.unreadable, **unreadable}
        if final and unreadable:
            log.say(f"[yellow]{len(unreadable):,} pictures could not be read, e.g. {first_of(unreadable)}[/yellow]")
        return {"metrics": metrics, "unreadable": unreadable, "logits": logits, "targets": targets, "indices": indices}

    @torch.no_grad()
    def predict(self, data: Dataset) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], dict[str, str]]:
        """Logits, targets and indices of the whole set, each process having computed its share."""
        self.model.eval()
        loader = EvaluationLoader(data, self.preprocess, workers=self.config.workers)
        mine = np.resize(np.arange(self.world.rank, len(data), self.world.size), -(-len(data) // self.world.size))
        rows: list[tuple[NDArray[Any], ...]] = []
        for indices, batch in loader.part(mine):
            with autocast(self.precision, self.world.device):
                answers = combine(self.forward(batch.images.to(self.world.device)))
            rows.append((answers.float().cpu().numpy(), batch.targets.numpy(), indices))
        everyone = self.world.gathered((rows, loader.unreadable))
        unreadable = {where: reason for _, part in everyone for where, reason in part.items()}
        together = [row for part, _ in everyone for row in part]
        if not together:
            raise ValueError(f"none of the validation pictures could be read, e.g. {first_of(unreadable)}")
        logits, targets, places = (np.concatenate(column) for column in zip(*together, strict=True))
        _, first = np.unique(places, return_index=True)  # shares of equal length may hold a picture twice
        return logits[first], targets[first], places[first], unreadable

    def save_model(self, log: RunLog) -> None:
        """``model.safetensors``: a plain model, whatever training wrapped around this one."""
        weights = {name: whole(value).detach().cpu() for name, value in self.model.state_dict().items()}
        if self.world.is_main:
            plain = rebuild(self.model.config, self.model.edits)
            plain.load_state_dict(weights)
            plain.spec = self.model.spec
            try:
                save(plain, self.folder / "model.safetensors")
            except OSError as error:
                log.say(f"[yellow]the model could not be written ({error.strerror or error})[/yellow]")


def split(batch: Batch, parts: int) -> list[Batch]:
    if len(batch.images) % parts:
        raise ValueError(
            f"{len(batch.images)} pictures, this process's share of a batch, cannot be computed in {parts} equal "
            "parts; choose train.accumulate that divides them"
        )
    return [Batch(*both) for both in zip(batch.images.chunk(parts), batch.targets.chunk(parts), strict=True)]


def nothing() -> dict[str, NDArray[Any]]:
    return {
        "logits": np.zeros((0, 0), np.float32),
        "targets": np.zeros((0, 0), np.float32),
        "indices": np.zeros(0, np.int64),
    }
