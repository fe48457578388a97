"""Everything the README tells people to type runs."""

import json
import re
from pathlib import Path

import pytest

from tests.reader import blocks, elsewhere, run_commands, run_example  # noqa: F401
from tests.weights.hub import serve_deit_tiny

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS, EXAMPLES = blocks("console", README), blocks("python", README)


@pytest.mark.parametrize("index", range(len(COMMANDS)))
def test_commands(elsewhere, index, capsys):  # noqa: F811
    """One after the other: the later ones of a block use what the earlier ones made."""
    run_commands(COMMANDS[index], elsewhere, capsys)


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_examples(elsewhere, index, hub, monkeypatch):  # noqa: F811
    serve_deit_tiny(hub)
    run_example(EXAMPLES[index], "README.md", elsewhere, monkeypatch)


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
    explained = json.loads((ROOT / "docs" / "images" / "explanation.json").read_text())
    assert f"{explained['best'][0][0]} ({explained['best'][0][1]:.0%})".replace("%", " %") in README
