"""vitreous bench"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from jaxtyping import Float
from rich.table import Table
from torch import Tensor

from vitreous import machine
from vitreous.cli.export import find
from vitreous.cli.show import err, out, table
from vitreous.data.image_files import find_images, open_image
from vitreous.data.transforms import transforms
from vitreous.deploy.accelerate import Report, accelerate
from vitreous.deploy.race import Precision
from vitreous.models.base import Model as AnyModel

Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]


def bench(
    weights: Model,
    images: str = "",
    model: str | None = None,
    batch: int = 8,
    image_size: int | None = None,
    precision: Precision | Literal["auto"] = "auto",
    tolerance: float = 0.02,
    threads: int | None = None,
    fresh: bool = False,
) -> None:
    """How fast a model runs on this machine, in every way there is, and which way vt.accelerate takes.

    Args:
        weights: A weights file of ours, one of others with --model, the name of a public weight, or of a model.
        images: A folder of images to measure the error with; random noise if none is given.
        model: The model of a foreign weights file, such as deit_tiny_16.
        batch: Images at a time.
        image_size: Side in pixels; by itself the model's own.
        precision: Only ways in fp32, bf16, int16 or int8; by itself all of them.
        tolerance: The largest relative error of the logits that is allowed.
        threads: By itself as many as torch takes.
        fresh: Measure again what is remembered from an earlier time.
    """
    if batch < 1:
        raise ValueError(f"--batch must be at least 1, got {batch}")
    if threads is not None:
        torch.set_num_threads(threads)
    net = find(weights, model).eval()
    inputs = example(net, images, batch, image_size)
    err.print(here())
    fast = accelerate(net, inputs, precision, tolerance=tolerance, fresh=fresh)
    out.print(ways(fast.report, inputs))
    out.print(f"fast = vt.accelerate(model, images)  [dim]# takes {fast.report.engine}, {fast.report.precision}[/dim]")


def example(net: AnyModel, images: str, batch: int, image_size: int | None) -> Float[Tensor, "b c y x"]:
    height, width = (image_size, image_size) if image_size else net.spec.preprocess.image_size
    if not images:
        noise = torch.Generator().manual_seed(0)
        return torch.randn(batch, net.config.num_channels, height, width, generator=noise)
    if not Path(images).exists():
        raise ValueError(f"there is no folder or image {images}; --images may be left out")
    prepare = transforms(replace(net.spec.preprocess, image_size=(height, width)))
    found = [prepare(open_image(path)) for path in find_images([images])[:batch]]
    if len(found) < batch:
        raise ValueError(f"{images} holds {len(found)} images; a batch of {batch} needs more, or set --batch")
    return torch.stack(found)


def here() -> str:
    """The machine in one line."""
    sets = [name for name in ("avx2", "avx512f", "avx512_vnni", "amx_tile") if name in machine.cpu_flags()]
    compiler = machine.c_compiler()
    words = [
        machine.cpu_name(),
        f"{torch.get_num_threads()} threads",
        ", ".join(sets) or "no vector instructions known",
        f"compiler {Path(compiler).name}" if compiler else "no C compiler: slower ways only",
        "" if machine.bf16_is_safe() else "torch's bfloat16 would end the process here",
    ]
    return "[dim]" + "; ".join(word for word in words if word) + "[/dim]"


def ways(report: Report, images: Tensor) -> Table:
    rows = []
    for tried in sorted(report.tried, key=lambda tried: -tried.speed_up if tried.module is not None else 1):
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
    known = ", remembered" if report.remembered else ""
    title = f"{len(images)} images of {pixels}, {report.threads} threads, against the plain model{known}"
    made = table(title, ("way", "precision", "speed", "error", "remarks"), rows, left=2)
    made.columns[-1].justify, made.columns[-1].no_wrap = "left", False
    return made
