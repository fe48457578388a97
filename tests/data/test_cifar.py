"""CIFAR in its authors' layout, made small here; pickles that carry code are refused, not run."""

import os
import pickle

import numpy as np
import pytest

from vitreous.data.cifar import open_cifar
from vitreous.data.sources import open_data

RNG = np.random.default_rng(0)


def batch(key, num_classes):
    pixels = RNG.integers(0, 256, (10, 3072), dtype=np.uint8)
    return {"data": pixels, key: [index % num_classes for index in range(10)]}


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


@pytest.fixture
def cifar10(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        write(folder / name, batch("labels", 10))
    write(folder / "batches.meta", {"label_names": [f"kind {number}" for number in range(10)]})
    return folder


def test_cifar10(cifar10):
    splits = open_cifar(cifar10)
    assert splits.train.images.shape == (50, 3, 32, 32)
    assert len(splits.test) == 10
    assert splits.train.classes[3] == "kind 3"
    assert splits.train.all_targets.values.argmax(1).tolist() == list(range(10)) * 5
    third = pickle.loads((cifar10 / "data_batch_3").read_bytes())["data"]
    assert np.array_equal(splits.train.images[20:30].reshape(10, -1), third)


def test_cifar10_from_the_folder_above_with_validation(cifar10):
    splits = open_data(cifar10.parent, valid_share=0.2)
    assert [len(part) for part in splits.parts().values()] == [40, 10, 10]


def test_cifar100_has_fine_labels(tmp_path):
    folder = tmp_path / "cifar-100-python"
    for name in ("train", "test"):
        write(folder / name, {**batch("fine_labels", 100), "coarse_labels": [0] * 10})
    names = [f"fine {number}" for number in range(100)]
    write(folder / "meta", {"fine_label_names": names, "coarse_label_names": ["coarse"]})
    splits = open_data(tmp_path, valid_share=0)
    assert splits.train.all_targets.values.shape == (10, 100)
    assert splits.train.classes == tuple(names)
    assert splits.valid is None


class Bomb:
    def __init__(self, *command):
        self.command = command

    def __reduce__(self):
        return self.command


def test_no_code_is_run(cifar10, tmp_path):
    write(cifar10 / "data_batch_2", {"data": Bomb(os.mkdir, (str(tmp_path / "boom"),)), "labels": []})
    with pytest.raises(ValueError, match=r"data_batch_2 .* refers to \w+\.mkdir, which Vitreous never runs"):
        open_cifar(cifar10)
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("dangerous", [eval, exec, getattr, os.system, np.load, np.frombuffer])
def test_only_what_arrays_need_is_allowed(cifar10, dangerous):
    write(cifar10 / "test_batch", Bomb(dangerous, ("1",)))
    with pytest.raises(ValueError, match="which Vitreous never runs"):
        open_cifar(cifar10)


def spoil(folder, kind):
    path = folder / "data_batch_4"
    content = path.read_bytes()
    whole = pickle.loads(content)
    changed = {
        "empty": lambda: path.write_bytes(b""),
        "cut off": lambda: path.write_bytes(content[:5000]),
        "text": lambda: path.write_text("no pickle"),
        "gone": path.unlink,
        "a list": lambda: write(path, [1, 2]),
        "no data": lambda: write(path, {"labels": []}),
        "few labels": lambda: write(path, {**whole, "labels": [1]}),
        "wrong labels": lambda: write(path, {**whole, "labels": [10] * 10}),
        "no names": lambda: write(folder / "batches.meta", {}),
    }
    changed[kind]()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("empty", "data_batch_4 is damaged"),
        ("cut off", "data_batch_4 is damaged"),
        ("text", "data_batch_4 is damaged"),
        ("gone", "lacks data_batch_4; unpack the published archive again"),
        ("a list", "expected a dictionary, got list"),
        ("no data", "does not hold images of 32×32 pixels"),
        ("few labels", "does not hold a label for each of its 10 images"),
        ("wrong labels", "data_batch_4: label 10 of image 0 is out of range"),
        ("no names", "does not list the class names"),
    ],
)
def test_damage_is_named(cifar10, kind, message):
    spoil(cifar10, kind)
    with pytest.raises(ValueError, match=message):
        open_data(cifar10.parent)


def test_both_in_one_folder(cifar10):
    (cifar10.parent / "cifar-100-python").mkdir()
    with pytest.raises(ValueError, match="holds both"):
        open_data(cifar10.parent)
