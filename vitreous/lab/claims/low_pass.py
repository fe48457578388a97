"""Residual blocks as a low-pass filter: exact for a Laplacian on a ring, but not true of a trained model."""

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
    right="The formula is exact on a ring. The gain falls monotonically only for α up to 1/4; above 1/2 the "
    "highest frequency grows. In a trained model attention does smooth, but MLPs restore high frequencies, and "
    "residuals bypass both: the tokens of the last block have a larger share of high frequencies than those of the "
    "first.",
    right_formula="",
    meaning="Attention smooths, a ViT does not: features of late blocks still distinguish neighboring patches and "
    "work for dense tasks. A model of attention alone, without MLP or residual, would blur.",
    axes=Axes("frequency ω / π", "gain of the stack, absolute value"),
)
RING, LAYERS = 64, 4


def document(alpha: float, omega: float, layers: int) -> float:
    return (1 + alpha * (2 * math.cos(omega) - 2)) ** layers


def stack(x: Tensor, alpha: float, layers: int) -> Tensor:
    """Apply x + α Δx ``layers`` times; on a ring Δx = 2 (mean of both neighbors − x), a mean computed by attention."""
    index = torch.arange(len(x))
    between = (index[:, None] - index).abs()
    zeros = torch.zeros(len(x), 1, dtype=x.dtype)
    for _ in range(layers):
        mean = Attend()(zeros, zeros, x[:, None], mask=(between == 1) | (between == len(x) - 1))[:, 0]
        x = x + 2 * alpha * (mean - x)
    return x


def gains(alpha: float, layers: int) -> Tensor:
    """Gain by frequency 0, 2π/64, … π: the Fourier transform of the stack's impulse response."""
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
            f"ring, α = {alpha:g}: gain at ω = π ÷ gain at ω = π/4",
            exactly(float((found[32] / found[8]).abs())),
            document=AtMost(1.0),
            right=near(abs(document(alpha, math.pi, LAYERS) / document(alpha, math.pi / 4, LAYERS)), share=1e-6),
        )
    if trial.has("weights"):
        yield from real_cases(trial)


def real_cases(trial: Trial) -> Iterator[Case]:
    """Change of the share of fine detail in DeiT-Tiny; an increase contradicts a low-pass filter."""
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
    """Mean ratio over blocks; the interval is over images."""
    return mean((after / before).mean(dim=1))


def fine_detail(tokens: Tensor, grid: Grid) -> Tensor:
    """Share of the tokens' energy at wavelengths below four patches in either direction, per image."""
    energy = torch.fft.fft2(tokens.unflatten(1, grid), dim=(1, 2)).abs().square().sum(dim=-1)
    down, across = (torch.fft.fftfreq(side).abs() > 0.25 for side in grid)
    return (energy * (down[:, None] | across)).sum(dim=(1, 2)) / energy.sum(dim=(1, 2))


def shares(trial: Trial) -> dict[str, Tensor]:
    """Fine detail before and after each part of each block, class token excluded, (images, blocks)."""
    model, (images, _) = deit_tiny(trial), photos(trial, trial.choose(6, 64))
    parts: dict[str, list[Tensor]] = {"stream": [], "mlp in": [], "mlp out": []}

    def keep(name: str, tokens: Tensor) -> None:
        parts[name].append(tokens[:, model.num_prefix :])

    def record_mlp(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        keep("mlp in", inputs[0])
        keep("mlp out", output)

    blocks = model.blocks
    hooks = [block.get_submodule("mlp").register_forward_hook(record_mlp) for block in blocks]
    hooks.append(blocks[0].register_forward_pre_hook(lambda _, inputs: keep("stream", inputs[0])))
    hooks += [block.register_forward_hook(lambda _, inputs, output: keep("stream", output)) for block in blocks]
    with record(model, what=("v", "output")) as trace, torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    for name, what in (("values", "v"), ("attention", "output")):
        heads = [getattr(attention, what)[:, :, model.num_prefix :] for attention in trace.values()]
        parts[name] = [tokens.transpose(1, 2).flatten(2) for tokens in heads]
    grid, _ = trace.grid_and_prefix()
    return {name: torch.stack([fine_detail(tokens, grid) for tokens in each], dim=1) for name, each in parts.items()}
