"""Quantizing weights to b bits needs a zero point besides the step size, and a scale per channel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import bootstrap, exactly, mean_of
from vitreous.lab.instruments.quantize import (
    Quantize,
    clipped_per_channel,
    linear_weights,
    per_channel,
    per_tensor,
    quantize_blocks,
    step,
    text_formula,
)
from vitreous.lab.instruments.real import deit_tiny, photos
from vitreous.lab.prediction import AtLeast, AtMost, Near, near
from vitreous.lab.trial import Trial
from vitreous.models.vit import ViT

CLAIM = Claim(
    title="Weights in few bits",
    statement="A matrix W is stored in b bits by rounding W/Δ, with a step Δ that divides the weights' range into "
    "2ᵇ − 1 parts. An 8-bit weight is then off by about Δ/√12.",
    sources=(Source.FOUNDATIONS,),
    formula=r"W_q = \mathrm{Round}(W / \Delta) \, \Delta, \quad \Delta = \frac{W_{max} - W_{min}}{2^b - 1}",
    right="The step is right, but rounded numbers fit into b bits only if the range is centered on 0; otherwise "
    "a zero point must shift them, and the range must then include 0. Each bit gains 6 dB. One step for a whole "
    "matrix is determined by its largest weight: a step per output channel, and a clipped range, lose less.",
    right_formula=r"W_q = \Delta \, (\mathrm{clip}(\mathrm{Round}(W / \Delta) + z, 0, 2^b - 1) - z)",
    meaning="Eight bits per tensor are nearly lossless for DeiT-Tiny's weights. Below that use a scale per output "
    "channel, and for values that are not centered on 0, such as activations after GELU, a zero point.",
    axes=Axes("bits", "signal ÷ error of the weights, in dB"),
)


def document(low: float, high: float, bits: int) -> float:
    """RMS error of rounding to steps of Δ."""
    return step(low, high, bits) / math.sqrt(12)


def right(signal: float, width: float, bits: int) -> float:
    """Signal-to-noise ratio in dB for weights of a given RMS and range: 6 dB more with every bit."""
    return 20 * math.log10(signal * math.sqrt(12) * (2**bits - 1) / width)


def error(w: Tensor, quantized: Tensor) -> float:
    return float((quantized - w).square().mean().sqrt())


def decibels(w: Tensor, quantized: Tensor) -> float:
    return 20 * math.log10(float(w.square().mean().sqrt()) / error(w, quantized))


def cases(trial: Trial) -> Iterator[Case]:
    for name, make in DISTRIBUTIONS.items():
        measured = trial.repeat(partial(error_in_steps, make, text_formula))
        yield Case(f"8 bits, {name}, as in the text: error ÷ (Δ/√12)", measured, document=near(1.0, share=0.15))
    for name, make in (DISTRIBUTIONS | OTHER_DISTRIBUTIONS).items():
        measured, most = trial.repeat(partial(error_in_steps, make, per_tensor)), AtMost(1.15 * range_growth(make))
        yield Case(f"8 bits, {name}, with a zero point: error ÷ (Δ/√12)", measured, right=most)
    model = deit_tiny(trial) if trial.has("weights") else None
    matrices = linear_weights(model) if model else [synthetic(seed) for seed in trial.seeds]
    yield from by_bits("one step per matrix", per_tensor, matrices, trial)
    yield from by_bits("one step per channel", per_channel, matrices, trial)
    yield Case(
        "4 bits per channel: gain from clipping the largest weights, in dB",
        mean_of([decibels(w, clipped_per_channel(w, 4)) - decibels(w, per_channel(w, 4)) for w in matrices]),
        right=AtLeast(0.0),
    )
    if model:
        yield from predictions(model, trial)


def sample(seed: int) -> Tensor:
    return torch.randn(64, 512, generator=torch.Generator().manual_seed(seed))


DISTRIBUTIONS: dict[str, Callable[[int], Tensor]] = {
    "weights around 0": sample,
    "weights around twice their deviation": lambda seed: 2 + sample(seed),
}
OTHER_DISTRIBUTIONS: dict[str, Callable[[int], Tensor]] = {  # not covered by the text
    "activations after GELU": lambda seed: F.gelu(sample(seed)),
    "gains of a norm around 1": lambda seed: 1 + 0.05 * sample(seed),
}


def error_in_steps(make: Callable[[int], Tensor], quantize: Quantize, seed: int) -> float:
    """Quantization error divided by the text's prediction."""
    w = make(seed)
    return error(w, quantize(w, 8)) / document(float(w.min()), float(w.max()), 8)


def range_growth(make: Callable[[int], Tensor]) -> float:
    """Factor by which a range grows when it must include 0."""
    w = make(0)
    return (max(0.0, float(w.max())) - min(0.0, float(w.min()))) / float(w.max() - w.min())


def synthetic(seed: int) -> Tensor:
    """Normal weights whose channels differ in scale, as those of trained models do."""
    draws = torch.Generator().manual_seed(seed)
    return (0.5 * torch.randn(96, 1, generator=draws)).exp() * torch.randn(96, 256, generator=draws)


def by_bits(name: str, quantize: Quantize, matrices: list[Tensor], trial: Trial) -> Iterator[Case]:
    for bits in trial.choose(quick=(4, 6, 8), full=(3, 4, 5, 6, 7, 8, 10)):
        predicted = [right(float(w.square().mean().sqrt()), width(w, quantize), bits) for w in matrices]
        measured = mean_of([decibels(w, quantize(w, bits)) for w in matrices])
        yield Case(f"{name}, {bits} bits", measured, right=Near(mean_of(predicted).value, 3.0), at=bits, group=name)


def width(w: Tensor, quantize: Quantize) -> float:
    """Width of the quantization range; RMS over channels if each has its own."""
    return float(w.max() - w.min()) if quantize is per_tensor else float((2 * w.abs().amax(1)).square().mean().sqrt())


def predictions(model: ViT, trial: Trial) -> Iterator[Case]:
    """Compare the model's predictions before and after quantizing its matrices."""
    images, _ = photos(trial, trial.choose(6, 100))
    before = logits(model, images)
    for bits in trial.choose(quick=(8, 4), full=(8, 6, 4)):
        plain, better = (
            logits(quantize_blocks(model, how, bits), images) for how in (text_formula, clipped_per_channel)
        )
        unchanged = (plain.argmax(dim=1) == before.argmax(dim=1)).double().numpy()
        yield Case(
            f"DeiT-Tiny, {bits} bits as in the text: unchanged predictions",
            bootstrap(unchanged, lambda rows: float(rows.mean())),
            right=AtMost(0.9) if bits == 4 else AtLeast({8: 0.9, 6: 0.5}[bits]),
        )
        yield Case(
            f"DeiT-Tiny, {bits} bits: error of the logits, per channel and clipped ÷ as in the text",
            exactly(float((better - before).norm() / (plain - before).norm())),
            right=AtMost(1.0),
        )


def logits(model: ViT, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(some) for some in images.split(16)])
