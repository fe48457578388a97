"""Short forms of the most common options of ``vitreous train``: ``--lr 5e-4`` for ``--train.optimizer.lr 5e-4``."""

from __future__ import annotations

from vitreous.cli.named_options import split_flags
from vitreous.options import did_you_mean

SHORT_OPTIONS = {
    "epochs": "train.epochs",
    "steps": "train.steps",
    "batch_size": "train.batch_size",
    "lr": "train.optimizer.lr",
    "weight_decay": "train.optimizer.weight_decay",
    "seed": "train.seed",
    "device": "train.device",
    "image_size": "model.image_size",
}


#: Options of ``vitreous train`` without a dot that are not short for another.
OTHERS = ("data", "model", "output", "weights", "resume", "smoke", "task", "help")


def expand_short_options(words: list[str]) -> list[str]:
    """Replace short options by their full names; raise ValueError for unknown ones."""
    expanded: list[str] = []
    for flag in split_flags(words):
        full = ".".join(flag.path)
        if flag.words[0].startswith("--") and len(flag.path) == 1 and full not in (*SHORT_OPTIONS, *OTHERS):
            known = [name.replace("_", "-") for name in (*SHORT_OPTIONS, *OTHERS)]
            option = flag.words[0].partition("=")[0]
            guess = did_you_mean(option.removeprefix("--"), known).replace("mean '", "mean '--")
            raise ValueError(f"unknown option {option}{guess} (vitreous train RECIPE --help lists all)")
        full = SHORT_OPTIONS.get(full, full)
        if full == "model.image_size" and len(flag.values) == 1:  # one side stands for both
            expanded += ["--model.image-size", *flag.values, *flag.values]
        elif flag.path[0] in SHORT_OPTIONS:
            expanded += [f"--{full.replace('_', '-')}", *flag.values]
        else:
            expanded += flag.words
    return expanded
