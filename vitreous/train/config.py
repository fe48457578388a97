"""Every setting of a training run that is neither model, data nor task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TrainConfig:
    epochs: float = 10.0  # passes over the training set
    steps: int = 0  # instead of epochs, when positive
    batch_size: int = 128  # pictures per step, over all processes and accumulated parts
    accumulate: int = 1  # parts that a batch is computed in, one after the other

    optimiser: Literal["adamw", "sgd", "muon"] = "adamw"
    lr: float = 1e-3  # the highest learning rate
    muon_lr: float = 0.02  # of the matrices, when optimiser is muon
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)  # of AdamW
    momentum: float = 0.9  # of SGD
    layer_decay: float = 1.0  # learning rate of each block as a share of the next one's
    freeze_blocks: int = 0  # stem and that many blocks stay as they are; -1: all but the classifier

    schedule: Literal["cosine", "linear", "steps", "constant"] = "cosine"
    warmup: float = 0.05  # share of the steps
    final_lr: float = 0.0  # where the schedule ends, as a share of lr
    clip: float = 1.0  # longest gradient; 0: any
    ema: float = 0.0  # share of the old average kept at each step; 0: no average

    checkpoint_activations: bool = False  # compute blocks twice instead of storing what is inside
    compile: bool = False  # every block through torch.compile
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: str = "auto"
    parallel: Literal["ddp", "fsdp"] = "ddp"  # between the processes of torchrun

    seed: int = 0
    evaluate_every: float = 1.0  # epochs between evaluations; 0: only at the end
    checkpoint_every: int = 500  # steps between checkpoints
    keep: int = 2  # checkpoints kept
    log_every: int = 20  # steps between lines of the log
    workers: int = 0  # threads that open pictures; 0: one per core

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "lr", "muon_lr", "checkpoint_every", "keep", "log_every"):
            if getattr(self, name) <= 0:
                raise ValueError(f"train.{name} must be positive, got {getattr(self, name)}")
        for name in ("warmup", "ema", "layer_decay", "final_lr", "momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"train.{name} must lie between 0 and 1, got {getattr(self, name)}")
        for name in ("steps", "weight_decay", "clip", "evaluate_every", "workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"train.{name} must not be negative, got {getattr(self, name)}")
        if self.seed < 0 or self.freeze_blocks < -1:
            raise ValueError(f"train.seed must not be negative (got {self.seed}), train.freeze_blocks not below -1")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"train.batch_size {self.batch_size} cannot be computed in {self.accumulate} equal parts; "
                "choose train.accumulate that divides it"
            )
