"""vitreous bench"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from rich.table import Table
from torch import Tensor

from vitreous import machine
from vitreous.cli.arguments import Architecture, WeightsOrModel, defaults_to
from vitreous.cli.display import err, out, table
from vitreous.cli.export import load_or_create
from vitreous.data.image_files import find_images, open_image
from vitreous.data.transforms import transforms
from vitreous.deploy.accelerate import Report, accelerate
from vitreous.deploy.engine import Precision
from vitreous.models.base import Model


def bench(
    weights: WeightsOrModel,
    images: Annotated[str, defaults_to("random noise")] = "",
    model: Architecture = None,
    batch: int = 8,
    image_size: Annotated[int | None, defaults_to("the model's own")] = None,
    precision: Precision | Literal["auto"] = "auto",
    tolerance: float = 0.02,
    threads: Annotated[int | None, defaults_to("torch's")] = None,
    fresh: bool = False,
) -> None:
    """Benchmark a model with every engine and precision available on this machine, as vt.accelerate does.

    Args:
        images: Image file or folder to measure the error on.
        batch: Batch size.
        image_size: Side length in pixels.
        precision: Measure only this precision; auto measures all.
        tolerance: Largest allowed relative error of the logits.
        threads: Number of threads.
        fresh: Ignore cached measurements and measure again.
    """
    if batch < 1:
        raise ValueError(f"--batch must be at least 1, got {batch}")
    if threads is not None:
        torch.set_num_threads(threads)
    net = load_or_create(weights, model).eval()
    inputs = example_batch(net, images, batch, image_size)
    err.print(describe_machine())
    fast = accelerate(net, inputs, precision, tolerance=tolerance, fresh=fresh)
    out.print(engine_table(fast.report, inputs))
    out.print(f"fast = vt.accelerate(model, images)  [dim]# uses {fast.report.engine}, {fast.report.precision}[/dim]")


def example_batch(net: Model, images: str, batch: int, image_size: int | None) -> Float[Tensor, "b c y x"]:
    """Load a batch of images, or draw noise if none are given."""
    height, width = (image_size, image_size) if image_size else net.spec.preprocess.image_size
    if not images:
        noise = torch.Generator().manual_seed(0)
        return torch.randn(batch, net.config.num_channels, height, width, generator=noise)
    if not Path(images).exists():
        raise ValueError(f"--images {images} does not exist; omit it to use random noise")
    prepare = transforms(replace(net.spec.preprocess, image_size=(height, width)))
    found = [prepare(open_image(path)) for path in find_images([images])[:batch]]
    if len(found) < batch:
        raise ValueError(f"{images} holds {len(found)} images, --batch needs {batch}; add images or lower --batch")
    return torch.stack(found)


def describe_machine() -> str:
    """Describe the CPU, thread count, vector instructions and compiler in one line."""
    sets = [name for name in ("avx2", "avx512f", "avx512_vnni", "amx_tile") if name in machine.cpu_flags()]
    compiler = machine.c_compiler()
    words = [
        machine.cpu_name(),
        f"{torch.get_num_threads()} threads",
        ", ".join(sets) or "no known vector extensions",
        f"compiler {Path(compiler).name}" if compiler else "no C compiler: native kernels unavailable",
        "" if machine.bf16_is_safe() else "torch's bfloat16 crashes on this CPU",
    ]
    return "[dim]" + "; ".join(word for word in words if word) + "[/dim]"


def engine_table(report: Report, images: Tensor) -> Table:
    """Tabulate speed-up and error of every engine tried, fastest first, with the chosen one marked."""
    rows = []
    for tried in sorted(report.candidates, key=lambda tried: -tried.speed_up if tried.module is not None else 1):
        mark = "→ " if tried is report.chosen else "  "
        worked = tried.module is not None
        rows.append(
            (
                mark + tried.engine,
                tried.precision,
                f"{tried.speed_up:.2f} ×" if worked else "–",
                f"{tried.error:.1e}" if tried.error == tried.error else "–",
                tried.reason,
            )
        )
    pixels = f"{images.shape[2]}×{images.shape[3]}"
    cached = ", cached" if report.cached else ""
    title = f"{len(images)} images of {pixels}, {report.threads} threads, relative to the eager model{cached}"
    made = table(title, ("engine", "precision", "speed-up", "error", "remarks"), rows, left=2)
    made.columns[-1].justify, made.columns[-1].no_wrap = "left", False
    return made
