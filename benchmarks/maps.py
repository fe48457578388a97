"""What every method calls important, on scenes whose subject is known: an image of images.

    python -m benchmarks.maps RUN     writes docs/images/maps.png and maps.json

RUN is the folder, or the model file, of a model that has learned Shapes. The scenes are the first of the test set that
the model answers rightly and that hold another object beside the subject; maps are for the subject's class.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import Normalize

import vitreous as vt
from benchmarks.record import write_record
from vitreous.data.scenes import TEST_SEED
from vitreous.draw.overlay import blended, image_at
from vitreous.draw.sheet import draw_sheet
from vitreous.explain.attribution import cell_size, methods_for
from vitreous.explain.faithfulness import on_cells, pointing
from vitreous.explain.score import class_score

IMAGES = Path(__file__).parents[1] / "docs" / "images"
NUM_SCENES = 5
ENLARGED = 3  # pixels of the figure to one of the scene


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = vt.load(run / "model.safetensors" if run.is_dir() else run).eval()
    own = model.spec.preprocess
    scenes = vt.Shapes(200, own.image_size, seed=TEST_SEED).batch(range(200))
    mean, std = (torch.tensor(values)[:, None, None] for values in (own.mean, own.std))
    images = (torch.from_numpy(scenes.images).float() / 255 - mean) / std
    labels = torch.from_numpy(scenes.labels)
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).numpy()
    chosen = torch.from_numpy(np.flatnonzero(right & (scenes.count > 1))[:NUM_SCENES])
    images, labels = images[chosen], labels[chosen]
    masks = torch.from_numpy(scenes.masks[:, 0])[chosen]
    cell = cell_size(model, own.image_size)
    heats = {
        name: on_cells(method(model, images, class_score(labels)).detach(), own.image_size, cell)
        for name, method in methods_for(model).items()
    }
    tiles = []
    for index, number in enumerate(chosen.tolist()):
        image = np.repeat(np.repeat(scenes.images[number], ENLARGED, axis=1), ENLARGED, axis=2)
        tiles.append(image_at(image))
        for heat in heats.values():
            values = heat[index].clamp(min=0)
            tiles.append(blended(image, values, norm=Normalize(0.0, float(values.max()) or 1.0, clip=True)))
    names = [vt.Shapes.classes[label] for label in labels.tolist()]
    titles = ["", *heats] + [""] * (len(tiles) - 1 - len(heats))
    sheet = draw_sheet(tiles, titles, columns=1 + len(heats), side=1.25, rows=names)
    sheet.figure.savefig(IMAGES / "maps.png", dpi=90)
    hits = {name: pointing(heat, masks).tolist() for name, heat in heats.items()}
    write_record(
        IMAGES / "maps.json", "benchmarks.maps", 0, scenes=chosen.tolist(), subjects=names, on_the_subject=hits
    )


if __name__ == "__main__":
    main()
