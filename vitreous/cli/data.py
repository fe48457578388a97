"""vitreous data show"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from vitreous.cli.show import out
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
    """Draw a contact sheet: pictures with their class, caption, boxes and instance masks.

    Args:
        dataset: Which dataset.
        output: The picture to write.
        num_images: How many scenes.
        image_size: Pixels a side.
        seed: Another seed, other scenes.
        split_rate: Share of objects made of two distant halves.
        occlusion: Share of the subject that an occluder hides.
    """
    if num_images < 1:
        raise ValueError(f"num_images must be at least 1, got {num_images}")
    shapes = Shapes(image_size=image_size, seed=seed, split_rate=split_rate, occlusion=occlusion)
    contact_sheet(shapes.batch(range(num_images)), output)
    out.print(f"{num_images} scenes with class, caption, boxes and masks: {output}")


def contact_sheet(scenes: Scenes, output: Path) -> None:
    """Each scene twice: as it is, under its class and caption, and with boxes over its instance masks."""
    from matplotlib.figure import Figure

    columns = min(4, len(scenes.images))
    rows = -(-len(scenes.images) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.05 * rows), dpi=110, layout="constrained")
    axes = figure.subplots(rows, 2 * columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for index, (image, caption) in enumerate(zip(scenes.images, scenes.captions, strict=True)):
        row, column = divmod(index, columns)
        left, right = axes[row, 2 * column], axes[row, 2 * column + 1]
        left.imshow(image.transpose(1, 2, 0), interpolation="nearest")
        left.set_title(f"{Shapes.classes[scenes.labels[index]]} · {scenes.count[index]}", fontsize=8, loc="left")
        left.text(0, 1.02 * image.shape[1], caption, fontsize=6, va="top")
        draw_instances(right, scenes, index)
    figure.savefig(output)


def draw_instances(axis: Any, scenes: Scenes, index: int) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colours = [colormaps["tab10"](item)[:3] for item in range(10)]
    picture = np.full((*scenes.instances[index].shape, 3), 0.12)
    picture[scenes.occluder[index]] = 0.5
    for item, mask in enumerate(scenes.masks[index]):
        picture[mask] = colours[item]
    axis.imshow(picture, interpolation="nearest")
    for item, (y0, x0, y1, x1) in enumerate(scenes.boxes[index]):
        if y1 > y0:
            box = Rectangle((x0 - 0.5, y0 - 0.5), x1 - x0, y1 - y0, fill=False, edgecolor=colours[item], linewidth=1)
            axis.add_patch(box)
