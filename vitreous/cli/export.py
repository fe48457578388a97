"""vitreous export"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.markup import escape
from rich.table import Table

from vitreous.cli.arguments import Architecture, WeightsOrModel, defaults_to
from vitreous.cli.display import err, out, size, table
from vitreous.deploy.export import TOLERANCE, Exported, Sizes
from vitreous.deploy.export import export as write
from vitreous.deploy.formats import FORMATS, format_of
from vitreous.models import MODELS, create_model
from vitreous.models.base import Model
from vitreous.weights.load import load

Output = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUTPUT")]


def export(
    weights: WeightsOrModel,
    output: Output,
    model: Architecture = None,
    format: Annotated[Literal["onnx", "aoti"] | None, defaults_to("by the extension of OUTPUT")] = None,
    image_size: Annotated[tuple[int, ...], defaults_to("the model's own")] = (),
    sizes: Sizes = "auto",
    tolerance: float = TOLERANCE,
) -> None:
    """Export a model to a file that runs without Vitreous, and verify its outputs against the original.

    Args:
        output: File to write: .onnx for any ONNX runtime, .pt2 for a package compiled for this CPU type.
        format: File format.
        image_size: Side length in pixels, or height and width.
        sizes: Dynamic height and width: any always tries, which can take minutes; fixed never tries; auto decides.
        tolerance: Largest allowed relative error of the exported model's outputs.
    """
    FORMATS[format_of(output, format)].check()
    if len(image_size) > 2:
        raise ValueError(f"--image-size takes one side length, or height and width; got {len(image_size)} numbers")
    net = load_or_create(weights, model)
    sides = (image_size[0], image_size[-1]) if image_size else None
    with err.status("exporting and verifying"):
        made = write(net, output, format=format, image_size=sides, sizes=sizes, tolerance=tolerance)
    out.print(check_table(made))
    path, error = escape(str(made.path)), f"{made.error:.1e} (tolerance {tolerance:.0e})"
    out.print(f"[bold]{path}[/bold]  {size(made.num_bytes)}, largest relative error {error}")
    out.print(input_shapes(made))
    out.print("\n" + usage(made), markup=False, soft_wrap=True)


def load_or_create(weights: str, model: str | None) -> Model:
    """Load a checkpoint, or create a model with random weights from its bare name."""
    if weights in MODELS and not Path(weights).exists():
        err.print(
            f"{weights} is a model name without weights: it is initialized at random, its predictions are meaningless",
            style="yellow",
        )
        torch.manual_seed(0)
        return create_model(weights)
    return load(weights, model=model)


def check_table(made: Exported) -> Table:
    rows = [
        (f"{check.batch}", f"{check.image_size[0]}×{check.image_size[1]}", f"{check.error:.1e}")
        for check in made.checks
    ]
    return table("Comparison with the original", ("batch size", "pixels", "relative error"), rows)


def input_shapes(made: Exported) -> str:
    """Describe the batch sizes and image sizes that the file accepts."""
    if made.multiple_of is not None:
        down, across = made.multiple_of
        return f"Input: any batch size, any height and width that are multiples of {down}×{across} pixels."
    height, width = made.image_size
    return f"Input: any batch size; height and width are fixed at {height}×{width}: {made.why_fixed}."


def usage(made: Exported) -> str:
    """Return a snippet that runs the exported file."""
    if made.format == "onnx":
        return (
            "import onnxruntime\n"
            f'session = onnxruntime.InferenceSession("{made.path}")\n'
            '(logits,) = session.run(None, {"images": images})  # float32 (b, c, height, width)\n'
            'session.get_modelmeta().custom_metadata_map["preprocess"]  # and "labels"'
        )
    return (
        "import torch\n"
        f'model = torch._inductor.aoti_load_package("{made.path}")\n'
        "logits = model(images)  # float32 (b, c, height, width)\n"
        'model.get_metadata()["preprocess"]  # and "labels"'
    )
