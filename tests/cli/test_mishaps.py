"""Whatever goes wrong is one line that says what to do, and exit code 2; of a bug 1, with the traceback kept."""

import errno
import os
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

import vitreous as vt
from vitreous import cli
from vitreous.cli import main, resumable
from vitreous.files import need_room


def os_error(number, *where):
    return OSError(number, os.strerror(number), *where)


MISHAPS = [
    (os_error(errno.ENOSPC, "x.npz"), 2, "vitreous lab: x.npz: No space left on device; make room there"),
    (os_error(errno.ENOSPC), 2, "vitreous lab: No space left on device; make room there"),
    (os_error(errno.EACCES, "photos"), 2, "photos: Permission denied; you may not read or write there"),
    (os_error(errno.EROFS, b"x"), 2, "x: Read-only file system; choose a place that can be written to"),
    (os_error(errno.ENOENT, "gone.png"), 2, "gone.png: No such file or directory; check the path"),
    (OSError("odd"), 2, "vitreous lab: odd"),
    (MemoryError(), 2, r"not enough memory \(MemoryError\); lower the batch size or the image size"),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9\nat x"), 2, "not enough memory"),
    (torch.OutOfMemoryError("CUDA out of memory."), 2, "not enough memory"),
    (RecursionError("maximum recursion depth exceeded"), 2, "nested too deeply"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), 2, "save it as UTF-8"),
    (ValueError("a sentence of ours"), 2, "vitreous: a sentence of ours"),
    (ValueError("no images in a\nb\x1b[31m\u202e"), 2, r"in a\\nb\\x1b\[31m\\u202e$"),
    (KeyError(5), 1, r"vitreous lab: this is a bug of Vitreous, please report it: KeyError: 5 \(traceback in "),
    (AssertionError(), 1, r"AssertionError:  \(traceback in "),
    (RuntimeError("first\nsecond"), 1, r"RuntimeError: first \(traceback in "),
]


def failing(monkeypatch, error):
    def run(name, words):
        raise error

    monkeypatch.setattr(cli, "run", run)


@pytest.mark.parametrize(("error", "code", "words"), MISHAPS, ids=[repr(error)[:40] for error, *_ in MISHAPS])
def test_every_error_is_one_line(capsys, monkeypatch, tmp_path, error, code, words):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failing(monkeypatch, error)
    assert main(["lab"]) == code
    told = capsys.readouterr().err
    assert re.search(words, told)
    assert told.count("\n") == 1
    kept = [path.read_text() for path in tmp_path.iterdir()]
    assert len(kept) == (code == 1)
    assert all("Traceback" in text and type(error).__name__ in text for text in kept)


def test_where_it_came_from_is_shown_when_asked(capsys, monkeypatch):
    monkeypatch.setenv("VITREOUS_DEBUG", "1")
    failing(monkeypatch, KeyError(5))
    assert main(["lab"]) == 1
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert told.endswith("vitreous lab: this is a bug of Vitreous, please report it: KeyError: 5\n")


def test_each_of_several_processes_says_which_it_is(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    failing(monkeypatch, os_error(errno.ENOSPC))
    assert main(["lab"]) == 2
    assert capsys.readouterr().err.startswith("vitreous lab (process 1): No space left on device")


RECIPES = [
    ("recipe.txt", "", "is no Python file; a recipe's name ends in .py"),
    ("recipe.py", "import nothing_such", r"recipe.py, line 1: ModuleNotFoundError: No module named 'nothing_such'"),
    ("recipe.py", "x = 1\ndef f(:", r"recipe.py, line 2: SyntaxError: invalid syntax"),
    ("recipe.py", "\n\n1 / 0", r"recipe.py, line 3: ZeroDivisionError: division by zero"),
    ("recipe.py", "raise SystemExit(3)", r"recipe.py, line 1: SystemExit: 3"),
    ("recipe.py", "recipe = {}", r"defines no `recipe = Recipe\(…\)` \(its `recipe` is of the type dict\)"),
    ("recipe.py", "", r"defines no `recipe = Recipe\(…\)`$"),
    ("recipe.py", "\x00", r"recipe.py.*: (SyntaxError|ValueError): source code"),
]


@pytest.mark.parametrize(("name", "content", "words"), RECIPES)
def test_odd_recipes(capsys, tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    assert main(["train", str(tmp_path / name)]) == 2
    told = capsys.readouterr().err
    assert re.search(words, told.strip())
    assert told.count("\n") == 1


@pytest.fixture
def folder(tmp_path):
    config = {"image_size": 32, "patch_size": 16, "dim": 32, "depth": 1, "num_heads": 2, "num_classes": 3}
    vt.save(vt.create_model("vit_tiny_16", **config), tmp_path / "model.safetensors")
    for index in range(6):
        path = tmp_path / "photos" / "abc"[index % 3] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (40 * index, 0, 0)).save(path)
    return tmp_path


PLACES = [
    ["evaluate", "model.safetensors", "--data", "photos", "--output", "out/x.json"],
    ["predict", "model.safetensors", "photos", "--format", "jsonl", "--output", "out/x.jsonl"],
    ["predict", "model.safetensors", "photos", "--draw", "out/drawn"],
    ["embed", "model.safetensors", "photos", "--output", "out/x.npy"],
    ["train", "quickstart", "--smoke", "--output", "out/run"],
    ["data", "show", "shapes", "--num-images", "1", "--output", "out/x.png"],
]


@pytest.mark.parametrize("words", PLACES, ids=lambda words: " ".join(words[:2]))
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_places_that_cannot_be_written_to(capsys, folder, monkeypatch, words, number):
    """Known before the work begins, but where one command draws quickly."""
    monkeypatch.chdir(folder)
    Path("out").mkdir()

    def refuse(path, *_, **__):
        raise os_error(number)

    for name in ("write_bytes", "touch"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", refuse)
    for home in ("deploy.predictor.Predictor.__init__", "cli.evaluate.load", "cli.train.prepare"):
        monkeypatch.setattr(f"vitreous.{home}", lambda *_, **__: pytest.fail("the work began"))
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert os.strerror(number) in told


def test_a_trial_leaves_nothing_behind(tmp_path):
    need_room(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_what_was_predicted_is_kept_when_the_disk_is_full(capsys, folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = ["predict", "model.safetensors", "photos", "--format", "jsonl", "--batch-size", "1", "--output"]
    assert main([*words, "whole.jsonl"]) == 0
    write = resumable.Journal.write

    class Full:
        """A file on a disk with room for half a line more."""

        def __init__(self, file):
            self.file, self.left = file, 40

        def write(self, content):
            if not self.left:
                raise os_error(errno.ENOSPC)
            done = self.file.write(bytes(content)[: self.left])
            self.left -= done
            return done

        def close(self):
            self.file.close()

    def fills(self, line):
        if len(self.done) == 3 and not isinstance(self.file, Full):
            self.file = Full(self.file)
        write(self, line)

    monkeypatch.setattr(resumable.Journal, "write", fills)
    capsys.readouterr()
    assert main([*words, "cut.jsonl"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "cut.jsonl.part: No space left on device; make room there: 3 of 6 images are kept" in told
    monkeypatch.setattr(resumable.Journal, "write", write)
    assert main([*words, "cut.jsonl"]) == 0
    assert Path("cut.jsonl").read_text() == Path("whole.jsonl").read_text()
