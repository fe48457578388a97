"""A resumed run checks its data: harmless changes are reported, changes that would invalidate scores are errors."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.train.runs import RECIPE
from vitreous.data.base import Arrays, one_hot
from vitreous.files import write_atomically
from vitreous.runs.fingerprint import Fingerprint, compare_fingerprints, fingerprint, split_fingerprint
from vitreous.runs.prepare import prepare_run
from vitreous.runs.recipe import DataConfig
from vitreous.runs.run import open_run_folder


def draw(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def photos(tmp_path):
    for number, name in enumerate(("bee", "cat", "dog")):
        for index in range(10):
            draw(tmp_path / "photos" / name / f"{index}.png", 100 * number + index)
    return tmp_path / "photos"


def opened(source, folder, *, resume=True):
    recipe = replace(RECIPE, data=DataConfig(str(source), valid_share=0.3))
    prepared = prepare_run(recipe)
    opened = open_run_folder(folder, recipe, prepared, resume=resume)
    (folder / "model.safetensors").touch()  # marks the folder as a run
    return opened, {prepared.valid.location(index).removeprefix(f"{source}/") for index in range(len(prepared.valid))}


@pytest.fixture
def run(photos, tmp_path):
    """A run folder, and the names of its validation images."""
    return tmp_path / "run", opened(photos, tmp_path / "run", resume=False)[1]


def training_image(photos, valid, folder="bee"):
    return next(path for path in sorted((photos / folder).iterdir()) if f"{folder}/{path.name}" not in valid)


def test_no_note_for_unchanged_data(photos, run, tmp_path):
    before = (run[0] / "data.json").read_bytes()
    for path in photos.rglob("*.png"):
        path.touch()
    assert opened(photos, run[0])[0].notes == []
    assert (run[0] / "data.json").read_bytes() == before


def test_a_copy_elsewhere_counts_as_the_same(photos, run, tmp_path):
    shutil.copytree(photos, tmp_path / "copy")
    (note,), valid = opened(tmp_path / "copy", run[0])[0].notes, run[1]
    assert note == f"the same data as before, moved from {photos} to {tmp_path / 'copy'}"
    assert opened(tmp_path / "copy", run[0])[1] == valid


def add(photos, valid):
    """Add training images, anywhere in the order of names."""
    for index in range(40):
        draw(photos / "bee" / f"!{index}.png", index)
    again = opened(photos, photos.parent / "other", resume=False)[1]
    for name in again - valid:
        (photos / name).unlink()


def remove(photos, valid):
    training_image(photos, valid).unlink()


@pytest.mark.parametrize(
    ("change", "words"),
    [(add, "training images were added and 0 removed"), (remove, "0 training images were added and 1 removed")],
)
def test_training_images_may_come_and_go(photos, run, change, words):
    change(photos, run[1])
    (note,), valid = opened(photos, run[0])[0].notes, opened(photos, run[0])[1]
    assert words in note
    assert "the validation images are the same" in note
    assert valid == run[1]


def rename(photos, valid):
    (photos / "bee").rename(photos / "zebra")


def swap(photos, valid):
    (photos / "bee").rename(photos / "x")
    (photos / "cat").rename(photos / "bee")
    (photos / "x").rename(photos / "cat")


def replace_all(photos, valid):
    """Replace all images by others of the same file size."""
    for path in photos.rglob("*.png"):
        path.write_bytes(bytes(reversed(path.read_bytes()[:8])) + path.read_bytes()[8:])
    for path in photos.rglob("*.png"):
        content = bytearray(path.read_bytes())
        content[:8] = b"\x89PNG\r\n\x1a\n"
        content[-1] ^= 255
        path.write_bytes(content)


def replace_one(photos, valid):
    draw(path := training_image(photos, valid), 77)
    path.write_bytes(path.read_bytes() + b"more")


def remove_a_class(photos, valid):
    shutil.rmtree(photos / "dog")


def remove_held_out(photos, valid):
    (photos / min(valid)).unlink()


def shift_the_split(photos, valid):
    """Remove all held-out images of a class, so that a training image is held out instead."""
    for name in valid:
        if name.startswith("bee/"):
            (photos / name).unlink()


def add_to_validation(photos, valid):
    for index in range(40):
        draw(photos / "bee" / f"!{index}.png", index)


def replace_most(photos, valid):
    for path in photos.rglob("*.png"):
        if f"{path.parent.name}/{path.name}" not in valid:
            path.unlink()
    for number, name in enumerate(("bee", "cat", "dog")):
        for index in range(30):
            draw(path := photos / name / f"n{index}.png", number + index)
    for name in opened(photos, photos.parent / "other", resume=False)[1] - valid:
        (photos / name).unlink()


HARMFUL = [
    (rename, "class 0 was 'bee', now it is 'cat'"),
    (swap, r"(the content of the training image \w+/\d.png has changed|\d+ of \d+ training images have a different)"),
    (replace_all, r"the content of the training image \w+/\d.png has changed"),
    (replace_one, r"1 of \d+ training images have a different class or file size"),
    (remove_a_class, "there were 3 classes, now there are 2"),
    (remove_held_out, r"0 validation images were added and 1 removed, so scores are not comparable"),
    (shift_the_split, r"\d of \d+ validation images have been trained on"),
    (add_to_validation, r"\d+ validation images were added and 0 removed"),
    (replace_most, "most of the training images have been removed"),
]


@pytest.mark.parametrize(("change", "words"), HARMFUL, ids=[change.__name__ for change, _ in HARMFUL])
def test_changes_that_invalidate_scores_are_errors(photos, run, change, words):
    change(photos, run[1])
    before = (run[0] / "data.json").read_bytes()
    with pytest.raises(ValueError, match=f"was started with other data: {words}.*restart in another --output"):
        opened(photos, run[0])
    assert (run[0] / "data.json").read_bytes() == before


def test_removed_training_images_are_recorded(photos, run):
    """An image that was removed and returns as a validation image has been trained on."""
    now = fingerprint(prepare_run(replace(RECIPE, data=DataConfig(str(photos), valid_share=0.3))), str(photos))
    gone = replace(now, train=replace(now.train, rows=now.train.rows[1:], digest="other"))
    remembered, notes = compare_fingerprints(now, gone)
    assert len(notes) == 1
    back = replace(gone, valid=replace(now.valid, rows=np.append(now.valid.rows, now.train.rows[0]), digest="other"))
    with pytest.raises(ValueError, match=r"1 of .* validation images have been trained on"):
        compare_fingerprints(remembered, back)
    again = Fingerprint.from_bytes(remembered.to_bytes())
    assert again.removed_rows.tolist() == now.train.rows[:1].tolist()


def test_a_run_of_an_earlier_version(photos, run, tmp_path):
    """Earlier versions chose held-out images by position, so a new split would differ."""
    (run[0] / "data.json").unlink()
    with pytest.raises(
        ValueError, match=r"has no data.json: it was started by an earlier version, which held out other"
    ):
        opened(photos, run[0])
    recipe = replace(RECIPE, data=DataConfig("digits", limit=20), model=RECIPE.model.override(num_channels=1))
    opened_once = [open_run_folder(tmp_path / "digits", recipe, prepare_run(recipe), resume=False)]
    for path in ("data.json", "config.json"):
        (tmp_path / "digits" / "model.safetensors").touch()
        (tmp_path / "digits" / path).unlink()
        opened_once.append(open_run_folder(tmp_path / "digits", recipe, prepare_run(recipe), resume=True))
    assert [len(found.notes) for found in opened_once] == [0, 1, 1]
    assert "has no data.json" in opened_once[1].notes[0]
    assert "config.json is missing" in opened_once[2].notes[0]


def test_settings_of_an_earlier_version(photos, run):
    config = json.loads((run[0] / "config.json").read_text())
    del config["train"]["patience"]
    (run[0] / "config.json").write_text(json.dumps(config))
    assert opened(photos, run[0])[0].notes == []


def test_images_in_memory_are_compared_as_they_are():
    pixels = np.random.default_rng(0).integers(0, 256, (9, 3, 4, 4), dtype=np.uint8)
    labels = np.arange(9) % 3

    def digest(images, labels):
        return split_fingerprint(Arrays(np.ascontiguousarray(images), one_hot(labels, 3), "abc"), None).digest

    assert digest(pixels, labels) == digest(pixels.copy(), labels.copy())
    assert len({digest(pixels, labels), digest(pixels[::-1], labels), digest(pixels, (labels + 1) % 3)}) == 3


ODD = [b"", b"null", b"[]", b"{}", b"[" * 100_000, b'{"classes": 3, "train": {}, "valid": []}', b"\xff\xfe"]


@pytest.mark.parametrize("content", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("name", ["config.json", "data.json"])
def test_corrupt_metadata_is_a_one_line_error(photos, run, name, content):
    write_atomically(run[0] / name, content)
    with pytest.raises(ValueError, match=f"{name} cannot be read .*; restore it, or restart") as caught:
        opened(photos, run[0])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "log.jsonl").mkdir(), "log.jsonl is a folder, expected a file"),
        (lambda folder: ((folder / "checkpoints").rmdir(), (folder / "checkpoints").touch()), "File exists"),
        (lambda folder: ((folder / "config.json").unlink(), (folder / "config.json").mkdir()), "config.json"),
    ],
)
def test_files_and_folders_in_each_others_place(photos, run, spoil, words):
    spoil(run[0])
    with pytest.raises(ValueError, match=words) as caught:
        opened(photos, run[0])
    assert "\n" not in str(caught.value)
