"""Everything the README tells people to type runs."""

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

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
TRAINING = (ROOT / "docs" / "training.md").read_text()


def blocks(kind, text=README):
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A folder with the files that the README speaks of."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "photos").mkdir()
    for name in ("cat", "dog"):
        pixels = np.random.default_rng(len(name)).integers(0, 256, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{name}.jpg")
    for name in ("cat", "dog"):
        (folder / "animals" / name).mkdir(parents=True)
        for index in range(6):
            pixels = np.random.default_rng(index).integers(0, 256, (40 + index, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels + len(name)).save(folder / "animals" / name / f"{index}.jpg")
    state = timm.create_model("deit_tiny_patch16_224").state_dict()
    safetensors.torch.save_file(state, folder / "deit_tiny_patch16_224.safetensors")
    with contextlib.chdir(folder):
        assert main(["quickstart", "--steps", "2"]) == 0
    return folder


@pytest.mark.parametrize("index", range(len(blocks("console"))))
def test_commands(elsewhere, index, capsys):
    """One after the other: the later ones of a block use what the earlier ones made."""
    for command in blocks("console")[index].strip().splitlines():
        program, *words = shlex.split(command)
        assert program == "vitreous"
        with contextlib.chdir(elsewhere):
            assert main(words) == 0, capsys.readouterr().err


EXAMPLES = [*blocks("python"), *blocks("python", TRAINING)]


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_examples(elsewhere, index, monkeypatch):
    monkeypatch.setattr("vitreous.deploy.accelerate.ENOUGH", 0.0)  # no minutes of compiling where kernels are slow
    with contextlib.chdir(elsewhere):
        exec(compile(EXAMPLES[index], "README.md", "exec"), {})


def test_the_two_commands_are_targets():
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"^make (\S+)", README, re.MULTILINE)
    assert commands == ["quickstart", "test"]
    assert all(f"\n{command}: " in makefile for command in commands)


def test_links_lead_somewhere():
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert len(targets) > 4
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_figures_have_their_record():
    for image in (ROOT / "docs" / "images").glob("*.png"):
        assert image.with_suffix(".json").exists()
    assert "178,586" in README
    assert '"parameters": 178586' in (ROOT / "docs" / "images" / "quickstart.json").read_text()
