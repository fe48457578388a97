"""Folders of images: what is found, what is left out with a note, and errors that say what to do."""

import numpy as np
import pytest
from PIL import Image

from vitreous.data.base import class_vectors
from vitreous.data.folder import PathDataset, is_image, open_folder


def make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        elif path.suffix in (".png", ".jpg", ""):
            Image.new("RGB", (6, 4), "red").save(path, "PNG")
        else:
            path.write_text("no image")
    return root


def test_class_folders(tmp_path):
    make(tmp_path, "dog/b.png", "dog/deep/a.png", "cat/odd-name", "cat/1.jpg")
    make(tmp_path, "cat/notes.txt", "cat/.hidden.png", ".git/x.png", "__MACOSX/cat/y.png", "loose.png")
    splits = open_folder(tmp_path)
    data = splits.train
    assert data.classes == ("cat", "dog")
    names = [data.location(index).removeprefix(f"{tmp_path}/") for index in range(len(data))]
    assert names == ["cat/1.jpg", "cat/odd-name", "dog/b.png", "dog/deep/a.png"]
    assert class_vectors(data, np.arange(4)).tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    assert data.image(2).size == (6, 4)
    assert splits.valid is None
    assert splits.notes[0] == "1 file is not an image, left out: cat/notes.txt"
    assert "images outside the class folders of" in splits.notes[1]
    assert "left out: loose.png" in splits.notes[1]


@pytest.mark.parametrize("name", ["val", "valid", "validation", "Val"])
def test_splits_of_their_own(tmp_path, name):
    make(tmp_path, "train/cat/1.png", "train/cat/2.png", "train/dog/1.png")
    make(tmp_path, f"{name}/cat/1.png", f"{name}/dog/1.png", "test/cat/1.png", "test/dog/1.png", "papers/a.png")
    splits = open_folder(tmp_path)
    assert [len(part) for part in splits.parts().values()] == [3, 2, 2]
    assert "papers" in splits.notes[0]


def test_trains_are_a_class_too(tmp_path):
    assert open_folder(make(tmp_path, "train/1.png", "car/1.png")).train.classes == ("car", "train")


ERRORS = [
    ([], "is empty; it should hold one folder of images per class"),
    (["a.png"], "move each class into its own folder, or pass a CSV"),
    (["a.txt"], "neither images nor class folders, only a.txt"),
    (["cat/a.png"], "only one class, 'cat'"),
    (["cat/a.png", "dog/", "emu/a.txt"], "no images in these class folders of .*: dog, emu"),
    (["train/a.png", "val/a.png"], "the images are directly in .*train"),
    (
        ["train/cat/1.png", "train/dog/1.png", "val/cat/1.png", "val/wolf/1.png"],
        "only in .*train: dog; only in .*val: wolf",
    ),
    (["train/cat/1.png", "val/cat/1.png", "valid/cat/1.png"], "holds both val and valid"),
]


@pytest.mark.parametrize(("names", "message"), ERRORS)
def test_errors_say_what_to_do(tmp_path, names, message):
    with pytest.raises(ValueError, match=message):
        open_folder(make(tmp_path, *names))


def test_a_subset_keeps_its_order():
    data = PathDataset(["a", "b", "c"], np.array([0, 1, 2]), "xyz").subset(np.array([2, 0]))
    assert [data.location(index) for index in range(2)] == ["c", "a"]
    assert class_vectors(data, np.arange(2)).argmax(1).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, 5]), "label 5 of image 1 is out of range"),
        (np.zeros((2, 4)), r"must be class indices \(n,\) or class vectors \(n, 3\), got float64 \(2, 4\)"),
        (np.array([0]), "got 1 labels for 2 paths"),
    ],
)
def test_labels_that_do_not_fit(labels, message):
    with pytest.raises(ValueError, match=message):
        PathDataset(["a", "b"], labels, "xyz")


def test_a_image_is_known_by_its_ending_or_its_header(tmp_path):
    make(tmp_path, "image-without-ending", "notes.txt")
    assert is_image(str(tmp_path / "image-without-ending"))
    assert is_image(str(tmp_path / "not-even-there.JPEG"))
    assert not is_image(str(tmp_path / "notes.txt"))
