"""Weights in b bits: a step size alone is no format, it needs a zero point; and a scale per channel."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import Estimate, bootstrap, mean_of
from vitreous.lab.prediction import AtLeast, Near, near
from vitreous.lab.real import deit_tiny, pictures
from vitreous.lab.trial import Trial

CLAIM = Claim(
    title="Weights in few bits",
    statement="A matrix W is stored in b bits by rounding W/Δ, with a step Δ that divides the range of the weights into "
    "2ᵇ − 1 parts. An 8-bit weight is then off by about Δ/√12.",
    sources=(Source.FOUNDATIONS,),
    formula=r"W_q = \mathrm{Round}(W / \Delta) \, \Delta, \quad \Delta = \frac{W_{max} - W_{min}}{2^b - 1}",
    right="The step is right, but rounded numbers fit into b bits only if the range is centred on 0; otherwise a zero "
    "point must shift them. Each bit gains 6 dB. One step for a whole matrix is ruled by its largest weight: a step per "
    "output channel, and a range that cuts the rarest weights off, keep more.",
    right_formula=r"W_q = \Delta \, (\mathrm{clip}(\mathrm{Round}(W / \Delta) + z, 0, 2^b - 1) - z)",
    meaning="Eight bits per tensor are nearly free for DeiT-Tiny's weights. Below that use a scale per output channel, "
    "and for what is not centred on 0, such as activations after GELU, a zero point.",
    axes=Axes("bits", "signal ÷ error of the weights, in dB"),
)
DB_PER_BIT = 20 * math.log10(2)

Quantise = Callable[[Tensor, int], Tensor]


def document(low: float, high: float, bits: int) -> float:
    """The error of rounding to steps of Δ: root mean square."""
    return step(low, high, bits) / math.sqrt(12)


def right(bits: int, bits_before: int, decibels_before: float) -> float:
    return decibels_before + DB_PER_BIT * (bits - bits_before)


def step(low: float, high: float, bits: int) -> float:
    return (high - low) / (2**bits - 1)


def zero_point(low: float, high: float, bits: int) -> int:
    """Which number stands for 0."""
    return round(-low / step(low, high, bits))


def by_the_text(w: Tensor, bits: int) -> Tensor:
    """Rounded multiples of Δ, as far as b bits with a sign can hold them."""
    half = 2 ** (bits - 1)
    return torch.fake_quantize_per_tensor_affine(w, step(float(w.min()), float(w.max()), bits), 0, -half, half - 1)


def per_tensor(w: Tensor, bits: int) -> Tensor:
    low, high = min(0.0, float(w.min())), max(0.0, float(w.max()))
    scale, zero = step(low, high, bits), zero_point(low, high, bits)
    return torch.fake_quantize_per_tensor_affine(w, scale, zero, 0, 2**bits - 1)


def per_channel(w: Tensor, bits: int, *, kept: float = 1.0) -> Tensor:
    """A scale for each row, ``kept`` of its largest weight wide on either side; what lies beyond is cut off."""
    largest = kept * w.abs().amax(dim=1).clamp_min(1e-12)
    half = 2 ** (bits - 1) - 1
    zeros = torch.zeros(len(w), dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(w, largest / half, zeros, 0, -half - 1, half)


def clipped(w: Tensor, bits: int) -> Tensor:
    """Per channel with the range, out of seven, that loses least."""
    tried = [per_channel(w, bits, kept=share / 10) for share in range(4, 11)]
    return min(tried, key=lambda found: float((found - w).square().sum()))


def error(w: Tensor, quantised: Tensor) -> float:
    return float((quantised - w).square().mean().sqrt())


def decibels(w: Tensor, quantised: Tensor) -> float:
    return 20 * math.log10(float(w.square().mean().sqrt()) / error(w, quantised))


def cases(trial: Trial) -> Iterator[Case]:
    for name, centre in (("around 0", 0.0), ("around 0.3", 0.3), ("around 1", 1.0)):
        for how, quantise in (("as the text has it", by_the_text), ("with a zero point", per_tensor)):
            yield Case(
                f"8 bits, weights {name} ± 0.2, {how}: error ÷ (Δ/√12)",
                trial.repeat(partial(error_in_steps, centre, quantise)),
                document=near(1.0, share=0.1) if quantise is by_the_text else None,
                right=None if quantise is by_the_text else near(wider(centre), share=0.1),
            )
    matrices = real_matrices(trial) if trial.has("weights") else [made_up(seed) for seed in trial.seeds]
    for name, quantise in (("one step per matrix", per_tensor), ("per channel", per_channel), ("and cut off", clipped)):
        yield from by_bits(name, quantise, matrices, trial)
    if trial.has("weights"):
        yield from answers(trial)


def error_in_steps(centre: float, quantise: Quantise, seed: int) -> float:
    """The error of uniform weights around some centre, over what the text's step lets expect."""
    w = centre + 0.4 * (torch.rand(64, 512, generator=torch.Generator().manual_seed(seed)) - 0.5)
    return error(w, quantise(w, 8)) / document(float(w.min()), float(w.max()), 8)


def wider(centre: float) -> float:
    """A range must hold 0: how many times wider that makes it than the weights' own."""
    return max(1.0, (centre + 0.2) / 0.4)


def made_up(seed: int) -> Tensor:
    """Normal weights whose channels differ in scale, as those of trained models do."""
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(96, 1, generator=dice).exp() * torch.randn(96, 256, generator=dice)


def real_matrices(trial: Trial) -> list[Tensor]:
    blocks = nn.ModuleList(deit_tiny(trial).blocks())
    return [part.weight.detach() for part in blocks.modules() if isinstance(part, nn.Linear)]


def by_bits(name: str, quantise: Quantise, matrices: list[Tensor], trial: Trial) -> Iterator[Case]:
    widths = trial.choose(quick=(4, 6, 8), full=(3, 4, 5, 6, 7, 8, 10))
    found = {bits: mean_of([decibels(w, quantise(w, bits)) for w in matrices]) for bits in widths}
    for before, bits in zip(widths, widths[1:], strict=False):
        expected = right(bits, before, found[before].value)
        yield Case(f"{name}, {bits} bits", found[bits], right=Near(expected, 3.0), at=bits, group=name)


def answers(trial: Trial) -> Iterator[Case]:
    """Photos on which the model says the same with quantised weights as before."""
    model, (images, _) = deit_tiny(trial), pictures(trial, trial.choose(8, 200))
    before = answer(model, images)
    for name, quantise, bits, document in (
        ("as the text has it", by_the_text, 8, AtLeast(0.9)),
        ("as the text has it", by_the_text, 4, AtLeast(0.9)),
        ("per channel, cut off", clipped, 8, None),
        ("per channel, cut off", clipped, 6, None),
    ):
        same = (answer(quantised(model, quantise, bits), images) == before).double()
        kept: Estimate = bootstrap(same.numpy(), lambda rows: float(rows.mean()))
        yield Case(f"DeiT-Tiny, {bits} bits, {name}: answers that stay", kept, document=document, right=None if document else AtLeast(0.7))


def answer(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(some).argmax(dim=1) for some in images.split(16)])


def quantised(model: nn.Module, quantise: Quantise, bits: int) -> nn.Module:
    """A copy whose blocks have quantised matrices."""
    twin = copy.deepcopy(model)
    for part in twin.modules():
        if isinstance(part, nn.Linear):
            part.weight.data = quantise(part.weight.data, bits)
    return twin
