"""Training configuration: everything except model, data, augmentation and task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from vitreous.options import Between, Count, Options, Positive, Share
from vitreous.train.optim import AdamW, Optimizer
from vitreous.train.schedule import Cosine, Schedule

MAX_EPOCHS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Options):
    """Options of a training run: length, batch, optimizer, schedule, precision, parallelism, evaluation, checkpoints.

    >>> vt.TrainConfig(epochs=30, batch_size=256, optimizer="sgd", schedule=Cosine(warmup=0.1), ema=0.999)
    """

    epochs: Positive = 10.0  # passes over the training set
    steps: Count = 0  # number of optimizer steps, overriding epochs when positive
    batch_size: int = 128  # global batch: images per optimizer step, over all processes and micro-batches
    accumulate: int = 1  # gradient accumulation: micro-batches per optimizer step

    optimizer: Optimizer = AdamW()  # adamw, sgd or muon; set a single option with --train.optimizer.lr 5e-4
    schedule: Schedule = Cosine()  # cosine, linear, steps or constant; --train.schedule.warmup 0.1
    new_head: Literal["random", "probe"] = (
        "random"  # initialization of a new classifier; "probe": linear probe on frozen features
    )
    layer_decay: Share = 1.0  # layer-wise learning rate decay: each block's rate relative to the next block's
    freeze_blocks: Annotated[int, Between(-1)] = 0  # freeze the stem and this many blocks; -1: all but the head
    clip: float = 1.0  # maximum gradient norm; 0: no clipping
    ema: Share = 0.0  # decay of the exponential moving average of the weights; 0: off

    checkpoint_activations: bool = False  # activation checkpointing: recompute blocks in the backward pass
    compile: bool = False  # torch.compile every block
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: str = "auto"
    parallel: Literal["ddp", "fsdp"] = "ddp"  # data parallelism over the processes of torchrun

    seed: Count = 0
    evaluate_every: float = 1.0  # epochs between evaluations; 0: only at the end
    patience: Count = 0  # early stopping: evaluations without improvement before the run stops; 0: off
    checkpoint_every: int = 500  # steps between checkpoints
    keep: int = 2  # number of checkpoints to keep
    log_every: int = 20  # steps between log entries
    workers: Count = 0  # image-loading threads; 0: one per core

    moved: ClassVar[Mapping[str, str]] = {
        "optimiser": "optimizer='muon', or its options as in optimizer=Muon(lr=2e-3)",
        "lr": "optimizer=AdamW(lr=…)",
        "muon_lr": "optimizer=Muon(matrix_lr=…)",
        "weight_decay": "optimizer=AdamW(weight_decay=…)",
        "betas": "optimizer=AdamW(betas=…)",
        "momentum": "optimizer=SGD(momentum=…)",
        "warmup": "schedule=Cosine(warmup=…)",
        "final_lr": "schedule=Cosine(final=…)",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size {self.batch_size} cannot be split into {self.accumulate} equal micro-batches; "
                "train.accumulate must divide it"
            )
        if self.epochs > MAX_EPOCHS:
            raise ValueError(f"epochs must be at most {MAX_EPOCHS:,}, got {self.epochs:g}")
        if self.patience and not self.evaluate_every:
            raise ValueError(
                "patience counts evaluations, and evaluate_every 0 has only one, at the end; set evaluate_every > 0"
            )
        if self.parallel == "fsdp" and self.optimizer.fsdp_unsupported:
            raise ValueError(
                f"optimizer {self.optimizer.name!r} does not support parallel='fsdp': "
                f"{self.optimizer.fsdp_unsupported}; use adamw, or parallel='ddp'"
            )
