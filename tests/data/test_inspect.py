"""Inspection finds what is wrong with a dataset: every kind of trouble is planted here and found again."""

import shutil

import numpy as np
import pytest
from PIL import Image

from vitreous.data.base import Arrays, one_hot
from vitreous.data.inspect import inspect
from vitreous.data.sources import open_data
from vitreous.data.splits import Splits

RNG = np.random.default_rng(0)


def noise(path, size=(30, 20)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(path)


@pytest.fixture
def troubled(tmp_path):
    for split, count in (("train", 6), ("val", 2)):
        for name in ("cat", "dog"):
            for index in range(count):
                noise(tmp_path / split / name / f"{index}.png")
    noise(tmp_path / "train/cat/long.png", (200, 20))
    noise(tmp_path / "train/dog/tiny.png", (4, 4))
    (tmp_path / "train/dog/broken.png").write_bytes((tmp_path / "train/dog/0.png").read_bytes()[:300])
    shutil.copy(tmp_path / "train/cat/0.png", tmp_path / "train/dog/cat-0.png")
    Image.open(tmp_path / "train/dog/1.png").save(tmp_path / "val/dog/other-format.bmp")
    shutil.copy(tmp_path / "train/dog/2.png", tmp_path / "train/dog/copy.png")
    return tmp_path


def test_every_trouble_is_found(troubled):
    steps = []
    found = inspect(open_data(troubled), progress=lambda *step: steps.append(step))
    assert found.totals == {"train": 17, "valid": 5}
    assert {name: counts.tolist() for name, counts in found.counts.items()} == {"train": [7, 10], "valid": [2, 3]}
    assert (found.heights, found.widths) == ((4, 20, 20), (4, 30, 200))
    assert [record.location.rpartition("/")[2] for record in found.elongated] == ["long.png"]
    assert [record.size for record in found.undersized] == [(4, 4)]
    assert [(record.split, record.broken[:7]) for record in found.broken] == [("train", "damaged")]
    kinds = [(one.between_splits, one.contradictory, one.labels) for one in found.duplicates]
    assert kinds == [
        (True, False, ("dog", "dog")),
        (False, True, ("cat", "dog")),
        (False, False, ("dog", "dog")),
    ]
    assert steps[-1] == (22, 22)


def test_pixels_are_inspected_too():
    images = RNG.integers(0, 256, (600, 1, 5, 4), dtype=np.uint8)
    images[580] = images[3]
    targets = one_hot([0] * 599 + [1], 3)
    data = Arrays(images, targets, "abc")
    found = inspect(Splits(data.subset(np.arange(500)), data.subset(np.arange(500, 600))))
    assert [[record.index for record in one.records] for one in found.duplicates] == [[3, 80]]
    assert found.duplicates[0].between_splits
    assert found.heights == (5, 5, 5)
    assert found.imbalance == 500
    assert not found.broken


def test_the_same_bytes_in_another_shape_are_another_image():
    flat = np.arange(12, dtype=np.uint8)
    train, valid = (Arrays(flat.reshape(1, 1, *shape), one_hot([0], 2), "ab") for shape in ((3, 4), (4, 3)))
    assert inspect(Splits(train, valid)).duplicates == []
