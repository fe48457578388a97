"""vitreous data show"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from vitreous.cli.display import out
from vitreous.data.shapes import Scenes, Shapes

Dataset = Annotated[Literal["shapes"], tyro.conf.Positional]


def show(
    dataset: Dataset,
    output: Path = Path("shapes.png"),
    num_images: int = 24,
    image_size: int = 64,
    seed: int = 0,
    split_rate: float = 0.0,
    occlusion: float = 0.0,
) -> None:
    """Draw a contact sheet of a synthetic dataset: images with class, caption, boxes and instance masks.

    Args:
        dataset: Dataset to draw.
        output: Image file to write.
        num_images: Number of scenes.
        image_size: Side length in pixels.
        seed: Random seed of the scenes.
        split_rate: Fraction of objects that consist of two distant halves.
        occlusion: Radius of a disk over the subject's center, relative to the subject's circumscribed circle.
    """
    if num_images < 1:
        raise ValueError(f"num_images must be at least 1, got {num_images}")
    if not output.parent.is_dir():
        raise ValueError(f"cannot write {output}: there is no folder {output.parent}")
    shapes = Shapes(image_size=image_size, seed=seed, split_rate=split_rate, occlusion=occlusion)
    contact_sheet(shapes.batch(range(num_images)), output)
    out.print(f"{num_images} scenes with class, caption, boxes and masks: {output}")


def contact_sheet(scenes: Scenes, output: Path) -> None:
    """Draw each scene next to its boxes and instance masks, with its class above and its caption below."""
    from matplotlib.figure import Figure

    columns = min(4, len(scenes.images))
    rows = -(-len(scenes.images) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.1 * rows), dpi=110, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for index, caption in enumerate(scenes.captions):
        axis, number = axes.flat[index], scenes.count[index]
        draw_scene(axis, scenes, index)
        objects = f"{number} object{'s' if number > 1 else ''}"
        axis.set_title(f"{Shapes.classes[scenes.labels[index]]}, {objects}", fontsize=8, loc="left")
        axis.text(0, 1.02 * scenes.images.shape[2], caption, fontsize=7, va="top")
    figure.savefig(output)


def draw_scene(axis: Any, scenes: Scenes, index: int) -> None:
    """Draw an image and, to its right, its instance masks with boxes."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colors = [colormaps["tab10"](item)[:3] for item in range(10)]
    image = scenes.images[index].transpose(1, 2, 0) / 255
    masks = np.full(image.shape, 0.12)
    masks[scenes.occluder[index]] = 0.5
    for item, mask in enumerate(scenes.masks[index]):
        masks[mask] = colors[item]
    axis.imshow(np.concatenate([image, masks], axis=1), interpolation="nearest")
    for item, (y0, x0, y1, x1) in enumerate(scenes.boxes[index]):
        if y1 > y0:
            corner = (x0 + image.shape[1] - 0.5, y0 - 0.5)
            axis.add_patch(Rectangle(corner, x1 - x0, y1 - y0, fill=False, edgecolor=colors[item], linewidth=1))
