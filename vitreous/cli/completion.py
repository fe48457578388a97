"""vitreous completion"""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import Annotated, Literal, get_type_hints

import tyro

from vitreous.cli import COMMANDS

Shell = Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]

BASH = """\
_vitreous() {{
    local words="${{COMP_WORDS[*]:1:COMP_CWORD-1}}"
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local candidates=""
    case "$previous" in
        --model) COMPREPLY=($(compgen -W "{models}" -- "$current")); return ;;
    esac
    case "$words" in
{cases}
        *) [ "$COMP_CWORD" -eq 1 ] && candidates="{first}" ;;
    esac
    COMPREPLY=($(compgen -W "$candidates" -- "$current"))
    [ ${{#COMPREPLY[@]}} -eq 0 ] && COMPREPLY=($(compgen -f -- "$current"))
}}
complete -o filenames -F _vitreous vitreous
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def completion(shell: Shell) -> None:
    """Print a completion script for a shell: commands, options, model names and recipes.

    Add ``eval "$(vitreous completion bash)"`` to ``~/.bashrc`` (``zsh``: ``~/.zshrc``), or save the output of
    ``vitreous completion fish`` as ``~/.config/fish/completions/vitreous.fish``.

    Args:
        shell: The shell that will run the script.
    """
    print(fish_script() if shell == "fish" else (ZSH if shell == "zsh" else "") + bash_script(), end="")


def bash_script() -> str:
    from vitreous.models import list_models

    words = {name: candidates(name) for name in sorted({*COMMANDS, *first_words()}, key=len, reverse=True)}
    cases = "\n".join(f'        "{name}"*) candidates="{" ".join(found)}" ;;' for name, found in words.items())
    return BASH.format(models=" ".join(list_models()), cases=cases, first=" ".join(first_words()))


def fish_script() -> str:
    from vitreous.models import list_models

    none = "not __fish_seen_subcommand_from " + " ".join(first_words())
    lines = [f"complete -c vitreous -n '{none}' -f -a '{' '.join(first_words())}'"]
    for name in {**dict.fromkeys(first_words()), **dict.fromkeys(COMMANDS)}:
        command, *second = name.split()
        seen = f"__fish_seen_subcommand_from {command}" + (
            f"; and __fish_seen_subcommand_from {second[0]}" if second else ""
        )
        for word in candidates(name):
            option = f"-l {word.removeprefix('--')}" if word.startswith("--") else f"-a {word}"
            values = f" -x -a '{' '.join(list_models())}'" if word == "--model" else ""
            lines.append(f"complete -c vitreous -n '{seen}' {option}{values}")
    return "\n".join(lines) + "\n"


def first_words() -> list[str]:
    return sorted({name.split()[0] for name in COMMANDS})


def candidates(name: str) -> list[str]:
    """List what may follow a command: its subcommands, options and, for ``train``, the recipes."""
    below = [other.split()[1] for other in COMMANDS if other.startswith(f"{name} ")]
    if name not in COMMANDS:
        return below
    return [*below, *(train_words() if name == "train" else options(name))]


def options(name: str) -> list[str]:
    """List a command's options, read from its function's signature."""
    module, function = COMMANDS[name].target.split(":")
    hints = get_type_hints(getattr(importlib.import_module(module), function), include_extras=True)
    positional = {name for name, hint in hints.items() if tyro.conf.Positional in getattr(hint, "__metadata__", ())}
    found = hints.keys() - positional - {"return"}
    return ["--help", *(f"--{name.replace('_', '-')}" for name in sorted(found))]


def train_words() -> list[str]:
    from vitreous.cli.short_options import SHORT_OPTIONS
    from vitreous.runs.recipe import list_recipes
    from vitreous.train.config import TrainConfig

    settings = [f"--train.{field.name.replace('_', '-')}" for field in fields(TrainConfig)]
    fixed = ["--data", "--model", "--weights", "--output", "--resume", "--smoke"]
    return [*list_recipes(), *fixed, *(f"--{short.replace('_', '-')}" for short in SHORT_OPTIONS), *settings]
