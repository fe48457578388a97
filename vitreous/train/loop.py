"""The loop: batches in, a trained model and its record out.

State changes only in ``step``, and everything random there follows from (seed, step, process). A run that is killed
anywhere therefore reaches the same weights when it is resumed, on the same machine with as many threads and processes.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.data.augment import Augment
from vitreous.data.base import Dataset
from vitreous.data.loader import EvaluationLoader, Loader, first_of
from vitreous.files import write_atomically
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


class Unfinished(ValueError):
    """Everything is learned, but the model found no place on the disk."""


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
    stopped_early: bool = False  # by train.patience


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
        papers: Mapping[Path, bytes] | None = None,
    ) -> None:
        if config.patience and valid is None:
            raise ValueError("train.patience counts evaluations, and there is no validation set; set it to 0")
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
        #: What else belongs into the folder, and is written again where somebody has removed it.
        self.papers = papers or {}
        self.kept = folder / "model.safetensors"
        self.best = -math.inf
        self.waited = 0  # evaluations since the best one
        self.unsaved = ""  # why the best model is not in its file
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

    def fit(self, *, resume: bool = False, notes: Sequence[str] = ()) -> Outcome:
        done, seconds = self.restore() if resume else (0, 0.0)
        self.begin = time.monotonic() - seconds
        record = RunLog(self.folder, total=self.total, start=done, shown=self.world.is_main)
        with record as log, self.stoppable(), memory_kept():
            for text in (*notes, *self.checkpoints.complaints):
                log.complain(text)
            meter = RunMeter(self.loader.batch_size)
            for batch in self.loader.stream(done, done if self.exhausted else self.total):
                self.step(done, batch.to(self.world.device), meter)
                done += 1
                self.after_step(done, log, meter)
                if self.exhausted:
                    break
            outcome = self.finish(done, log)
        return Outcome(
            steps=done,
            images=done * self.loader.batch_size,
            seconds=time.monotonic() - self.begin,
            stopped_early=self.exhausted,
            **outcome,
        )

    @property
    def exhausted(self) -> bool:
        """Whether the score has not become better for as long as anybody wants to wait."""
        return 0 < self.config.patience <= self.waited

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
            with self.averaged():
                self.evaluate(self.valid, done, log)
            meter.restart()
        if self.exhausted:
            log.say(f"stopped at step {done:,}: {self.waited} evaluations in a row without a better score")
        together = self.world.size == 1 or done % config.log_every == 0
        stop_now = together and self.world.anyone(self.stop_asked)
        saved = True
        if done % config.checkpoint_every == 0 or done == self.total or stop_now or self.exhausted:
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
        log.sync()
        saved = self.checkpoints.save(done, self.state(), seconds=time.monotonic() - self.begin)
        for complaint in self.checkpoints.complaints[before:]:
            log.complain(complaint)
        if self.world.is_main:
            self.write_papers(log)
        return saved is not None

    def write_papers(self, log: RunLog) -> None:
        """A run whose folder was removed can be resumed from where it is now."""
        for path, content in self.papers.items():
            if not path.exists():
                try:
                    write_atomically(path, content)
                except OSError:
                    continue  # the checkpoint could not be written either, and that was said
                log.complain(f"{path} was removed while the run went on; it was written again")

    def state(self) -> dict[str, Tensor]:
        state = state_of(self.model, self.average.values if self.average else {}, self.optimizers)
        state |= {"best": torch.tensor(self.best, dtype=torch.float64)}
        return state | {"waited": torch.tensor(self.waited)} if self.config.patience else state

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
        self.waited = int(wanted.get("waited", torch.tensor(0)))
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

    def averaged(self) -> AbstractContextManager[None]:
        """The model with the averaged weights, if there are any."""
        return self.average.applied_to(self.model) if self.average else nullcontext()

    def evaluate(self, valid: Dataset, done: int, log: RunLog) -> Measured | None:
        """Measure on the validation set and keep the model if it is the best; None where an earlier one was better."""
        self.unsaved = ""
        log.progress(done, "evaluating")
        measured = self.measure(valid)
        metrics = measured.meter.result()
        name, score = next(iter(metrics.items()))
        log.write("valid", done, metrics)
        log.say(f"step {done:,}: {name} {score} on {len(measured.meter):,} validation images")
        goodness = self.world.gathered(-math.inf if math.isnan(score) else score.goodness)[0]
        self.waited = 0 if goodness > self.best else self.waited + 1
        if goodness < self.best and self.kept_is_there():
            return None
        if self.save_model(log):
            self.best = goodness
        return measured

    def kept_is_there(self) -> bool:
        return not self.world.anyone(not self.kept.exists())

    def finish(self, done: int, log: RunLog) -> dict[str, Any]:
        """Measure the last model and keep the best, which is measured again where it is an earlier one."""
        with self.averaged():
            if self.valid is None:
                self.save_model(log)
                self.world.together(self.check_saved)
                return {"metrics": {}, "unreadable": self.loader.unreadable, "meter": None}
            known_to_be_worse = self.exhausted and self.kept_is_there()
            measured = None if known_to_be_worse else self.evaluate(self.valid, done, log)
            self.world.together(self.check_saved)
            if measured is None:
                fill(self.model.state_dict(), read(self.kept).tensors)
                measured = self.measure(self.valid)
                score = next(iter(measured.meter.result().values()))
                log.say(f"an earlier model was better; it is the one that is kept and reported, with {score}")
        unreadable = {**self.loader.unreadable, **measured.unreadable}
        if unreadable:
            log.say(f"{len(unreadable):,} images could not be read, e.g. {first_of(unreadable)}", style="yellow")
        return {"metrics": measured.meter.result(), "unreadable": unreadable, "meter": measured.meter}

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

    def save_model(self, log: RunLog) -> bool:
        """``model.safetensors``: a plain model, whatever training wrapped around this one; whether it was written."""
        weights = {name: whole(value).detach().cpu() for name, value in self.model.state_dict().items()}
        if self.world.is_main:
            plain = rebuild(self.model.config, self.model.edits)
            plain.load_state_dict(weights)
            plain.spec = self.model.spec
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                save(plain, self.kept)
            except OSError as error:
                self.unsaved = error.strerror or str(error)
                log.complain(f"the model of this evaluation could not be written ({self.unsaved})")
        return not self.world.anyone(bool(self.unsaved))

    def check_saved(self) -> None:
        """Refuse, on the first process, to end as if all were well when the model is nowhere on the disk."""
        if self.unsaved:
            newest = self.checkpoints.newest()
            left = f"{newest.stem} in {newest.parent} is whole" if newest else "no checkpoint could be written either"
            remedy = "make room there and go on with --resume" if newest else "make room and start again"
            raise Unfinished(f"the model could not be written to {self.kept} ({self.unsaved}); {left}: {remedy}")
