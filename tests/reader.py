"""What a reader of the README and the documentation has: the files they name, and the code blocks they contain."""

import contextlib
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
from PIL import Image

from vitreous.cli import main


def blocks(kind, text):
    """The fenced code blocks of a Markdown text in one language."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def fill(folder):
    """Write the files that the pages name: photos, class folders, a table of labels, and weights."""
    for name in ("photos/cat", "photos/dog"):
        save_noise(folder / f"{name}.jpg", 60, 80, seed=len(name))
    for name in ("cat", "dog"):
        for index in range(6):
            save_noise(folder / "animals" / name / f"{index}.jpg", 40 + index, 60, seed=index + 10 * len(name))
    labels = ["1,0,", "0,1,1", "1,0,0", "0,1,0", "1,1,1", "0,0,0"]  # one is unknown
    rows = [f"animals/{name}/{index}.jpg,{row}" for name in ("cat", "dog") for index, row in enumerate(labels)]
    (folder / "pets.csv").write_text("\n".join(["path,cat,dog,indoors", *rows]))
    (folder / "docs").mkdir()
    (folder / "docs" / "images").symlink_to(Path(__file__).resolve().parents[1] / "docs" / "images")
    state = timm.create_model("deit_tiny_patch16_224").state_dict()
    safetensors.torch.save_file(state, folder / "deit_tiny_patch16_224.safetensors")


def save_noise(path, height, width, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A folder with the files that the pages name."""
    folder = tmp_path_factory.mktemp("reader")
    fill(folder)
    return folder


def make_quickstart(block, folder):
    """Run a short quickstart for a block that uses its files."""
    if "runs/quickstart" in block and not (folder / "runs" / "quickstart").exists():
        with contextlib.chdir(folder):
            assert main(["quickstart", "--steps", "2"]) == 0


def run_commands(block, folder, capsys):
    """Run the commands of a console block in a folder, one after the other."""
    make_quickstart(block, folder)
    for command in block.strip().splitlines():
        program, *words = shlex.split(command)
        assert program == "vitreous"
        with contextlib.chdir(folder):
            assert main(words) == 0, capsys.readouterr().err


def run_example(block, name, folder, monkeypatch):
    """Run a Python block in a folder, as a module of its own."""
    make_quickstart(block, folder)
    monkeypatch.setattr("vitreous.deploy.accelerate.FAST_ENOUGH", 0.0)  # no minutes of compiling where kernels are slow
    with contextlib.chdir(folder):
        exec(compile(block, name, "exec"), {"__name__": "example"})
