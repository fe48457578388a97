"""vitreous export"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.markup import escape
from rich.table import Table

from vitreous.cli.show import err, out, size, table
from vitreous.deploy.export import TOLERANCE, Exported, Sizes
from vitreous.deploy.export import export as write
from vitreous.deploy.formats import FORMATS, format_of
from vitreous.models import MODELS, create_model
from vitreous.models.base import Model as AnyModel
from vitreous.weights.load import load

Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
Output = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUTPUT")]


def export(
    weights: Model,
    output: Output,
    model: str | None = None,
    format: Literal["onnx", "aoti"] | None = None,
    image_size: tuple[int, ...] = (),
    sizes: Sizes = "auto",
    tolerance: float = TOLERANCE,
) -> None:
    """Write a model as a file that runs without Vitreous, and refuse it unless it computes the same.

    Args:
        weights: A weights file of ours, one of others with --model, the name of a public weight, or of a model.
        output: The file to write: .onnx for any runtime, .pt2 for a package compiled for this kind of machine.
        model: The model of a foreign weights file, such as deit_tiny_16.
        format: By itself what the ending of the file's name says.
        image_size: One side in pixels, or height and width; by itself the model's own.
        sizes: Height and width: any tries to leave them free even if it takes minutes, fixed does not try, auto knows.
        tolerance: The largest relative error that is still called the same.
    """
    FORMATS[format_of(output, format)].check()
    if len(image_size) > 2:
        raise ValueError(f"--image-size takes one side, or height and width; got {len(image_size)} numbers")
    net = find(weights, model)
    sides = (image_size[0], image_size[-1]) if image_size else None
    with err.status("exporting, and comparing with the original"):
        made = write(net, output, format=format, image_size=sides, sizes=sizes, tolerance=tolerance)
    out.print(checks(made))
    path, error = escape(str(made.path)), f"{made.error:.1e} of {tolerance:.0e}"
    out.print(f"[bold]{path}[/bold]  {size(made.num_bytes)}, largest error {error}")
    out.print(height_and_width(made))
    out.print("\n" + usage(made), markup=False, soft_wrap=True)


def find(weights: str, model: str | None) -> AnyModel:
    """A trained model, or by its bare name one as it is before training, for those who ask what it would cost."""
    if weights in MODELS and not Path(weights).exists():
        err.print(f"{weights} is the name of a model without weights: its answers mean nothing yet", style="yellow")
        torch.manual_seed(0)
        return create_model(weights)
    return load(weights, model=model)


def checks(made: Exported) -> Table:
    rows = [
        (f"{check.batch}", f"{check.image_size[0]}×{check.image_size[1]}", f"{check.error:.1e}")
        for check in made.checks
    ]
    return table("Beside the original", ("batch", "pixels", "relative error"), rows)


def height_and_width(made: Exported) -> str:
    if made.multiple_of is not None:
        down, across = made.multiple_of
        return f"It takes any batch, and any height and width that are multiples of {down}×{across} pixels."
    height, width = made.image_size
    return f"It takes any batch; height and width are fixed at {height}×{width}: {made.why_fixed}."


def usage(made: Exported) -> str:
    """Three lines that run the file elsewhere."""
    if made.format == "onnx":
        return (
            "import onnxruntime\n"
            f'session = onnxruntime.InferenceSession("{made.path}")\n'
            '(logits,) = session.run(None, {"images": images})  # float32 (b, c, height, width)\n'
            'session.get_modelmeta().custom_metadata_map["preprocess"]  # and "labels": how to prepare images'
        )
    return (
        "import torch\n"
        f'model = torch._inductor.aoti_load_package("{made.path}")\n'
        "logits = model(images)  # float32 (b, c, height, width)\n"
        'model.get_metadata()["preprocess"]  # and "labels": how to prepare images'
    )
