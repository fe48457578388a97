"""vitreous cost, vitreous cost plan"""

from __future__ import annotations

import math
from typing import Annotated

import tyro
from rich.table import Table

from vitreous.cli.arguments import defaults_to
from vitreous.cli.display import count, duration, out, size, table
from vitreous.cost import Cost, Precision
from vitreous.cost import cost as cost_of
from vitreous.plan import USABLE, Plan
from vitreous.plan import plan as make_plan

Names = Annotated[
    tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODELS…", help_behavior_hint="(required)")
]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]


def cost(
    models: Names,
    image_size: Annotated[tuple[int, ...], defaults_to("the model's own")] = (),
    batch: int = 1,
    precision: Precision = "fp32",
) -> None:
    """Compute parameters, multiply-accumulates and memory of models from formulas, without running them.

    Args:
        models: One or more model names, such as vit_base_16.
        image_size: One or more image sizes in pixels.
        batch: Batch size.
        precision: Precision of the activations.
    """
    if not models:
        raise ValueError("give at least one model name, as in: vitreous cost vit_base_16")
    costs = [cost_of(m, s, batch=batch, precision=precision) for m in models for s in (image_size or (None,))]
    out.print(compute_table(costs))
    out.print(memory_table(costs))
    for name in models if len(models) == 1 else ():
        own = [one for one in costs if one.name == name]
        out.print(component_table(own[0]))
        out.print(quadratic_note(own))
    out.print(legend(precision))


def legend(precision: Precision) -> str:
    copy = f" with a copy in {precision}" if precision != "fp32" else ""
    return (
        "[dim]1 MAC is 2 FLOPs. Quadratic: share of the MACs that is quadratic in the token count. Activations: "
        "saved for the backward pass, with fused attention. Maps: all attention weights, if materialized. Train: "
        f"weights, gradients and AdamW moments in fp32{copy}, plus activations; + ckpt: with activation checkpointing."
        "[/dim]"
    )


def compute_table(costs: list[Cost]) -> Table:
    rows = [
        (
            one.name,
            pixels(one),
            f"{one.num_tokens:,}",
            count(one.parameters),
            count(one.macs),
            f"{one.quadratic_macs / one.macs:.1%}",
        )
        for one in costs
    ]
    columns = ("model", "pixels", "tokens", "parameters", "MACs", "quadratic")
    return table(f"Compute, batch of {costs[0].batch}", columns, rows)


def memory_table(costs: list[Cost]) -> Table:
    rows = [
        (
            one.name,
            pixels(one),
            size(one.activation_bytes),
            size(one.attention_bytes),
            size(one.training_bytes()),
            size(one.training_bytes(checkpointing=True)),
        )
        for one in costs
    ]
    columns = ("model", "pixels", "activations", "maps", "train", "+ ckpt")
    return table(f"Memory, batch of {costs[0].batch}, {costs[0].precision}", columns, rows)


def pixels(one: Cost) -> str:
    return f"{one.image_size[0]}×{one.image_size[1]}"


def component_table(one: Cost) -> Table:
    other = "tokens, positions" if one.parts["mixer"].macs else "residual blocks"
    rows = [
        (
            {"mixer": "attention", "other": other}.get(name, name),
            count(part.parameters),
            f"{part.parameters / one.parameters:.1%}",
            count(part.macs),
            f"{part.macs / one.macs:.1%}",
            size(part.activation_bytes),
        )
        for name, part in one.parts.items()
        if part.parameters or part.macs or part.activation_bytes
    ]
    return table(
        f"{one.name} by component at {pixels(one)}", ("component", "parameters", "", "MACs", "", "activations"), rows
    )


def quadratic_note(costs: list[Cost]) -> str:
    if not costs[0].quadratic_macs:
        return "All MACs grow linearly with the number of pixels.\n"
    shares = ", ".join(f"{one.quadratic_macs / one.macs:.0%} at {pixels(one)}" for one in costs)
    first = costs[0]
    tokens = first.crossover_tokens
    height, width = (round(math.sqrt(tokens) * side) for side in first.stride)
    return (
        f"Share of the MACs quadratic in the token count: {shares}.\n"
        f"It exceeds the other MACs from about {tokens:,.0f} tokens, {height:,}×{width:,} pixels.\n"
    )


def plan(
    model: Name,
    images: float,
    devices: int,
    memory: float,
    flops: float,
    image_size: Annotated[int | None, defaults_to("the model's own")] = None,
    batch: int = 4096,
    precision: Precision = "bf16",
    utilization: float = 0.4,
) -> None:
    """Estimate whether a training run fits in memory, how to shard it, and how long it takes.

    Args:
        model: Model name, such as vit_large_16.
        images: Total number of training images seen, such as 1e9.
        devices: Number of accelerators.
        memory: Memory per accelerator in bytes, such as 80e9.
        flops: Peak FLOP/s per accelerator, such as 400e12.
        image_size: Image size in pixels.
        batch: Global batch size, over all devices.
        precision: Precision of activations and matrix products.
        utilization: Model FLOPs utilization (MFU): the fraction of the peak that training reaches.
    """
    made = make_plan(
        model,
        images=images,
        devices=devices,
        memory=memory,
        flops=flops,
        image_size=image_size,
        batch=batch,
        precision=precision,
        utilization=utilization,
    )
    out.print(f"[bold]{made.model}[/bold] at {made.image_size[0]}×{made.image_size[1]}: "
              f"{count(made.parameters)} parameters, {count(made.macs)} MACs per image")  # fmt: skip
    out.print(layout_table(made))
    out.print(verdict(made))
    out.print(assumptions(made))


def layout_table(made: Plan) -> Table:
    shown = [o for o in made.options if o.shards in (1, 2, 8, made.devices) or o is made.chosen]
    rows = [
        (
            ("→ " if option is made.chosen else "  ") + option.name,
            size(option.state_bytes),
            size(option.bytes_per_image),
            f"{option.micro_batch:,}" if option.micro_batch else "does not fit",
        )
        for option in shown
    ]
    columns = ("layout", "model states", "per image", "micro-batch")
    return table(f"Memory per device ({made.devices} devices of {size(made.memory)})", columns, rows)


def verdict(made: Plan) -> str:
    if made.chosen is None:
        return "[bold]It does not fit[/bold] with any sharding: use more memory, smaller images or a smaller model.\n"
    steps = f"{made.accumulation} forward passes" if made.accumulation > 1 else "one forward pass"
    return (
        f"[bold]It fits[/bold] with {made.chosen.name}: a batch of {made.batch:,} is {made.per_device:,} per device, "
        f"in {steps}.\nTraining takes about [bold]{duration(made.seconds)}[/bold]: {made.total_flops:.2g} FLOPs at "
        f"{made.devices * made.flops * made.utilization:.2g} FLOP/s.\n"
    )


def assumptions(made: Plan) -> str:
    passes = "eight" if made.chosen and made.chosen.checkpointing else "six"
    return (
        f"[dim]Assumptions: {made.utilization:.0%} MFU; {USABLE:.0%} of the memory is usable; AdamW with fp32 states, "
        f"{made.precision} matrix products; {passes} training FLOPs per forward MAC; fused attention; communication "
        "fully overlapped with compute; a sharded model gathers two blocks at a time; data loading is not a bottleneck."
        "[/dim]"
    )
