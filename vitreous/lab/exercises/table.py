"""All exercises in order: each has a file here, a module of the same name in ``checks/`` and an entry below."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vitreous.options import did_you_mean

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Exercise:
    """One exercise; parsed from its file, so that listing exercises does not import torch."""

    number: int
    name: str
    claims: tuple[str, ...]  # claims of the laboratory that the exercise prepares for
    hint: str

    @property
    def file(self) -> Path:
        """Path of the file that is handed out."""
        return FOLDER / f"{self.module}.py"

    @property
    def module(self) -> str:
        return f"e{self.number:02}_{self.name}"

    @cached_property
    def task(self) -> str:
        return ast.get_docstring(ast.parse(self.file.read_text(encoding="utf-8"))) or ""

    @property
    def title(self) -> str:
        """First line of the task, without "Exercise 1: " and the period."""
        words = self.task.splitlines()[0].partition(": ")[2].rstrip(".")
        return words[:1].upper() + words[1:]

    @property
    def next(self) -> Exercise | None:
        return EXERCISES[self.number] if self.number < len(EXERCISES) else None


EXERCISES = (
    Exercise(
        1, "patchify", ("smallest_object", "patch_embedding_cost", "convolutional_stem"),
        "Give every axis that you want to move its own dimension: reshape (b, c, y, x) to (b, c, rows, p, columns, p), "
        "permute to (b, rows, columns, c, p, p), then flatten patches, and channels and pixels.",
    ),
    Exercise(
        2, "attention", ("dot_product_variance", "softmax_saturation", "temperature", "diagonal_query"),
        "Logits are q @ k.transpose(-2, -1), a row for every query. Divide by the square root of q's last dimension, "
        "then take the softmax along the last axis, that of the keys.",
    ),
    Exercise(
        3, "permutation", ("permutation", "weight_sharing"),
        "tokens[:, order] shuffles the tokens. Equivariant means: shuffling first, or shuffling afterwards, gives the "
        "same. Invariant means: shuffling changes nothing at all.",
    ),
    Exercise(
        4, "positions", ("pooling_and_positions", "relative_bias"),
        "Waves: positions[:, None] / 10_000 ** (torch.arange(0, h, 2) / h) are the angles; torch.stack their sines and "
        "cosines along a new last axis and flatten it. Resampling: split the prefix off first, and move the channels "
        "to where interpolate expects them, (1, d, rows, columns).",
    ),
    Exercise(
        5, "heads", ("attention_rank", "heads_specialize", "head_importance", "batch_first"),
        "qkv(x).reshape(b, n, 3, heads, d // heads), then permute so that 3 comes first and heads before tokens. After "
        "attention, move the tokens before the heads again and only then flatten (heads, d // heads).",
    ),
    Exercise(
        6, "block", ("norm_placement", "final_norm", "layer_norm", "training_ingredients"),
        "Two lines, one for each branch: x = x + branch(norm(x)). The second reads the x of the first.",
    ),
    Exercise(
        7, "cost", ("attention_macs", "attention_parameters", "quadratic_term", "doubled_side", "flops_or_macs"),
        "A linear layer from a to b dimensions has a·b weights and b biases, and takes a·b MACs for every token it is "
        "applied to. Which tokens are these: the patches, all N, or only the class token?",
    ),
    Exercise(
        8, "looking", ("attention_distance", "layers_near_to_far", "entropy_generalization"),
        "torch.special.entr(w) is −w ln w with 0 ln 0 = 0. For distances: slice out cells × cells, divide every row by "
        "its sum, multiply by the matrix of distances, sum over keys, and take the mean over queries.",
    ),
    Exercise(
        9, "rollout", ("rollout", "receptive_field", "low_pass"),
        "Begin with the identity and go through the layers in order, each time multiplying from the left: "
        "result = step @ result.",
    ),
    Exercise(
        10, "vit", ("pooling_and_positions", "small_data", "universal_approximation", "patch_size"),
        "self.class_token.expand(len(images), -1, -1) and torch.cat along the tokens put the class token first. A "
        "training step is five lines: zero_grad, forward, cross_entropy, backward, step.",
    ),
)  # fmt: skip


def find_exercise(number: str) -> Exercise:
    """Return an exercise by its number or name."""
    names = {exercise.name: exercise for exercise in EXERCISES}
    if number.isdecimal() and 1 <= int(number) <= len(EXERCISES):
        return EXERCISES[int(number) - 1]
    if number in names:
        return names[number]
    if number.lstrip("-").isdecimal():
        raise ValueError(f"there is no exercise {number}; they are numbered from 1 to {len(EXERCISES)}")
    raise ValueError(f"there is no exercise {number!r}{did_you_mean(number, names)}")
