"""vitreous cost, vitreous cost plan"""

from __future__ import annotations

import math
from typing import Annotated

import tyro
from rich.table import Table

from vitreous.cli.show import count, duration, out, size, table
from vitreous.cost import Cost, Precision
from vitreous.cost import cost as cost_of
from vitreous.plan import USABLE, Plan
from vitreous.plan import plan as make_plan

Names = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODELS…")]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]


def cost(models: Names, image_size: tuple[int, ...] = (), batch: int = 1, precision: Precision = "fp32") -> None:
    """What models cost: parameters, multiply-accumulates, memory. All from formulas, nothing is run.

    Args:
        models: One or more model names, such as vit_base_16.
        image_size: One or more image sizes in pixels; the model's own if none is given.
        batch: Images at a time.
        precision: Precision of activations: fp32, bf16 or fp16.
    """
    if not models:
        raise ValueError("name at least one model, as in: vitreous cost vit_base_16")
    costs = [cost_of(m, s, batch=batch, precision=precision) for m in models for s in (image_size or (None,))]
    out.print(compute(costs))
    out.print(memory(costs))
    for name in models if len(models) == 1 else ():
        own = [one for one in costs if one.name == name]
        out.print(components(own[0]))
        out.print(quadratic(own))
    out.print(legend(precision))


def legend(precision: Precision) -> str:
    copy = f" with a copy in {precision}" if precision != "fp32" else ""
    return (
        "[dim]1 MAC is 2 FLOPs. Quadratic: the share that grows with the square of the tokens. Activations: held from "
        "forward to backward with fused attention. Maps: all attention weights, if they were kept. Train: "
        f"weights, gradients and AdamW's moments in fp32{copy}, and activations; + ckpt: blocks checkpointed.[/dim]"
    )


def compute(costs: list[Cost]) -> Table:
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
    return table(f"Compute for a batch of {costs[0].batch}", columns, rows)


def memory(costs: list[Cost]) -> Table:
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
    return table(f"Memory for a batch of {costs[0].batch}, {costs[0].precision}", columns, rows)


def pixels(one: Cost) -> str:
    return f"{one.image_size[0]}×{one.image_size[1]}"


def components(one: Cost) -> Table:
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


def quadratic(costs: list[Cost]) -> str:
    if not costs[0].quadratic_macs:
        return "No part of it grows faster than the number of pixels.\n"
    shares = ", ".join(f"{one.quadratic_macs / one.macs:.0%} at {pixels(one)}" for one in costs)
    first = costs[0]
    tokens = first.crossover_tokens
    height, width = (round(math.sqrt(tokens) * side) for side in first.stride)
    return (
        f"The part that grows with the square of the tokens makes up {shares} of the MACs.\n"
        f"It overtakes all the rest at about {tokens:,.0f} tokens, {height:,}×{width:,} pixels.\n"
    )


def plan(
    model: Name,
    images: float,
    devices: int,
    memory: float,
    flops: float,
    image_size: int | None = None,
    batch: int = 4096,
    precision: Precision = "bf16",
    utilization: float = 0.4,
) -> None:
    """Does a training run fit, how to shard it, and how long does it take?

    Args:
        model: A model's name.
        images: Images seen in all, such as 1e9.
        devices: How many accelerators.
        memory: Bytes of memory of each, such as 80e9.
        flops: Peak floating-point operations a second of each, such as 400e12.
        image_size: In pixels; the model's own if none is given.
        batch: Images per step, over all devices.
        precision: Precision of activations and products.
        utilization: The share of the peak that training really reaches.
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
              f"{count(made.parameters)} parameters, {count(made.macs)} MACs an image")  # fmt: skip
    out.print(layouts(made))
    out.print(verdict(made))
    out.print(assumptions(made))


def layouts(made: Plan) -> Table:
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
    columns = ("layout", "states", "an image", "images at once")
    return table(f"Per device, of {made.devices} with {size(made.memory)} each", columns, rows)


def verdict(made: Plan) -> str:
    if made.chosen is None:
        return "[bold]It does not fit[/bold], however it is sharded: more memory, smaller images or a smaller model.\n"
    steps = f"{made.accumulation} forward passes" if made.accumulation > 1 else "one forward pass"
    return (
        f"[bold]It fits[/bold]: {made.chosen.name}; a batch of {made.batch:,} is {made.per_device:,} a device, "
        f"in {steps}.\nIt takes about [bold]{duration(made.seconds)}[/bold]: {made.total_flops:.2g} FLOPs at "
        f"{made.devices * made.flops * made.utilization:.2g} a second.\n"
    )


def assumptions(made: Plan) -> str:
    passes = "eight" if made.chosen and made.chosen.checkpointing else "six"
    return (
        f"[dim]Assumed: {made.utilization:.0%} of the peak is reached; {USABLE:.0%} of the memory is usable; AdamW "
        f"with fp32 states, {made.precision} products; training costs {passes} FLOPs a MAC; fused attention; "
        "communication hides behind computation; a sharded model gathers two blocks at a time; the loader keeps "
        "up.[/dim]"
    )
