"""vitreous data inspect and pack."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tyro
from PIL import Image

from vitreous.cli.inspect import inspect, pack
from vitreous.data.base import Arrays, one_hot
from vitreous.data.pack import write_shards
from vitreous.data.sources import open_data


@pytest.fixture
def photos(tmp_path):
    for number, name in enumerate(("cat", "dog [brown]", "$5$")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(5):
            pixels = np.random.default_rng([index, number]).integers(0, 256, (30, 20 + index, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.png")
    (tmp_path / "photos" / "cat" / "broken.jpg").write_text("no image")
    shutil.copy(tmp_path / "photos" / "cat" / "0.png", tmp_path / "photos" / "$5$" / "copy.png")
    return tmp_path / "photos"


def test_inspect(capsys, photos, tmp_path):
    inspect(str(photos), tmp_path / "sheet.png", valid_share=0)
    out = capsys.readouterr().out
    assert "dog [brown]" in out
    assert "1 of 17 images are unreadable" in out
    assert "broken.jpg: not an image" in out
    assert "Duplicate images: 1 (across splits: 0, with conflicting labels: 1)" in out
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert len(set(sheet.convert("L").tobytes())) > 100  # images were drawn


def test_inspect_many_classes(capsys, tmp_path):
    data = Arrays(np.zeros((100, 1, 8, 8), np.uint8), one_hot(np.r_[:50, :50], 50), [f"kind {n}" for n in range(50)])
    write_shards(data, tmp_path / "packed")
    inspect(str(tmp_path / "packed"), tmp_path / "sheet.png", valid_share=0, per_class=2)
    out = capsys.readouterr().out
    assert "Images per class (50 classes, 40 shown)" in out
    assert "Contact sheet of 30 of 50 classes" in out


def test_pack_gives_the_same_images(capsys, photos, tmp_path):
    pack(str(photos), tmp_path / "packed", shard_size=4)
    assert "17 images in 5 tar files" in capsys.readouterr().out
    before, after = (open_data(path, valid_share=0).train for path in (photos, tmp_path / "packed"))
    assert before.classes == after.classes
    assert [before.content(index) for index in range(17)] == [after.content(index) for index in range(17)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": Path("no/sheet.png")}, "there is no folder no"),
        ({"per_class": 0}, "per_class must lie in"),
        ({"per_class": 10**12}, r"\[1, 100\], got 1"),
    ],
)
def test_errors_come_before_the_work(photos, options, message):
    with pytest.raises(ValueError, match=message):
        inspect(str(photos), **options)


def test_unwritable_outputs(photos, tmp_path):
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(ValueError, match=r"cannot pack into .*taken: File exists"):
        pack(str(photos), tmp_path / "taken")
    (tmp_path / "sheet.png").mkdir()
    with pytest.raises(ValueError, match=r"cannot write .*sheet.png: Is a directory"):
        inspect(str(photos), tmp_path / "sheet.png")


@pytest.mark.parametrize(("command", "words"), [(inspect, "contact sheet"), (pack, "tar shards")])
def test_help(capsys, command, words):
    with pytest.raises(SystemExit):
        tyro.cli(command, args=["--help"])
    assert words in capsys.readouterr().out
