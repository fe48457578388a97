"""Heat maps of every explanation method on scenes with a known subject.

    python -m benchmarks.maps RUN     writes docs/images/maps.png and maps.json

RUN is the folder, or the model file, of a model trained on Shapes. The scenes are the first of the test set that the
model classifies correctly and that contain another object besides the subject; maps explain the subject's class.
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
from vitreous.draw.overlay import blend_heat, displayable
from vitreous.draw.sheet import draw_sheet
from vitreous.explain.attribution import cell_size, methods_for
from vitreous.explain.faithfulness import cell_means, pointing
from vitreous.explain.score import class_score

IMAGES = Path(__file__).parents[1] / "docs" / "images"
NUM_SCENES = 5
ENLARGED = 3  # figure pixels per scene pixel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = vt.load(run / "model.safetensors" if run.is_dir() else run).eval()
    preprocess = model.spec.preprocess
    scenes = vt.Shapes(200, preprocess.image_size, seed=TEST_SEED).batch(range(200))
    mean, std = (torch.tensor(values)[:, None, None] for values in (preprocess.mean, preprocess.std))
    images = (torch.from_numpy(scenes.images).float() / 255 - mean) / std
    labels = torch.from_numpy(scenes.labels)
    with torch.no_grad():
        correct = (model(images).argmax(1) == labels).numpy()
    chosen = torch.from_numpy(np.flatnonzero(correct & (scenes.count > 1))[:NUM_SCENES])
    images, labels = images[chosen], labels[chosen]
    masks = torch.from_numpy(scenes.masks[:, 0])[chosen]
    cell = cell_size(model, preprocess.image_size)
    heats = {
        name: cell_means(method(model, images, class_score(labels)).detach(), preprocess.image_size, cell)
        for name, method in methods_for(model).items()
    }
    tiles = []
    for index, number in enumerate(chosen.tolist()):
        image = np.repeat(np.repeat(scenes.images[number], ENLARGED, axis=1), ENLARGED, axis=2)
        tiles.append(displayable(image))
        for heat in heats.values():
            values = heat[index].clamp(min=0)
            tiles.append(blend_heat(image, values, norm=Normalize(0.0, float(values.max()) or 1.0, clip=True)))
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
