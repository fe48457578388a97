"""Every error is one line that says what to do, with exit code 2; a bug has exit code 1 and saves its traceback."""

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
from vitreous.files import check_writable


def os_error(number, *where):
    return OSError(number, os.strerror(number), *where)


MESSAGES = [
    (os_error(errno.ENOSPC, "x.npz"), 2, "vitreous lab: x.npz: No space left on device; free some space"),
    (os_error(errno.ENOSPC), 2, "vitreous lab: No space left on device; free some space"),
    (os_error(errno.EACCES, "photos"), 2, "photos: Permission denied; change its permissions"),
    (os_error(errno.EROFS, b"x"), 2, "x: Read-only file system; choose a writable location"),
    (os_error(errno.ENOENT, "gone.png"), 2, "gone.png: No such file or directory; check the path"),
    (OSError("odd"), 2, "vitreous lab: odd"),
    (MemoryError(), 2, r"not enough memory \(MemoryError\); lower the batch size or the image size"),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9\nat x"), 2, "not enough memory"),
    (torch.OutOfMemoryError("CUDA out of memory."), 2, "not enough memory"),
    (RecursionError("maximum recursion depth exceeded"), 2, "nested too deeply"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), 2, "save it as UTF-8"),
    (ValueError("a message for users"), 2, "vitreous: a message for users"),
    (ValueError("no images in a\nb\x1b[31m\u202e"), 2, r"in a\\nb\\x1b\[31m\\u202e$"),
    (KeyError(5), 1, r"vitreous lab: this is a bug in Vitreous, please report it: KeyError: 5 \(traceback in "),
    (AssertionError(), 1, r"AssertionError:  \(traceback in "),
    (RuntimeError("first\nsecond"), 1, r"RuntimeError: first \(traceback in "),
]


def failing(monkeypatch, error):
    def run_command(name, argv):
        raise error

    monkeypatch.setattr(cli, "run_command", run_command)


@pytest.mark.parametrize(("error", "code", "words"), MESSAGES, ids=[repr(error)[:40] for error, *_ in MESSAGES])
def test_every_error_is_one_line(capsys, monkeypatch, tmp_path, error, code, words):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failing(monkeypatch, error)
    assert main(["lab"]) == code
    stderr = capsys.readouterr().err
    assert re.search(words, stderr)
    assert stderr.count("\n") == 1
    kept = [path.read_text() for path in tmp_path.iterdir()]
    assert len(kept) == (code == 1)
    assert all("Traceback" in text and type(error).__name__ in text for text in kept)


def test_debug_mode_shows_the_traceback(capsys, monkeypatch):
    monkeypatch.setenv("VITREOUS_DEBUG", "1")
    failing(monkeypatch, KeyError(5))
    assert main(["lab"]) == 1
    stderr = capsys.readouterr().err
    assert "Traceback" in stderr
    assert stderr.endswith("vitreous lab: this is a bug in Vitreous, please report it: KeyError: 5\n")


def test_distributed_errors_name_the_rank(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    failing(monkeypatch, os_error(errno.ENOSPC))
    assert main(["lab"]) == 2
    assert capsys.readouterr().err.startswith("vitreous lab (process 1): No space left on device")


RECIPES = [
    ("recipe.txt", "", "is not a Python file; a recipe file ends in .py"),
    ("recipe.py", "import nothing_such", r"recipe.py, line 1: ModuleNotFoundError: No module named 'nothing_such'"),
    ("recipe.py", "x = 1\ndef f(:", r"recipe.py, line 2: SyntaxError: invalid syntax"),
    ("recipe.py", "\n\n1 / 0", r"recipe.py, line 3: ZeroDivisionError: division by zero"),
    ("recipe.py", "raise SystemExit(3)", r"recipe.py, line 1: SystemExit: 3"),
    ("recipe.py", "recipe = {}", r"defines no `recipe = Recipe\(…\)` \(its `recipe` is of the type dict\)"),
    ("recipe.py", "", r"defines no `recipe = Recipe\(…\)`$"),
    ("recipe.py", "\x00", r"recipe.py.*: (SyntaxError|ValueError): source code"),
]


@pytest.mark.parametrize(("name", "content", "words"), RECIPES)
def test_invalid_recipes(capsys, tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    assert main(["train", str(tmp_path / name)]) == 2
    stderr = capsys.readouterr().err
    assert re.search(words, stderr.strip())
    assert stderr.count("\n") == 1


@pytest.fixture
def folder(tmp_path):
    config = {"image_size": 32, "patch_size": 16, "dim": 32, "depth": 1, "num_heads": 2, "num_classes": 3}
    vt.save(vt.create_model("vit_tiny_16", **config), tmp_path / "model.safetensors")
    for index in range(6):
        path = tmp_path / "photos" / "abc"[index % 3] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (40 * index, 0, 0)).save(path)
    return tmp_path


OUTPUTS = [
    ["evaluate", "model.safetensors", "--data", "photos", "--output", "out/x.json"],
    ["predict", "model.safetensors", "photos", "--format", "jsonl", "--output", "out/x.jsonl"],
    ["predict", "model.safetensors", "photos", "--draw", "out/drawn"],
    ["embed", "model.safetensors", "photos", "--output", "out/x.npy"],
    ["train", "quickstart", "--smoke", "--output", "out/run"],
    ["data", "show", "shapes", "--num-images", "1", "--output", "out/x.png"],
]


@pytest.mark.parametrize("words", OUTPUTS, ids=lambda words: " ".join(words[:2]))
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_unwritable_outputs(capsys, folder, monkeypatch, words, number):
    """Checked before the work begins, except for the one command that only draws."""
    monkeypatch.chdir(folder)
    Path("out").mkdir()

    def refuse(path, *_, **__):
        raise os_error(number)

    for name in ("write_bytes", "touch"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", refuse)
    for home in ("deploy.predictor.Predictor.__init__", "cli.evaluate.load", "cli.train.prepare_run"):
        monkeypatch.setattr(f"vitreous.{home}", lambda *_, **__: pytest.fail("the work began"))
    assert main(words) == 2
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert os.strerror(number) in stderr


def test_the_write_check_leaves_no_file(tmp_path):
    check_writable(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_finished_predictions(capsys, folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = ["predict", "model.safetensors", "photos", "--format", "jsonl", "--batch-size", "1", "--output"]
    assert main([*words, "whole.jsonl"]) == 0
    write = resumable.Journal.write

    class Full:
        """A file on a disk with space for half a line more."""

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
    stderr = capsys.readouterr().err.splitlines()[-1]
    assert "cut.jsonl.part: No space left on device; free some space: 3 of 6 images are saved" in stderr
    monkeypatch.setattr(resumable.Journal, "write", write)
    assert main([*words, "cut.jsonl"]) == 0
    assert Path("cut.jsonl").read_text() == Path("whole.jsonl").read_text()
