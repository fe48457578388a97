"""Deprecated options of ``vitreous train``, from before optimizers and schedules had their own options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from vitreous.cli.named_options import Flag, format_named, parse_named, split_flags
from vitreous.options import Named
from vitreous.train.config import TrainConfig
from vitreous.train.optim import Optimizer
from vitreous.train.schedule import Schedule

#: Deprecated name → (field of TrainConfig, current name).
MOVED = {
    "lr": ("optimizer", "lr"),
    "muon_lr": ("optimizer", "matrix_lr"),
    "weight_decay": ("optimizer", "weight_decay"),
    "betas": ("optimizer", "betas"),
    "momentum": ("optimizer", "momentum"),
    "warmup": ("schedule", "warmup"),
    "final_lr": ("schedule", "final"),
}


def replace_deprecated(words: list[str], train: TrainConfig, notify: Callable[[str], None]) -> list[str]:
    """Replace deprecated options by their current spelling, with a note for each.

    A deprecated option that the chosen optimizer or schedule lacks never had an effect, and is dropped.
    """
    flags = split_flags(words)
    current: dict[str, Named] = {"optimizer": train.optimizer, "schedule": train.schedule}
    for flag in flags:
        if flag.path == ("train", "optimiser"):
            current["optimizer"] = switch_optimizer(train.optimizer, " ".join(flag.values))
        elif flag.path == ("train", "optimizer"):
            current["optimizer"] = Optimizer.given("optimizer", parse_named("optimizer", flag.values))
        elif flag.path == ("train", "schedule"):
            current["schedule"] = Schedule.given("schedule", parse_named("schedule", flag.values))
    return [word for flag in flags for word in replace_flag(flag, current, notify)]


def switch_optimizer(before: Optimizer, name: str) -> Optimizer:
    """Return another optimizer with the settings it shares with the previous one."""
    chosen = Optimizer.given("optimizer", name)
    shared = {field.name for field in fields(chosen)} & {field.name for field in fields(before)}
    return chosen.override(**{name: getattr(before, name) for name in shared})


def replace_flag(flag: Flag, current: dict[str, Named], notify: Callable[[str], None]) -> tuple[str, ...]:
    """Return the current spelling of a flag as words, or no words if it is dropped."""
    old = flag.words[0].partition("=")[0]
    if flag.path == ("train", "optimiser"):
        new = ("--train.optimizer", *format_named(current["optimizer"]))
    elif len(flag.path) == 2 and flag.path[0] == "train" and flag.path[1] in MOVED:
        part, field = MOVED[flag.path[1]]
        if field not in {known.name for known in fields(current[part])}:
            notify(f"{old} is deprecated and was ignored: {current[part].name} has no {field}")
            return ()
        new = (f"--train.{part}.{field.replace('_', '-')}", *flag.values)
    else:
        return flag.words
    notify(f"{old} is deprecated; write {' '.join(new)}")
    return new
