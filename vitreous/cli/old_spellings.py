"""Options of ``vitreous train`` as they were typed before optimizers and schedules had options of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from vitreous.cli.named import Flag, described, flags, write_named
from vitreous.options import Named
from vitreous.train.config import TrainConfig
from vitreous.train.optim import Optimizer
from vitreous.train.schedule import Schedule

#: The field of TrainConfig that each belongs to today, and its name there.
MOVED = {
    "lr": ("optimizer", "lr"),
    "muon_lr": ("optimizer", "matrix_lr"),
    "weight_decay": ("optimizer", "weight_decay"),
    "betas": ("optimizer", "betas"),
    "momentum": ("optimizer", "momentum"),
    "warmup": ("schedule", "warmup"),
    "final_lr": ("schedule", "final"),
}


def modernized(words: list[str], train: TrainConfig, tell: Callable[[str], None]) -> list[str]:
    """The words with today's spelling in the place of the old one, and a note for each that was changed.

    An old setting that the chosen optimizer or schedule does not have changed nothing, and is left out.
    """
    found = flags(words)
    standing: dict[str, Named] = {"optimizer": train.optimizer, "schedule": train.schedule}
    for flag in found:
        if flag.path == ("train", "optimiser"):
            standing["optimizer"] = exchanged(train.optimizer, " ".join(flag.values))
        elif flag.path == ("train", "optimizer"):
            standing["optimizer"] = Optimizer.given("optimizer", described("optimizer", flag.values))
        elif flag.path == ("train", "schedule"):
            standing["schedule"] = Schedule.given("schedule", described("schedule", flag.values))
    return [word for flag in found for word in today(flag, standing, tell)]


def exchanged(before: Optimizer, name: str) -> Optimizer:
    """Another optimizer with the settings that both have, as when they were settings of all."""
    chosen = Optimizer.given("optimizer", name)
    shared = {field.name for field in fields(chosen)} & {field.name for field in fields(before)}
    return chosen.override(**{name: getattr(before, name) for name in shared})


def today(flag: Flag, standing: dict[str, Named], tell: Callable[[str], None]) -> tuple[str, ...]:
    old = flag.words[0].partition("=")[0]
    if flag.path == ("train", "optimiser"):
        new = ("--train.optimizer", *write_named(standing["optimizer"]))
    elif len(flag.path) == 2 and flag.path[0] == "train" and flag.path[1] in MOVED:
        part, field = MOVED[flag.path[1]]
        if field not in {known.name for known in fields(standing[part])}:
            tell(f"{old} is deprecated and was left out: {standing[part].name} has no {field}")
            return ()
        new = (f"--train.{part}.{field.replace('_', '-')}", *flag.values)
    else:
        return flag.words
    tell(f"{old} is deprecated; write {' '.join(new)}")
    return new
