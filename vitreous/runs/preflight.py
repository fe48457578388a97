"""Preflight checks: detect settings and data that are known to cause bad runs, before training."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from vitreous.data.base import ArrayDataset, Arrays, Dataset
from vitreous.data.folder import PathDataset
from vitreous.data.memory import DecodedDataset
from vitreous.runs.prepare import Prepared
from vitreous.runs.recipe import Recipe
from vitreous.train.optim import SGD, AdamW, Muon

MIN_TOKENS = 16
MIN_VALIDATION_IMAGES = 50
HASHED_IMAGES = 20_000


@dataclass(frozen=True)
class Finding:
    """A problem found by a preflight check, with a suggested remedy."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"


def preflight(recipe: Recipe, prepared: Prepared) -> list[Finding]:
    """Run all checks and return their findings, the most important first."""
    return [finding for check in CHECKS for finding in check(recipe, prepared)]


def too_few_tokens(recipe: Recipe, prepared: Prepared) -> Iterator[Finding]:
    (stride_y, stride_x), (height, width) = prepared.model.strides[0], recipe.model.image_size
    tokens = -(-height // stride_y) * -(-width // stride_x)
    if tokens < MIN_TOKENS:
        side = max(1, min(height, width) // 8)
        yield Finding(
            f"{height}×{width} pixels in patches of {stride_y}×{stride_x} leave {tokens} tokens: "
            "too few to locate anything",
            f"use --model.patch-size {side} {side} or larger images",
        )


def no_warmup(recipe: Recipe, prepared: Prepared) -> Iterator[Finding]:
    config = recipe.train
    if config.schedule.warmup == 0 and not isinstance(config.optimizer, SGD) and config.freeze_blocks != -1:
        yield Finding(
            "no warm-up: transformers that start at the peak learning rate often diverge or end with lower accuracy",
            "use --train.schedule.warmup 0.05",
        )


def rate_too_high(recipe: Recipe, prepared: Prepared) -> Iterator[Finding]:
    config, lr = recipe.train, recipe.train.optimizer.lr
    if not isinstance(config.optimizer, AdamW | Muon) or config.freeze_blocks == -1:
        return
    if recipe.weights and lr > 1e-3 * config.batch_size / 256 * 2:
        yield Finding(
            f"a learning rate of {lr:g} for a batch of {config.batch_size} will destroy the pretrained features",
            f"fine-tune with --train.optimizer.lr {1e-3 * config.batch_size / 256:.2g} and --train.layer-decay 0.75",
        )
    elif lr > 1e-2:
        yield Finding(f"a learning rate of {lr:g} makes AdamW diverge", "use --train.optimizer.lr 1e-3")


def odd_normalization(recipe: Recipe, prepared: Prepared) -> Iterator[Finding]:
    data, own = prepared.train, prepared.model.spec.preprocess
    if not isinstance(data, ArrayDataset) or data.num_channels != own.num_channels:
        return
    indices = np.linspace(0, len(data) - 1, min(500, len(data))).astype(np.int64)
    pixels = data.pixels(indices).astype(np.float64) / 255
    values = (pixels - np.array(own.mean)[:, None, None]) / np.array(own.std)[:, None, None]
    mean, std = values.mean(), values.std()
    if abs(mean) > 1.5 or not 0.2 < std < 5:
        yield Finding(
            f"after normalization the images have mean {mean:.2f} and standard deviation {std:.2f}, "
            "far from the expected 0 and 1",
            "check that mean and std are those of this data, on a scale of 0 to 1",
        )


def too_few_steps(recipe: Recipe, prepared: Prepared) -> Iterator[Finding]:
    config = recipe.train
    steps = config.steps or config.epochs * max(1, len(prepared.train) // config.batch_size)
    if config.ema and steps < 3 / (1 - config.ema):
        yield Finding(
            f"the weight average with decay {config.ema:g} needs about {3 / (1 - config.ema):,.0f} steps to forget the "
            f"initial weights, and the run has {steps:,.0f}",
            "lower --train.ema or train longer",
        )


def shared_images(recipe: Recipe, prepared: Prepared) -> Iterator[Finding]:
    if prepared.valid is None:
        yield Finding("there is no validation set, so generalization is not measured", "use --data.valid-share 0.1")
        return
    number = len(fingerprints(prepared.train) & fingerprints(prepared.valid))
    if number:
        yield Finding(
            f"{number:,} validation images are also in the training set, so the accuracy will be too optimistic",
            "list them with vitreous data inspect, and remove the duplicates",
        )


def few_validation_images(recipe: Recipe, prepared: Prepared) -> Iterator[Finding]:
    number = 0 if prepared.valid is None else len(prepared.valid)
    if 0 < number < MIN_VALIDATION_IMAGES:
        yield Finding(
            f"with {number} validation images each of them changes the accuracy by {1 / number:.0%}, so small "
            "differences mean nothing",
            "add images, or hold out more with --data.valid-share",
        )


def fingerprints(data: Dataset) -> set[bytes]:
    """Return digests of the image files or arrays, at most ``HASHED_IMAGES``; empty for other datasets."""
    data = data.data if isinstance(data, DecodedDataset) else data
    indices = np.arange(min(len(data), HASHED_IMAGES))
    if isinstance(data, PathDataset):
        return {digest(data.paths[index].read_bytes()) for index in indices if data.paths[index].is_file()}
    if isinstance(data, Arrays):
        return {digest(data.images[index].tobytes()) for index in indices}
    return set()


def digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


CHECKS: tuple[Callable[[Recipe, Prepared], Iterator[Finding]], ...] = (
    too_few_tokens,
    rate_too_high,
    no_warmup,
    odd_normalization,
    too_few_steps,
    shared_images,
    few_validation_images,
)
