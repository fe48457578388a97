"""Tar shards give back what went in, in an order that is exact and local; damage is noticed before it is read."""

import io
import json
import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from vitreous.data.base import Arrays, class_vectors, one_hot
from vitreous.data.folder import PathDataset
from vitreous.data.image_files import BadImage
from vitreous.data.pack import write_shards
from vitreous.data.shards import SHUFFLE_WINDOW, ShardDataset
from vitreous.data.sources import open_data
from vitreous.samples import MultiLabels

RNG = np.random.default_rng(0)


def arrays(count=50, channels=3):
    images = RNG.integers(0, 256, (count, channels, 6, 4), dtype=np.uint8)
    return Arrays(images, one_hot(np.arange(count) % 3, 3), ("a", "b", "c"))


def pixels(image):
    values = np.asarray(image)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_come_back(tmp_path, channels):
    data = arrays(channels=channels)
    write_shards(data, tmp_path / "packed", shard_size=20)
    assert sorted(path.name for path in (tmp_path / "packed").iterdir()) == [
        "00000.tar", "00001.tar", "00002.tar", "index.json"
    ]  # fmt: skip
    packed = open_data(tmp_path / "packed", valid_share=0).train
    assert packed.classes == data.classes
    assert np.array_equal(class_vectors(packed, np.arange(50)), class_vectors(data, np.arange(50)))
    with ThreadPoolExecutor(4) as pool:
        unpacked = list(pool.map(packed.image, range(50)))
    assert all(np.array_equal(pixels(found), image) for found, image in zip(unpacked, data.images, strict=True))


def test_files_go_in_byte_for_byte(tmp_path):
    for index in range(4):
        noise = RNG.integers(0, 256, (9, 9 + index, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{index}.jpg", "JPEG" if index else "PNG")
    (tmp_path / "broken.jpg").write_text("no image")
    paths = [*sorted(tmp_path.glob("?.jpg")), tmp_path / "broken.jpg"]
    targets = np.array([[1, 0], [0, np.nan], [1, 1], [0, 0], [1, 0]], dtype=np.float32)
    write_shards(PathDataset(paths, targets, ("x", "y"), target=MultiLabels), tmp_path / "packed", shard_size=3)
    packed = ShardDataset(tmp_path / "packed")
    assert [packed.content(index) for index in range(5)] == [path.read_bytes() for path in paths]
    assert np.array_equal(class_vectors(packed, np.arange(5)), targets, equal_nan=True)
    assert packed.target is MultiLabels
    assert type(packed.targets(np.arange(2))) is MultiLabels
    with tarfile.open(tmp_path / "packed" / "00000.tar") as tar:
        assert tar.getnames() == ["000000000.png", "000000001.jpg", "000000002.jpg"]
    with pytest.raises(BadImage, match="not an image"):
        packed.image(4)


def test_packing_twice_gives_the_same_bytes_and_overwrites_nothing(tmp_path):
    data = arrays(5)
    for name in ("one", "two"):
        write_shards(data, tmp_path / name)
    for name in ("00000.tar", "index.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    with pytest.raises(ValueError, match="already holds shards"):
        write_shards(data, tmp_path / "one")
    with pytest.raises(ValueError, match="shard_size must be at least 1"):
        write_shards(data, tmp_path / "three", shard_size=0)


def test_an_interrupted_packing_leaves_no_index(tmp_path):
    def stop(done, total):
        if done == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shards(arrays(), tmp_path, shard_size=10, progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000.tar"]


@pytest.fixture
def packed(tmp_path):
    write_shards(arrays(200), tmp_path / "packed", shard_size=10)
    return ShardDataset(tmp_path / "packed")


def test_an_epoch_is_every_image_once_and_reads_few_shards_at_a_time(packed):
    order = packed.order(1, 2)
    assert sorted(order) == list(range(200))
    assert np.array_equal(order, packed.order(1, 2))
    assert not np.array_equal(order, packed.order(1, 3))
    assert not np.array_equal(order, packed.order(2, 2))
    windows = [
        set(packed.spans[order[start : start + 10 * SHUFFLE_WINDOW], 0]) for start in range(0, 200, 10 * SHUFFLE_WINDOW)
    ]
    assert [len(shards) for shards in windows] == [SHUFFLE_WINDOW] * 5
    assert len(set(packed.spans[order[: 5 * SHUFFLE_WINDOW], 0])) > 1


def test_a_subset_and_a_copy_in_another_process(packed):
    part = packed.subset(np.array([150, 3, 77]))
    part.image(0)
    copied = pickle.loads(pickle.dumps(part))
    assert [copied.content(index) for index in range(3)] == [packed.content(index) for index in (150, 3, 77)]
    assert class_vectors(copied, np.arange(3)).argmax(1).tolist() == [0, 0, 2]
    assert sorted(copied.order(0, 0)) == [0, 1, 2]


def spoil(folder, kind):
    index = json.loads((folder / "index.json").read_text())
    first = index["shards"][0]
    if kind == "gone":
        (folder / "00001.tar").unlink()
    elif kind == "cut off":
        (folder / "00001.tar").write_bytes((folder / "00001.tar").read_bytes()[:3000])
    elif kind == "label":
        first["targets"][0] = 7
    elif kind == "lengths":
        first["sizes"] = [1]
    elif kind == "version":
        index["version"] = 99
    elif kind == "lacking":
        del index["classes"]
    text = json.dumps(index)
    (folder / "index.json").write_text(text if kind != "no json" else text[:-20])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("gone", "00001.tar is listed in index.json but missing"),
        ("cut off", "00001.tar has 3,000 bytes, but index.json lists .* fetch or pack"),
        ("no json", "is not a valid shard index"),
        ("label", "label 7 of image 0 is out of range"),
        ("version", "version 99, this Vitreous reads up to 1"),
        ("lengths", "differ in length"),
        ("lacking", "is not a valid shard index"),
    ],
)
def test_damage_is_named(tmp_path, kind, message):
    write_shards(arrays(20), tmp_path, shard_size=10)
    spoil(tmp_path, kind)
    with pytest.raises(ValueError, match=message):
        open_data(tmp_path)


def test_splits_below(tmp_path):
    for name, count in (("train", 30), ("val", 20)):
        write_shards(arrays(count), tmp_path / name)
    assert [len(part) for part in open_data(tmp_path).parts().values()] == [30, 20]


def write_tar(path, members):
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def png(shade):
    file = io.BytesIO()
    Image.new("L", (3, 3), shade).save(file, "PNG")
    return file.getvalue()


def webdataset(folder, labels):
    for number, own in enumerate(labels):
        members = {}
        for key, label in enumerate(own):
            name = f"deep/{number}-{key}"
            members |= {
                f"{name}.png": png(10 * number + key),
                f"{name}.cls": str(label).encode(),
                f"{name}.json": b"{}",
            }
        write_tar(folder / f"part-{number}.tar", members)


def test_tars_of_webdataset(tmp_path):
    webdataset(tmp_path / "train", [[0, 2], [1, 1, 0]])
    webdataset(tmp_path / "val", [[1, 0]])
    for notes in (2, 0):  # the second time the indices are there
        splits = open_data(tmp_path)
        assert len(splits.notes) == notes
        assert splits.train.classes == splits.valid.classes == ("0", "1", "2")
        assert class_vectors(splits.train, np.arange(5)).argmax(1).tolist() == [0, 2, 1, 1, 0]
        shades = [splits.train.image(index).getpixel((0, 0)) for index in range(5)]
        assert shades == [0, 1, 10, 11, 12]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.png": b""}, "a.png has no label; expected a member a.cls"),
        ({"a.png": b"", "a.cls": b"cat"}, "a.cls holds 'cat', not a class index"),
        ({"a.png": b"", "a.cls": b"-1"}, "labels must be from 0"),
        ({"a.txt": b""}, "hold no labeled images"),
    ],
)
def test_tars_that_are_no_data(tmp_path, members, message):
    write_tar(tmp_path / "x.tar", members)
    with pytest.raises(ValueError, match=message):
        open_data(tmp_path)


def test_a_tar_that_is_none(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"no tar" * 500)
    with pytest.raises(ValueError, match="is not an uncompressed tar file, or is damaged"):
        open_data(tmp_path)
