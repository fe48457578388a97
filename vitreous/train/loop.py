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
from torch import Tensor

from vitreous.data.augment import Augment
from vitreous.data.base import Dataset
from vitreous.data.loader import EvaluationLoader, Loader, first_of
from vitreous.memory import memory_kept
from vitreous.models.base import Model
from vitreous.models.edit import rebuild
from vitreous.models.last_block import shorten_last_block
from vitreous.samples import Batch
from vitreous.tasks.base import OutputsOf, Task
from vitreous.tasks.meter import Meter, Metric
from vitreous.train.checkpoint import Checkpoints, fill, remember, state_of
from vitreous.train.config import TrainConfig
from vitreous.train.ema import Average
from vitreous.train.log import RunLog
from vitreous.train.measure import Measured, measure
from vitreous.train.meter import RunMeter, describe
from vitreous.train.optim import freeze, learners, rest, set_rate
from vitreous.train.outside import autocast, checkpoint_blocks, choose_precision, compile_blocks
from vitreous.train.parallel import World, spread, whole
from vitreous.weights.files import read, save


class Interrupted(KeyboardInterrupt):
    """Somebody asked the run to stop; its state is saved."""


class Diverged(ValueError):
    """The loss or the gradient is no number any more."""


@dataclass(frozen=True)
class Outcome:
    """What a run ended with: the metrics of the model that it kept, and the meter they were read from."""

    metrics: dict[str, Metric]
    steps: int
    images: int
    seconds: float
    unreadable: dict[str, str]
    meter: Meter | None = field(repr=False)  # None without a validation set


class Trainer:
    """Trains ``model`` in place. The folder gets checkpoints, log and ``model.safetensors``, the best so far."""

    def __init__(
        self,
        model: Model,
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
        freeze(self.model, config.freeze_blocks)
        shorten_last_block(self.model)
        if config.checkpoint_activations:
            checkpoint_blocks(self.model)
        if config.compile:
            compile_blocks(self.model)
        self.objective = self.task.start(self.model.spec, self.world.device)
        self.forward = spread(OutputsOf(self.model), self.world, config.parallel)
        on_mps = self.world.device == "mps"
        fused = config.parallel == "ddp" and not on_mps
        self.optimizers = config.optimizer.build(learners(self.model, config.layer_decay), fused=fused)

    # One run

    def fit(self, *, resume: bool = False) -> Outcome:
        start, seconds = self.restore() if resume else (0, 0.0)
        self.begin = time.monotonic() - seconds
        record = RunLog(self.folder, total=self.total, start=start, shown=self.world.is_main)
        with record as log, self.stoppable(), memory_kept():
            for complaint in self.checkpoints.complaints:
                log.say(f"[yellow]{complaint}[/yellow]")
            meter = RunMeter(self.loader.batch_size)
            for step, batch in enumerate(self.loader.stream(start, self.total), start=start):
                self.step(step, batch.to(self.world.device), meter)
                self.after_step(step + 1, log, meter)
            outcome = self.evaluate_and_keep(self.total, log, final=True)
        seconds = time.monotonic() - self.begin
        return Outcome(steps=self.total, images=self.total * self.loader.batch_size, seconds=seconds, **outcome)

    def step(self, step: int, batch: Batch, meter: RunMeter) -> None:
        """One update from one global batch, computed in ``accumulate`` parts."""
        config, parts = self.config, batch.split(self.config.accumulate)
        torch.manual_seed(self.noise_seed(step))
        self.model.train()
        rest(self.model)
        share = config.schedule.rate(step, self.total)
        set_rate(self.optimizers, share)
        loss = torch.zeros((), device=self.world.device)
        for index, part in enumerate(parts, start=1):
            with self.no_sync(index < len(parts)), autocast(self.precision, self.world.device):
                outputs = self.forward(self.objective.inputs(part))
                losses = self.objective.loss(outputs, part)
            (losses["loss"] / len(parts)).backward()
            loss += losses["loss"].detach() / len(parts)
            with torch.no_grad():
                meter.saw(losses | self.objective.monitor(outputs, part), 1 / len(parts))
        norm = self.clip()
        meter.learned(norm, share * config.optimizer.lr)
        self.check(step, loss, norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
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
                f"{self.checkpoints.folder}. Resume with a lower train.optimizer.lr, a longer train.schedule.warmup or "
                "train.clip 1"
            )

    # Around the steps

    def after_step(self, done: int, log: RunLog, meter: RunMeter) -> None:
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
        state = state_of(self.model, self.average.values if self.average else {}, self.optimizers)
        return state | {"best": torch.tensor(self.best, dtype=torch.float64)}

    def restore(self) -> tuple[int, float]:
        """Everything as it was after the newest whole checkpoint; the step and the seconds spent until then."""
        newest = self.checkpoints.newest()
        if newest is None:
            return 0, 0.0
        contents = self.checkpoints.contents(newest)
        remember(self.model, self.optimizers, contents)
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
                return {"metrics": {}, "unreadable": self.loader.unreadable, "meter": None}
            log.progress(done, "evaluating")
            measured = self.measure(self.valid)
            metrics = measured.meter.result()
            name, score = next(iter(metrics.items()))
            log.write("valid", done, metrics)
            log.say(f"step {done:,}: {name} {score} on {len(measured.meter):,} validation images")
            goodness = -math.inf if math.isnan(score) else score.goodness
            if goodness >= self.best:
                self.best = goodness
                self.save_model(log)
            elif final:
                fill(self.model.state_dict(), read(self.folder / "model.safetensors").tensors)
                measured = self.measure(self.valid)
                metrics = measured.meter.result()
                kept = next(iter(metrics.values()))
                log.say(f"an earlier model was better; it is the one that is kept and reported, with {kept}")
        unreadable = {**self.loader.unreadable, **measured.unreadable}
        if final and unreadable:
            log.say(f"[yellow]{len(unreadable):,} images could not be read, e.g. {first_of(unreadable)}[/yellow]")
        return {"metrics": metrics, "unreadable": unreadable, "meter": measured.meter}

    def measure(self, data: Dataset) -> Measured:
        """The whole set, each process having computed its share."""
        self.model.eval()
        return measure(
            self.forward,
            EvaluationLoader(data, self.preprocess, workers=self.config.workers),
            self.objective.meter(data.classes),
            world=self.world,
            select=self.objective.inputs,
            context=lambda: autocast(self.precision, self.world.device),
        )

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
