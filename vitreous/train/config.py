"""Every setting of a training run that is neither model, data nor task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from vitreous.options import Between, Count, Options, Positive, Share
from vitreous.train.optim import AdamW, Optimizer
from vitreous.train.schedule import Cosine, Schedule

LONGEST = 1_000_000  # epochs


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Options):
    epochs: Positive = 10.0  # passes over the training set
    steps: Count = 0  # instead of epochs, when positive
    batch_size: int = 128  # images per step, over all processes and accumulated parts
    accumulate: int = 1  # parts that a batch is computed in, one after the other

    optimizer: Optimizer = AdamW()  # adamw, sgd or muon with options; one alone as in --train.optimizer.lr 5e-4
    schedule: Schedule = Cosine()  # cosine, linear, steps or constant with options, as in --train.schedule.warmup 0.1
    new_head: Literal["random", "probe"] = "random"  # how a classifier starts: "probe" fits it to the features first
    layer_decay: Share = 1.0  # learning rate of each block as a share of the next one's
    freeze_blocks: Annotated[int, Between(-1)] = 0  # stem and that many blocks stay as they are; -1: all but the head
    clip: float = 1.0  # longest gradient; 0: any
    ema: Share = 0.0  # share of the old average kept at each step; 0: no average

    checkpoint_activations: bool = False  # compute blocks twice instead of storing what is inside
    compile: bool = False  # every block through torch.compile
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: str = "auto"
    parallel: Literal["ddp", "fsdp"] = "ddp"  # between the processes of torchrun

    seed: Count = 0
    evaluate_every: float = 1.0  # epochs between evaluations; 0: only at the end
    patience: Count = 0  # evaluations in a row without a better score after which the run stops; 0: it never does
    checkpoint_every: int = 500  # steps between checkpoints
    keep: int = 2  # checkpoints kept
    log_every: int = 20  # steps between lines of the log
    workers: Count = 0  # threads that open images; 0: one per core

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
                f"batch_size {self.batch_size} cannot be computed in {self.accumulate} equal parts; "
                "choose train.accumulate that divides it"
            )
        if self.epochs > LONGEST:
            raise ValueError(f"epochs must be at most {LONGEST:,}, got {self.epochs:g}")
        if self.patience and not self.evaluate_every:
            raise ValueError("patience counts evaluations, and evaluate_every 0 makes none before the end; give epochs")
        if self.parallel == "fsdp" and self.optimizer.no_shards:
            raise ValueError(
                f"optimizer {self.optimizer.name!r} cannot serve with parallel='fsdp' ({self.optimizer.no_shards}); "
                "choose adamw, or ddp"
            )
