"""Short forms of the most common options of ``vitreous train``: ``--lr 5e-4`` for ``--train.optimizer.lr 5e-4``."""

from __future__ import annotations

from vitreous.cli.named_options import split_flags

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


def expand_short_options(words: list[str]) -> list[str]:
    """Replace short options by their full names."""
    expanded: list[str] = []
    for flag in split_flags(words):
        full = ".".join(flag.path)
        full = SHORT_OPTIONS.get(full, full)
        if full == "model.image_size" and len(flag.values) == 1:  # one side stands for both
            expanded += ["--model.image-size", *flag.values, *flag.values]
        elif flag.path[0] in SHORT_OPTIONS:
            expanded += [f"--{full.replace('_', '-')}", *flag.values]
        else:
            expanded += flag.words
    return expanded
