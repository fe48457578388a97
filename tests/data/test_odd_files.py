"""Special files, links in circles and unreadable places: never opened, never waited for, always in one line."""

import errno
import os
import socket

import numpy as np
import pytest
from PIL import Image

from vitreous import files
from vitreous.cli import main
from vitreous.data.folder import MAX_FILE_BYTES, PathDataset, open_folder
from vitreous.data.image_files import BadImage, find_images, open_image, printable
from vitreous.data.inspect import digest, image_digest, inspect
from vitreous.data.pack import write_shards
from vitreous.data.shards import ShardDataset
from vitreous.data.sources import open_data
from vitreous.data.threads import PENDING_PER_THREAD, in_threads


@pytest.fixture
def photos(tmp_path):
    """Two classes of three images."""
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(3):
            Image.new("RGB", (6, 5), (40 * index, 0, 99)).save(tmp_path / "photos" / name / f"{index}.png")
    return tmp_path / "photos"


def make_special(kind, path):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "dead link":
        path.symlink_to("nowhere")
    else:
        here = os.getcwd()
        os.chdir(path.parent)  # the names of sockets must be short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
        os.chdir(here)


SPECIAL = ["pipe", "device", "socket", "dead link"]


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_files_are_left_out_and_named(photos, tmp_path, kind):
    make_special(kind, photos / "cat" / "odd.png")
    splits = open_data(photos, valid_share=0)
    assert len(splits.train) == 6
    assert splits.notes == ("1 pipe, device or broken link, left out: cat/odd.png",)
    assert inspect(splits).broken == []
    write_shards(splits.train, tmp_path / "packed")
    assert len(ShardDataset(tmp_path / "packed")) == 6


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_files_given_to_predict_say_what_they_are(photos, kind):
    odd = photos / "cat" / "odd.png"
    make_special(kind, odd)
    assert odd in find_images([photos])
    with pytest.raises(
        BadImage, match="no such file" if kind == "dead link" else "a pipe, a device or a socket|No such"
    ):
        open_image(odd)


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_files_that_a_table_lists_are_missing(photos, kind):
    make_special(kind, photos / "odd.png")
    (photos / "list.csv").write_text("path,label\ncat/0.png,cat\ndog/0.png,dog\nodd.png,cat\ncat,dog\n")
    assert open_data(photos / "list.csv").notes[0].startswith("2 of 4 files are missing")


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["list.csv", "packed/index.json", "packed/a.tar", "cifar-10-batches-py/test_batch"])
def test_special_files_that_are_sources_are_refused(tmp_path, kind, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    make_special(kind, tmp_path / name)
    source = tmp_path / name if name.endswith("csv") else (tmp_path / name).parent
    with pytest.raises(ValueError, match=r"\w"):
        open_data(source)


def test_links_to_folders_above_end_and_every_file_counts_once(photos):
    for name in ("cat/up", "cat/self", "dog/deep/up"):
        (photos / name).parent.mkdir(exist_ok=True)
        (photos / name).symlink_to(photos if name.endswith("up") else photos / "cat")
    (photos / "dog" / "top").symlink_to(photos.parent)
    splits = open_data(photos, valid_share=0)
    assert [len(splits.train), splits.notes] == [6, ()]
    assert inspect(splits).totals == {"train": 6}
    assert len(find_images([photos])) == 6
    assert len(find_images([f"{photos}/**/*.png"])) == 6
    assert len(find_images([f"{photos}/**"])) == 6


def test_a_split_never_enters_another_through_a_link(photos):
    (photos / "train").mkdir()
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (photos / split / name).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(photos / split / name / "1.png")
    (photos / "train" / "cat" / "up").symlink_to(photos)
    assert len(open_folder(photos).train) == 2


PATTERNS = [
    ("**/*.png", ["1.png", "a/2.png", "a/b/3.png"]),
    ("a/**/*.png", ["a/2.png", "a/b/3.png"]),
    ("**/b/*", ["a/b/3.png"]),
    ("**", ["1.png", "a/2.png", "a/b/3.png", "a/note.txt"]),
    ("a/**/b/**/3.???", ["a/b/3.png"]),
    ("*/[!n]*", ["a/2.png"]),
]


@pytest.mark.parametrize(("pattern", "expected"), PATTERNS)
def test_patterns(tmp_path, monkeypatch, pattern, expected):
    for name in ("1.png", "a/2.png", "a/b/3.png", "a/note.txt", ".hidden/4.png", "a/.5.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [str(path.relative_to(tmp_path)) for path in find_images([f"{tmp_path}/{pattern}"])] == expected
    monkeypatch.chdir(tmp_path)
    assert [str(path) for path in find_images([pattern])] == expected


def test_what_is_empty_is_not_the_working_folder(photos, monkeypatch):
    monkeypatch.chdir(photos)
    with pytest.raises(ValueError, match="data is empty; data is one of"):
        open_data("")
    with pytest.raises(ValueError, match="an image path is empty"):
        find_images([""])


@pytest.mark.parametrize("source", ["~nobody-at-all/x", "null\0byte", "x" * 300, "a\udcffb"])
def test_odd_names_of_sources_are_refused(source):
    with pytest.raises(ValueError, match=r"there is no|cannot read"):
        open_data(source)


@pytest.fixture
def locked(monkeypatch):
    """Makes paths unreadable, also for root."""
    opened, scanned, refused = os.open, os.scandir, set()

    def refusing(function):
        def call(path, *rest, **options):
            if str(path) in refused:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return function(path, *rest, **options)

        return call

    monkeypatch.setattr(files.os, "open", refusing(opened))
    monkeypatch.setattr(files.os, "scandir", refusing(scanned))
    return lambda path: refused.add(str(path))


def test_an_image_that_may_not_be_read_counts_as_unreadable(photos, tmp_path, locked):
    locked(photos / "cat" / "1.png")
    splits = open_data(photos, valid_share=0)
    assert [(look.location, look.broken) for look in inspect(splits).broken] == [
        (str(photos / "cat" / "1.png"), "Permission denied")
    ]
    assert write_shards(splits.train, tmp_path / "packed") == [(str(photos / "cat" / "1.png"), "Permission denied")]
    packed = ShardDataset(tmp_path / "packed")
    assert [len(packed), packed.labels.tolist()] == [5, [0, 0, 1, 1, 1]]


@pytest.mark.parametrize("name", ["cat", "list.csv", "."])
def test_folders_and_tables_that_may_not_be_read_are_one_line(photos, locked, name):
    (photos / "list.csv").write_text("path,label\ncat/0.png,cat\ndog/0.png,dog\n")
    locked(photos / name)
    with pytest.raises(ValueError, match=r"cannot read .*: Permission denied") as caught:
        open_data(photos / name if name.endswith("csv") else photos)
    assert "\n" not in str(caught.value)


def test_a_file_larger_than_any_image_is_not_read(tmp_path):
    with open(tmp_path / "huge.jpg", "wb") as file:
        file.truncate(MAX_FILE_BYTES * 1000)
    with pytest.raises(BadImage, match="too large for an image"):
        PathDataset([tmp_path / "huge.jpg"], np.array([0]), "ab").content(0)


def test_names_that_are_no_text_stay_printable(photos):
    os.rename(photos / "cat", os.path.join(photos, os.fsdecode(b"c\xe4t\xff")))
    splits = open_data(photos, valid_share=0)
    assert splits.train.classes == ("c\\xe4t\\xff", "dog")
    assert splits.train.location(0).endswith("c\\xe4t\\xff/0.png")
    assert splits.train.image(0).size == (6, 5), "the path itself is as it was"
    printable(splits.train.paths[0]).encode()


def test_postscript_is_not_run(tmp_path):
    (tmp_path / "loop.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n{} loop\n")
    with pytest.raises(BadImage, match="PostScript files are programs"):
        open_image(tmp_path / "loop.eps")


PACKED = [
    (("", "new"), "data is empty"),
    (("photos", "photos/cat/new"), "photos/cat/new lies inside the source photos; choose a folder outside"),
    (("photos", "photos"), "photos lies inside the source photos"),
    (("photos", "full"), "full is not empty, it holds note.txt; choose another folder or remove it"),
    (("photos/../photos", "link/new"), "link/new lies inside the source photos/../photos"),
    (("shapes", "full"), "full is not empty"),
]


@pytest.mark.parametrize(("words", "message"), PACKED)
def test_packing_writes_neither_into_its_source_nor_among_other_files(photos, monkeypatch, capsys, words, message):
    monkeypatch.chdir(photos.parent)
    (photos.parent / "full").mkdir()
    (photos.parent / "full" / "note.txt").touch()
    (photos.parent / "link").symlink_to("photos")
    before = sorted(photos.parent.rglob("*"))
    assert main(["data", "pack", *words]) == 2
    assert message in capsys.readouterr().err
    assert sorted(photos.parent.rglob("*")) == before


def test_few_results_wait_for_their_turn():
    started = []
    results = in_threads(lambda index: started.append(index) or index, 1000, workers=2)
    assert [next(results) for _ in range(5)] == list(range(5))
    assert len(started) <= 5 + 2 * PENDING_PER_THREAD
    results.close()
    assert len(started) <= 5 + 2 * PENDING_PER_THREAD + 2


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_images_are_digested_in_strips(monkeypatch, mode):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 30, 3), dtype=np.uint8)).convert(mode)
    whole = image_digest(image)
    assert whole == digest(np.asarray(image.convert("RGB")))
    monkeypatch.setattr("vitreous.data.inspect.STRIP_PIXELS", 100)
    assert image_digest(image) == whole
