"""Residual blocks as a low-pass filter: exact for a Laplacian on a ring, and not what a trained model does."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vitreous.explain.record import record
from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import Estimate, bootstrap, exactly
from vitreous.lab.instruments.real import deit_tiny, photos
from vitreous.lab.prediction import AtLeast, AtMost, Near, near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import Attend
from vitreous.layers.position import Grid

CLAIM = Claim(
    title="Residual blocks as a low-pass filter",
    statement="If attention is a discrete Laplacian, a residual block multiplies a wave of frequency ω by a gain that "
    "is largest at ω = 0 and falls with frequency. So a deep stack of residual blocks is a low-pass filter: it keeps "
    "smooth patterns and wears away fine detail.",
    sources=(Source.PRINCIPLES,),
    formula=r"G(\omega)^L = [1 + \alpha (2 \cos \omega - 2)]^L",
    right="The formula is exact on a ring. The gain falls steadily only for α up to 1/4; above 1/2 the finest detail "
    "grows. In a trained model attention does smooth, but MLPs bring detail back, and residuals carry it past "
    "both: the tokens of the last block hold more fine detail than those of the first.",
    right_formula="",
    meaning="Smoothing is what attention does, not what a ViT does: features of late blocks still tell neighboring "
    "patches apart and serve for dense tasks. A model of attention alone, without MLP or residual, would blur.",
    axes=Axes("frequency ω / π", "gain of the stack, without its sign"),
)
RING, LAYERS = 64, 4


def document(alpha: float, omega: float, layers: int) -> float:
    return (1 + alpha * (2 * math.cos(omega) - 2)) ** layers


def stack(x: Tensor, alpha: float, layers: int) -> Tensor:
    """x + α Δx again and again; on a ring Δx = 2 (mean of both neighbors − x), and attention takes that mean."""
    place = torch.arange(len(x))
    between = (place[:, None] - place).abs()
    nothing = torch.zeros(len(x), 1, dtype=x.dtype)
    for _ in range(layers):
        mean = Attend()(nothing, nothing, x[:, None], mask=(between == 1) | (between == len(x) - 1))[:, 0]
        x = x + 2 * alpha * (mean - x)
    return x


def gains(alpha: float, layers: int) -> Tensor:
    """By frequency 0, 2π/64, … π: the Fourier transform of what the stack makes of a single spike."""
    spike = torch.zeros(RING, dtype=torch.float64)
    spike[0] = 1
    return torch.fft.rfft(stack(spike, alpha, layers)).real


def cases(trial: Trial) -> Iterator[Case]:
    for alpha in (0.1, 0.4, 0.6):
        found = gains(alpha, LAYERS)
        for index in trial.choose(quick=(8, 16, 32), full=(4, 8, 16, 24, 28, 32)):
            expected = Near(abs(document(alpha, 2 * math.pi * index / RING, LAYERS)), 1e-9)
            yield Case(
                f"ring, α = {alpha:g}, ω = {2 * index / RING:g} π",
                exactly(float(found[index].abs())),
                document=expected,
                right=expected,
                at=2 * index / RING,
                group=f"α = {alpha:g}",
            )
        yield Case(
            f"ring, α = {alpha:g}: gain of the finest detail ÷ that of a wave of 8 places",
            exactly(float((found[32] / found[8]).abs())),
            document=AtMost(1.0),
            right=near(abs(document(alpha, math.pi, LAYERS) / document(alpha, math.pi / 4, LAYERS)), share=1e-6),
        )
    if trial.has("weights"):
        yield from real_cases(trial)


def real_cases(trial: Trial) -> Iterator[Case]:
    """How the share of fine detail changes; a share above its start is no low pass."""
    found = shares(trial)
    trial.keep("share of fine detail by block", [float(value) for value in found["stream"].mean(dim=0)])
    stream = found["stream"]
    yield Case(
        "DeiT-Tiny, attention: share of fine detail in its output ÷ in its values",
        change(found["values"], found["attention"]),
        document=AtMost(1.0),
        right=AtMost(1.0),
    )
    yield Case(
        "DeiT-Tiny, MLPs: share of fine detail in their output ÷ in their input",
        change(found["mlp in"], found["mlp out"]),
        document=AtMost(1.0),
    )
    yield Case(
        "DeiT-Tiny, whole stack with residuals: share of fine detail in the last tokens ÷ in the first",
        change(stream[:, :1], stream[:, -1:]),
        document=AtMost(1.0),
    )
    yield Case("DeiT-Tiny: share of fine detail in the last tokens", mean(stream[:, -1]), right=AtLeast(0.05))


def mean(values: Tensor) -> Estimate:
    return bootstrap(values.numpy(), lambda rows: float(rows.mean()))


def change(before: Tensor, after: Tensor) -> Estimate:
    """The mean ratio over blocks; the interval is over images."""
    return mean((after / before).mean(dim=1))


def fine_detail(tokens: Tensor, grid: Grid) -> Tensor:
    """Per image: the share of the tokens' energy in waves shorter than four patches, down or across."""
    energy = torch.fft.fft2(tokens.unflatten(1, grid), dim=(1, 2)).abs().square().sum(dim=-1)
    down, across = (torch.fft.fftfreq(side).abs() > 0.25 for side in grid)
    return (energy * (down[:, None] | across)).sum(dim=(1, 2)) / energy.sum(dim=(1, 2))


def shares(trial: Trial) -> dict[str, Tensor]:
    """(images, blocks): fine detail before and after each part of each block, class token left out."""
    model, (images, _) = deit_tiny(trial), photos(trial, trial.choose(6, 64))
    parts: dict[str, list[Tensor]] = {"stream": [], "mlp in": [], "mlp out": []}

    def keep(name: str, tokens: Tensor) -> None:
        parts[name].append(tokens[:, model.num_prefix :])

    def watch(_: nn.Module, given: tuple[Tensor, ...], gave: Tensor) -> None:
        keep("mlp in", given[0])
        keep("mlp out", gave)

    blocks = model.blocks
    hooks = [block.get_submodule("mlp").register_forward_hook(watch) for block in blocks]
    hooks.append(blocks[0].register_forward_pre_hook(lambda _, given: keep("stream", given[0])))
    hooks += [block.register_forward_hook(lambda _, given, gave: keep("stream", gave)) for block in blocks]
    with record(model, what=("v", "output")) as trace, torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    for name, what in (("values", "v"), ("attention", "output")):
        heads = [getattr(attention, what)[:, :, model.num_prefix :] for attention in trace.values()]
        parts[name] = [tokens.transpose(1, 2).flatten(2) for tokens in heads]
    grid, _ = trace.cells()
    return {name: torch.stack([fine_detail(tokens, grid) for tokens in each], dim=1) for name, each in parts.items()}
