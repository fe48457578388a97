"""Completion scripts offer what the command line takes."""

import shutil
import subprocess

import pytest

from vitreous.cli import COMMANDS, main
from vitreous.runs.recipe import list_recipes


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "vitreous.bash"
    from vitreous.cli.completion import bash_script

    path.write_text(bash_script())
    return path


def completed(script, *words):
    """What bash offers after these words, of which the last is being typed."""
    commands = (
        f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _vitreous; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    out = subprocess.run(
        ["bash", "-c", commands, "bash", "vitreous", *words], capture_output=True, text=True, check=True
    )
    return set(out.stdout.split())


CASES = [
    (("",), {name.split()[0] for name in COMMANDS}),
    (("tr",), {"train"}),
    (("data", "i"), {"inspect"}),
    (("train", "cifar10_v"), {name for name in list_recipes() if name.startswith("cifar10_v")}),
    (("train", "--data", "x", "--ep"), {"--epochs"}),
    (("predict", "--model", "deit_tiny_d"), {"deit_tiny_distilled_16"}),
    (("models", "show", "--he"), {"--help"}),
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("words", "expected"), CASES)
def test_bash_offers(script, words, expected):
    assert completed(script, *words) == expected


def test_zsh_and_fish(capsys):
    assert main(["completion", "zsh"]) == 0
    assert "bashcompinit" in capsys.readouterr().out
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("complete -c vitreous") for line in lines)
    assert sum("__fish_seen_subcommand_from predict'" in line for line in lines) > 3


def test_an_unknown_shell(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["completion", "powershell"])
    assert stopped.value.code == 2
