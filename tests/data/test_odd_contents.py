"""Indices, tars, pickles, tables and specs that say impossible things are refused in one line, and soon."""

import io
import json
import os
import pickle
import struct
import tarfile
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from vitreous.data import table
from vitreous.data.base import Arrays, class_vectors
from vitreous.data.cifar import class_indices, read_pickle
from vitreous.data.image_files import from_high_bit_depth
from vitreous.data.pack import write_shards
from vitreous.data.shard_index import read_index
from vitreous.data.shards import ShardDataset
from vitreous.data.sources import open_data
from vitreous.data.table import open_table
from vitreous.spec import Preprocess


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 600


@pytest.fixture
def packed(tmp_path):
    images = np.zeros((6, 3, 4, 4), dtype=np.uint8)
    write_shards(Arrays(images, np.arange(6) % 2, ("a", "b")), tmp_path / "packed")
    return tmp_path / "packed"


def shard(**changes):
    return lambda index: index["shards"][0].update(changes)


INDICES = [
    (shard(offsets=[1e30] * 6), "an offset or size in 00000.tar is not an integer"),
    (shard(offsets=[10**30] * 6), "the byte range of an image exceeds 00000.tar"),
    (shard(offsets=[-1] * 6), "the byte range of an image exceeds 00000.tar"),
    (shard(sizes=[-5] * 6), "the byte range of an image exceeds 00000.tar"),
    (shard(sizes=["1"] * 6), "is not an integer"),
    (shard(sizes={"a": 1}), "must be lists"),
    (shard(offsets=None), "must be lists"),
    (shard(size=True), "is not an integer"),
    (shard(size=10**40, offsets=[10**30] * 6), "byte range of an image exceeds"),
    (shard(name="../../etc/passwd"), "is no file's name"),
    (shard(name=["a"]), "is no file's name"),
    (shard(more=1), "a shard has other fields"),
    (shard(targets=["a"] * 6), "neither a class index nor a vector of 2 numbers"),
    (shard(targets=[[1]] * 6), "neither a class index nor a vector of 2 numbers"),
    (shard(targets=[[[1], 2]] * 6), "neither a class index nor a vector of 2 numbers"),
    (shard(targets=[[10**400, 0]] * 6), "neither a class index nor a vector of 2 numbers"),
    (shard(targets=[[float("inf"), 0]] * 6), "neither a class index nor a vector of 2 numbers"),
    (shard(targets=[2**80] * 6), "a class index of 00000.tar is out of range"),
    (shard(targets=[True] * 6), "neither a class index"),
    (lambda index: index.update(shards=[]), "it lists no images"),
    (shard(offsets=[], sizes=[], targets=[]), "it lists no images"),
    (lambda index: index.update(shards=[[]]), "a shard has other fields"),
    (lambda index: index.update(shards="x"), "has no list of shards"),
    (lambda index: index.update(classes="ab"), "its classes are not a list of names"),
    (lambda index: index.update(classes=[1, None]), "its classes are not a list of names"),
    (lambda index: index.update(classes=["a", "\ud800"]), "a class name is not valid Unicode"),
    (lambda index: index.update(version=1e400), "has no version"),
    (lambda index: index.update(multi_label="no"), "its multi_label is not a boolean"),
]


@pytest.mark.parametrize(("change", "message"), INDICES)
def test_odd_indices(packed, change, message):
    index = json.loads((packed / "index.json").read_text())
    change(index)
    (packed / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=message) as caught:
        open_data(packed)
    one_line(caught)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 50_000, "null", "[]", "1" * 10_000, "\udcff", "", "{}"])
def test_indices_that_are_none(packed, text):
    (packed / "index.json").write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match="is not a valid shard index") as caught:
        read_index(packed)
    one_line(caught)


def write_tar(path, *members):
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (b"1000000000000", "hold the label 1000000000000; labels must be from 0 to 999,999"),
        (b"9" * 90, "labels must be from 0 to 999,999"),
        (b"--5", "holds '--5', not a class index"),
        (b"\xff\xfe", "not a class index"),
        (b"", "not a class index"),
    ],
)
def test_odd_labels_of_tars(tmp_path, label, message):
    write_tar(tmp_path / "a.tar", ("x.png", b""), ("x.cls", label))
    with pytest.raises(ValueError, match=message) as caught:
        open_data(tmp_path)
    one_line(caught)


def test_damaged_tars_are_read_or_refused(tmp_path):
    """Bounded and seeded: bytes of headers are changed at random."""
    write_tar(tmp_path / "a.tar", *[(f"{n}.{kind}", b"1") for n in range(3) for kind in ("png", "cls")])
    content, rng = (tmp_path / "a.tar").read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        changed = np.frombuffer(content, dtype=np.uint8).copy()
        places = rng.integers(0, 3000, rng.integers(1, 8))
        changed[places] = rng.integers(0, 256, len(places))
        (tmp_path / "a.tar").write_bytes(changed.tobytes())
        (tmp_path / "index.json").unlink(missing_ok=True)
        with suppress(ValueError):  # anything else is an error of ours
            open_data(tmp_path)


CIFAR_LABELS = [[2**80], [-(2**80)], [1.5], ["1"], [None], [[1]], [True], [10], [-1]]


@pytest.mark.parametrize("labels", CIFAR_LABELS)
def test_odd_labels_of_cifar(tmp_path, labels):
    with pytest.raises(ValueError, match=r"batch: .*(is not a class index from 0 to 9|is out of range)") as caught:
        class_indices(labels, 10, tmp_path / "batch")
    one_line(caught)


BATCHES = [
    np.zeros((2, 3073), np.uint8),
    np.zeros((2, 3072), np.float32),
    np.zeros((2, 3, 32, 32), np.uint8),
    np.zeros((), np.uint8),
    np.zeros((2, 3072), object),
    b"bytes",
    None,
]


@pytest.mark.parametrize("data", BATCHES, ids=lambda data: str(getattr(data, "shape", data)))
def test_odd_arrays_of_cifar(tmp_path, data):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        (folder / name).write_bytes(pickle.dumps({"data": data, "labels": [0, 1]}, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(n) for n in range(10)]}))
    with pytest.raises(ValueError, match="does not hold images of 32×32 pixels") as caught:
        open_data(folder)
    one_line(caught)


def test_a_pickle_that_would_fill_memory_with_its_table(tmp_path):
    """LONG_BINPUT with 2³¹: Python would make room for as many objects, 34 GB."""
    (tmp_path / "batch").write_bytes(b"\x80\x02}r" + struct.pack("<I", 2**31) + b".")
    with pytest.raises(ValueError, match="it has the memo index 2,147,483,648"):
        read_pickle(tmp_path / "batch")


@pytest.fixture
def listed(tmp_path):
    for index in range(4):
        Image.new("RGB", (5, 5)).save(tmp_path / f"{index}.png")

    def write(content):
        (tmp_path / "list.csv").write_bytes(content)
        return tmp_path / "list.csv"

    return write


GOOD = "path,label\n0.png,a\n1.png,b\n"
TABLES = [
    (GOOD.encode("utf-16"), "is not UTF-8 text but UTF-16; save it"),
    (GOOD.encode("utf-16-le"), "holds null bytes"),
    (b"path,label\n0.png,a\0\n", "holds null bytes"),
    ("path,label\n0.png,bär\n".encode("cp1252"), "perhaps in Windows-1252 or Latin-1; save it"),
    (b"path,label\n0.png," + b"a" * 3_000_000, "a line of more than 1,048,576 characters"),
    (b'path,label\n0.png,"' + b"a\n" * 200_000, "not a valid CSV"),
    (b"x" * 3_000_000, "a line of more than"),
    (b"\xef\xbb\xbf", "is empty"),
    (b"\n\n  \n", "is empty"),
    (b"path,label\n", "has a header but no rows"),
    (b"path,path,path\n0.png,1.png,a\n", "has duplicate column names: path"),
    (",".join(["c"] * 100_000).encode() + b"\n", "has duplicate column names: c"),
]


@pytest.mark.parametrize(("content", "message"), TABLES, ids=range(len(TABLES)))
def test_odd_tables(listed, content, message):
    with pytest.raises(ValueError, match=message) as caught:
        open_table(listed(content))
    one_line(caught)


def test_paths_of_a_table_may_be_absolute_or_at_home(listed, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    text = f"path,label\n{tmp_path}/0.png,a\n~/1.png,b\n~nobody/1.png,b\n./2.png,a\nsub/../3.png,b\n"
    (tmp_path / "sub").mkdir()
    data = open_table(listed(text.encode())).train
    assert [os.path.basename(data.location(index)) for index in range(len(data))] == [
        "0.png",
        "1.png",
        "2.png",
        "3.png",
    ]


def test_classes_that_are_called_by_long_numbers(listed):
    text = f"path,label\n0.png,{'9' * 5000}\n1.png,{'8' * 5000}\n"
    assert open_table(listed(text.encode())).train.classes == ("8" * 5000, "9" * 5000)


def test_a_folder_is_listed_once_and_not_asked_for_every_row(listed, tmp_path, monkeypatch):
    for index in range(200):
        (tmp_path / "many").mkdir(exist_ok=True)
        (tmp_path / "many" / f"{index}.png").touch()
    rows = [f"many/{index}.png,{'ab'[index % 2]}" for index in range(203)]
    asked = []
    isfile = os.path.isfile
    monkeypatch.setattr(table.os.path, "isfile", lambda path: asked.append(path) or isfile(path))
    splits = open_table(listed("\n".join(["path,label", *rows]).encode()))
    assert len(splits.train) == 200
    assert splits.notes[0].startswith("3 of 203 files are missing")
    assert [os.path.basename(path) for path in asked] == ["200.png", "201.png", "202.png"]


def test_listed_labels_are_kept_as_sets(listed, tmp_path):
    data = open_table(listed(b"path,labels\n0.png,b;a;b\n1.png,\n2.png,c\n")).train
    assert data.labels.tolist() == [(0, 1), (), (2,)]
    assert class_vectors(data, np.arange(3)).tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    write_shards(data, tmp_path / "packed")
    assert np.array_equal(
        class_vectors(ShardDataset(tmp_path / "packed"), np.arange(3)), class_vectors(data, np.arange(3))
    )


SPECS = [
    ({"crop_ratio": 1e-9}, r"crop_ratio must lie in \[0.05, 1\], got 1e-09"),
    ({"crop_ratio": "0.5"}, "crop_ratio must lie in .* got '0.5'"),
    ({"crop_ratio": float("nan")}, "crop_ratio must lie in"),
    ({"mean": (float("nan"),) * 3}, "mean needs a finite number per channel"),
    ({"mean": None}, "mean needs a finite number per channel"),
    ({"mean": (10**400,) * 3}, "mean needs a finite number per channel"),
    ({"std": (float("inf"),) * 3}, "std needs a finite number per channel"),
    ({"std": ("a",) * 3}, "std needs a finite number per channel"),
    ({"std": (1.0, 0.0, 1.0)}, "std > 0"),
    ({"interpolation": ["bicubic"]}, "interpolation must be one of"),
]


@pytest.mark.parametrize(("values", "message"), SPECS)
def test_odd_specs(values, message):
    with pytest.raises(ValueError, match=message) as caught:
        Preprocess(**values)
    one_line(caught)


def test_numbers_that_are_none_become_a_shade_without_a_word():
    signaling = np.array([[0x7FA00000, 0x3F800000], [0x7F800000, 0]], dtype=np.uint32).view(np.float32)
    assert from_high_bit_depth(Image.fromarray(signaling)).size == (2, 2)


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_deep_pixels_are_converted_in_strips(monkeypatch, mode):
    rng = np.random.default_rng(0)
    kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
    image = Image.fromarray((rng.random((50, 30)) * 60_000).astype(kind))
    whole = np.asarray(from_high_bit_depth(image))
    monkeypatch.setattr("vitreous.data.image_files.STRIP_PIXELS", 100)
    assert np.array_equal(np.asarray(from_high_bit_depth(image)), whole)
    assert np.abs(whole / 255 - np.asarray(image, dtype=float) / 65_535).max() < 0.005
