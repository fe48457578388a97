"""Command lines with wrong, missing, huge, negative and unprintable values, and with options that there are not."""

import os
import shutil
from pathlib import Path
from random import Random

from tests.fuzz.seeds import TRAIN, options_of

#: What is valid, and how often a command is tried; its own first words find its help.
COMMANDS = [
    (8, 1, "predict ours.safetensors d/a"),
    (5, 1, "embed ours.safetensors d/a --output out.npy"),
    (5, 1, "evaluate ours.safetensors --data d"),
    (5, 2, "data inspect d --output out.png"),
    (5, 2, "data pack d packed"),
    (1, 1, "explain ours.safetensors d/a/0.png --quick --output out.html"),
    (1, 1, "export ours.safetensors out.bin"),
    (3, 1, "cost vit_tiny_16"),
    (3, 2, "models show vit_tiny_16"),
    (2, 1, "lab --folder nolab"),
    (12, 3, TRAIN),
]
#: Numbers that are valid wishes and take their time, compilers, and other people's servers.
LEFT_OUT = ("--train.compile", "--train.epochs", "--train.steps", "--engine", "--sizes", "--train.device", "--help")
VALUES = [
    "", " ", "0", "1", "-1", "2", "3", "0.5", "-0.5", "1e999", "nan", "inf", "-inf", "1e-30", "999999999999",
    "9" * 5000, "0x10", "1_000", "²", "None", "True", "false", "x", "[1", "{}", '{"a": 1}', "[[]]", "a=b", "lr=x",
    "lr=-1", "--", "-", "--x", ".", "d", "d/a/0.png", "ours.safetensors", "nowhere/x", "pipe", "ours.safetensors/x",
    "ünï→", "\udcff", "\u202e", "a\nb", "\x1b[31m", "[bold]", "[/]", "x" * 300, "y" * 5000, "out.npy", "out.parquet",
    "out.json", "out.csv", "jsonl", "csv", "onnx", "sgd", "performer", "window", "a", "test", "{__class__}", "%s",
    "~", "~nobody/x", "fp16", "4 4", "\0",
]  # fmt: skip


def make(rng: Random, seeds: Path, here: Path) -> list[str]:
    shutil.copytree(seeds / "d", here / "d")
    shutil.copy(seeds / "weights" / "ours.safetensors", here)
    os.mkfifo(here / "pipe")
    (_, length, command), *_ = rng.choices(COMMANDS, [weight for weight, *_ in COMMANDS])
    words = command.split()
    options = [name for name in options_of(*words[:length]) if name not in LEFT_OUT]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        what = rng.random()
        if what < 0.75 and options:
            words += [rng.choice(options), *rng.choices(VALUES, k=rng.choice((0, 1, 1, 1, 1, 1, 1, 2)))]
        elif what < 0.85:
            words[rng.randrange(len(words))] = rng.choice(VALUES)
        elif what < 0.9 and len(words) > 1:
            words.pop(rng.randrange(1, len(words)))
        else:
            words.append(rng.choice(["--unknown", "--no-quick", "-z", "extra", "ü", "--", "--top=", "--model.x=1"]))
    return [*words, "--train.steps", "1"] if words[:1] == ["train"] else words
