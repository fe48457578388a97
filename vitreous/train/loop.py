"""The training loop, with exact resume.

State changes only in ``step``, and all its random draws are determined by (seed, step, rank). A run killed at any point
therefore reaches the same weights, bit for bit, when resumed on the same machine with the same number of threads and
processes.
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
from vitreous.data.loader import EvaluationLoader, Loader, first_unreadable
from vitreous.files import write_atomically
from vitreous.memory import retain_freed_memory
from vitreous.models.base import Model
from vitreous.models.edit import rebuild
from vitreous.models.last_block import shorten_last_block
from vitreous.samples import Batch
from vitreous.tasks.base import OutputsModule, Task
from vitreous.tasks.meter import Meter, Metric
from vitreous.train.checkpoint import Checkpoints, allocate_optimizer_state, copy_into, training_state
from vitreous.train.config import TrainConfig
from vitreous.train.ema import ExponentialMovingAverage
from vitreous.train.log import RunLog
from vitreous.train.measure import EvaluationResult, measure
from vitreous.train.meter import RunMeter, format_progress
from vitreous.train.optim import freeze, keep_frozen_in_eval, set_learning_rate, trainable_parameters
from vitreous.train.outside import autocast, checkpoint_blocks, choose_precision, compile_blocks
from vitreous.train.parallel import World, gather_full, parallelize
from vitreous.weights.files import read, save


class Interrupted(KeyboardInterrupt):
    """The run was stopped by a signal, after writing a checkpoint."""


class ModelNotSaved(ValueError):
    """Training finished, but the model could not be written to the disk."""


class Diverged(ValueError):
    """The loss or the gradient norm is NaN or infinite."""


@dataclass(frozen=True)
class TrainOutcome:
    """The result of a run: metrics of the saved model, the meter that computed them, and run statistics."""

    metrics: dict[str, Metric]
    steps: int
    images: int
    seconds: float
    unreadable: dict[str, str]  # images that could not be read, with the reason
    meter: Meter | None = field(repr=False)  # None without a validation set
    stopped_early: bool = False  # by early stopping (train.patience)


class Trainer:
    """Train ``model`` in place.

    ``folder`` receives checkpoints, logs, and in ``model.safetensors`` the best model so far. ``metadata_files``, given
    as path → content, are restored if they are deleted during the run.
    """

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
        metadata_files: Mapping[Path, bytes] | None = None,
    ) -> None:
        if config.patience and valid is None:
            raise ValueError("train.patience needs a validation set, and there is none; set it to 0")
        self.task, self.valid, self.config, self.folder, self.world = task, valid, config, folder, world
        self.preprocess = model.spec.preprocess
        self.precision, _ = choose_precision(config.precision, world.device)
        self.loader = Loader(
            train,
            self.preprocess,
            augment,
            batch_size=config.batch_size,
            rows=world.local_rows(config.batch_size) if world.size > 1 else None,
            seed=config.seed,
            workers=config.workers,
        )
        self.total = config.steps or max(1, round(config.epochs * self.loader.steps_per_epoch))
        self.model = model.to(world.device)
        if config.parallel == "ddp":  # faster convolutions; FSDP needs contiguous parameters
            self.model.to(memory_format=torch.channels_last)
        self.prepare_model()
        self.ema = ExponentialMovingAverage(self.model, config.ema) if config.ema else None
        self.checkpoints = Checkpoints(folder / "checkpoints", keep=config.keep, world=world)
        self.metadata_files = metadata_files or {}
        self.model_path = folder / "model.safetensors"
        self.best = -math.inf
        self.stale_evaluations = 0  # since the best score
        self.save_error = ""  # why the best model could not be saved
        self.start_time = time.monotonic()
        self.stop_requested = False

    def prepare_model(self) -> None:
        config = self.config
        freeze(self.model, config.freeze_blocks)
        shorten_last_block(self.model)
        if config.checkpoint_activations:
            checkpoint_blocks(self.model)
        if config.compile:
            compile_blocks(self.model)
        self.objective = self.task.start(self.model.spec, self.world.device)
        self.forward = parallelize(OutputsModule(self.model), self.world, config.parallel)
        on_mps = self.world.device == "mps"
        fused = config.parallel == "ddp" and not on_mps
        self.optimizers = config.optimizer.build(trainable_parameters(self.model, config.layer_decay), fused=fused)

    # Training

    def fit(self, *, resume: bool = False, notes: Sequence[str] = ()) -> TrainOutcome:
        """Train to the end, from the newest intact checkpoint if ``resume``; ``notes`` are printed first."""
        done, seconds = self.restore() if resume else (0, 0.0)
        self.start_time = time.monotonic() - seconds
        record = RunLog(self.folder, total=self.total, start=done, shown=self.world.is_main)
        with record as log, self.stop_on_signals(), retain_freed_memory():
            finished = ("the run was already finished; it is evaluated again",) if done == self.total else ()
            for text in (*notes, *self.checkpoints.warnings, *finished):
                log.warn_once(text)
            if not done and self.config.new_head == "probe" and self.config.evaluate_every and self.valid is not None:
                self.evaluate(self.valid, 0, log)  # fine-tuning a few images can make a good linear probe worse
            meter = RunMeter(self.loader.batch_size)
            for batch in self.loader.stream(done, done if self.out_of_patience else self.total):
                self.step(done, batch.to(self.world.device), meter)
                done += 1
                self.after_step(done, log, meter)
                if self.out_of_patience:
                    break
            outcome = self.finish(done, log)
        return TrainOutcome(
            steps=done,
            images=done * self.loader.batch_size,
            seconds=time.monotonic() - self.start_time,
            stopped_early=self.out_of_patience,
            **outcome,
        )

    @property
    def out_of_patience(self) -> bool:
        """Whether ``patience`` evaluations have passed without improvement."""
        return 0 < self.config.patience <= self.stale_evaluations

    def step(self, step: int, batch: Batch, meter: RunMeter) -> None:
        """Update the weights once from a global batch, accumulating gradients over ``accumulate`` micro-batches."""
        config, parts = self.config, batch.split(self.config.accumulate)
        torch.manual_seed(self.step_seed(step))
        self.model.train()
        keep_frozen_in_eval(self.model)
        share = config.schedule.rate(step, self.total)
        set_learning_rate(self.optimizers, share)
        loss = torch.zeros((), device=self.world.device)
        for index, part in enumerate(parts, start=1):
            with self.no_sync(index < len(parts)), autocast(self.precision, self.world.device):
                outputs = self.forward(self.objective.inputs(part))
                losses = self.objective.loss(outputs, part)
            (losses["loss"] / len(parts)).backward()
            loss += losses["loss"].detach() / len(parts)
            with torch.no_grad():
                meter.add(losses | self.objective.monitor(outputs, part), 1 / len(parts))
        norm = self.clip()
        meter.end_step(norm, share * config.optimizer.lr)
        self.check_finite(step, loss, norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if config.parallel == "fsdp":
            self.world.broadcast_buffers(self.model)
        if self.ema:
            self.ema.update(self.model, step)

    def step_seed(self, step: int) -> int:
        """Return the RNG seed for dropout and stochastic depth, unique per step and rank and unchanged by a resume."""
        return int(np.random.SeedSequence([self.config.seed, step, self.world.rank]).generate_state(1)[0])

    def no_sync(self, accumulating: bool) -> Any:
        """Skip DDP's gradient all-reduce for all but the last micro-batch."""
        no_sync = getattr(self.forward, "no_sync", None)
        return no_sync() if accumulating and no_sync is not None else nullcontext()

    def clip(self) -> Tensor:
        """Clip the gradients and return their norm before clipping."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        max_norm = self.config.clip or float("inf")
        return gather_full(torch.nn.utils.clip_grad_norm_(parameters, max_norm))

    def check_finite(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Raise before a non-finite gradient reaches the weights; on GPUs only every ``log_every`` steps, for speed."""
        if self.world.device.startswith("cuda") and (step + 1) % self.config.log_every:
            return
        if not bool(torch.isfinite(loss + norm)):
            kept = self.checkpoints.newest()
            where = f"the last good checkpoint is {kept.stem}" if kept else "there is no checkpoint yet"
            raise Diverged(
                f"at step {step + 1} the loss is {loss.item():g} and the gradient norm {norm.item():g}; {where} in "
                f"{self.checkpoints.folder}. Resume with a lower train.optimizer.lr, a longer train.schedule.warmup or "
                "train.clip 1"
            )

    # Logging, evaluation and checkpoints

    def after_step(self, done: int, log: RunLog, meter: RunMeter) -> None:
        config = self.config
        if done % config.log_every == 0 or done == self.total:
            values = {name: self.mean_over_ranks(value) for name, value in meter.values().items()}
            log.write("train", done, values)
            log.progress(done, format_progress(values))
        every = max(1, round(config.evaluate_every * self.loader.steps_per_epoch)) if config.evaluate_every else 0
        if every and done % every == 0 and done < self.total and self.valid is not None:
            with self.averaged_weights():
                self.evaluate(self.valid, done, log)
            meter.restart()
        if self.out_of_patience:
            log.print(f"early stopping at step {done:,}: no improvement in {self.stale_evaluations} evaluations")
        synchronize = self.world.size == 1 or done % config.log_every == 0
        stop_now = synchronize and self.world.any_rank(self.stop_requested)
        saved = True
        if done % config.checkpoint_every == 0 or done == self.total or stop_now or self.out_of_patience:
            saved = self.save_checkpoint(done, log)
        if stop_now:
            state = (
                f"its state is saved in {self.folder}"
                if saved
                else "its state could not be saved, only earlier checkpoints"
            )
            raise Interrupted(f"stopped after step {done:,} of {self.total:,}; {state}")

    def mean_over_ranks(self, value: float) -> float:
        return float(self.world.all_reduce_mean(torch.tensor(value, device=self.world.device)))

    def save_checkpoint(self, done: int, log: RunLog) -> bool:
        before = len(self.checkpoints.warnings)
        log.sync()
        saved = self.checkpoints.save(done, self.state(), seconds=time.monotonic() - self.start_time)
        for warning in self.checkpoints.warnings[before:]:
            log.warn_once(warning)
        if self.world.is_main:
            self.restore_metadata_files(log)
        return saved is not None

    def restore_metadata_files(self, log: RunLog) -> None:
        """Rewrite deleted metadata files, so that a run whose folder was removed can be resumed."""
        for path, content in self.metadata_files.items():
            if not path.exists():
                try:
                    write_atomically(path, content)
                except OSError:
                    continue  # the failed checkpoint write has already been reported
                log.warn_once(f"{path} was removed during the run and has been restored")

    def state(self) -> dict[str, Tensor]:
        """Return everything a checkpoint must hold."""
        state = training_state(self.model, self.ema.values if self.ema else {}, self.optimizers)
        state |= {"best": torch.tensor(self.best, dtype=torch.float64)}
        return state | {"waited": torch.tensor(self.stale_evaluations)} if self.config.patience else state

    def restore(self) -> tuple[int, float]:
        """Restore the newest intact checkpoint; return its step and training time in seconds (zeros if none)."""
        newest = self.checkpoints.newest()
        if newest is None:
            return 0, 0.0
        contents = self.checkpoints.contents(newest)
        allocate_optimizer_state(self.model, self.optimizers, contents)
        wanted = self.state()
        shapes = {name: tuple(value.shape) for name, value in wanted.items()}
        if different := sorted(name for name in {**shapes, **contents} if shapes.get(name) != contents.get(name)):
            raise ValueError(
                f"{newest.stem} does not match the model: {different[0]} and {len(different) - 1} more tensors differ; "
                "resume with the settings and classes of the original run"
            )
        done, seconds = self.checkpoints.load(newest, wanted)
        self.best = wanted["best"].item()
        self.stale_evaluations = int(wanted.get("waited", torch.tensor(0)))
        return done, seconds

    @contextmanager
    def stop_on_signals(self) -> Iterator[None]:
        """On Ctrl-C or SIGTERM finish the step and write a checkpoint; stop at once on a second Ctrl-C."""

        def request_stop(number: int, frame: object) -> None:
            if self.stop_requested and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.stop_requested = True

        try:
            before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not in the main thread
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # Evaluation

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Use the averaged weights, if there are any, inside the ``with`` block."""
        return self.ema.applied_to(self.model) if self.ema else nullcontext()

    def evaluate(self, valid: Dataset, done: int, log: RunLog) -> EvaluationResult | None:
        """Evaluate, and save the model if it is the best so far; return None if an earlier one was better."""
        self.save_error = ""
        log.progress(done, "evaluating")
        measured = self.measure(valid)
        metrics = measured.meter.result()
        name, score = next(iter(metrics.items()))
        log.write("valid", done, metrics)
        log.print(f"step {done:,}: {name} {score} on {len(measured.meter):,} validation images")
        goodness = self.world.all_gather(-math.inf if math.isnan(score) else score.goodness)[0]
        self.stale_evaluations = 0 if goodness > self.best else self.stale_evaluations + 1
        if goodness < self.best and self.model_file_exists():
            return None
        if self.save_model(log):
            self.best = goodness
        return measured

    def model_file_exists(self) -> bool:
        return not self.world.any_rank(not self.model_path.exists())

    def finish(self, done: int, log: RunLog) -> dict[str, Any]:
        """Evaluate the final model; if an earlier one was better, load and evaluate that one again."""
        with self.averaged_weights():
            if self.valid is None:
                self.save_model(log)
                self.world.run_on_main(self.check_saved)
                return {"metrics": {}, "unreadable": self.loader.unreadable, "meter": None}
            known_to_be_worse = self.out_of_patience and self.model_file_exists()
            measured = None if known_to_be_worse else self.evaluate(self.valid, done, log)
            self.world.run_on_main(self.check_saved)
            if measured is None:
                copy_into(self.model.state_dict(), read(self.model_path).tensors)
                measured = self.measure(self.valid)
                score = next(iter(measured.meter.result().values()))
                log.print(f"keeping an earlier, better model, with {score}")
        unreadable = {**self.loader.unreadable, **measured.unreadable}
        if unreadable:
            log.print(
                f"{len(unreadable):,} images could not be read, e.g. {first_unreadable(unreadable)}", style="yellow"
            )
        return {"metrics": measured.meter.result(), "unreadable": unreadable, "meter": measured.meter}

    def measure(self, data: Dataset) -> EvaluationResult:
        """Evaluate on a whole dataset, divided over the processes."""
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
        """Write ``model.safetensors`` without DDP or FSDP wrappers; return whether that succeeded."""
        weights = {name: gather_full(value).detach().cpu() for name, value in self.model.state_dict().items()}
        if self.world.is_main:
            plain = rebuild(self.model.config, self.model.edits)
            plain.load_state_dict(weights)
            plain.spec = self.model.spec
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                save(plain, self.model_path)
            except OSError as error:
                self.save_error = error.strerror or str(error)
                log.warn_once(f"the best model could not be written ({self.save_error})")
        return not self.world.any_rank(bool(self.save_error))

    def check_saved(self) -> None:
        """Raise if the best model could not be written."""
        if self.save_error:
            newest = self.checkpoints.newest()
            left = f"{newest.stem} in {newest.parent} is intact" if newest else "no checkpoint could be written either"
            remedy = "free disk space and continue with --resume" if newest else "free disk space and restart"
            raise ModelNotSaved(f"could not write the model to {self.model_path} ({self.save_error}); {left}: {remedy}")
