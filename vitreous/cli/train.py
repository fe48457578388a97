"""vitreous train"""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import field, make_dataclass, replace
from pathlib import Path
from typing import Any

import tyro
from rich.markup import escape

from vitreous.cli.named import gathered, registry
from vitreous.cli.old_spellings import modernized
from vitreous.cli.show import err, out
from vitreous.files import need_room
from vitreous.runs.choose import Choice, choose
from vitreous.runs.preflight import examine
from vitreous.runs.prepare import Prepared, prepare
from vitreous.runs.recipe import Recipe, find_recipe, list_recipes
from vitreous.runs.run import train_on
from vitreous.train.loop import Interrupted, Outcome
from vitreous.train.parallel import World, join, leave


def train(words: list[str]) -> None:
    """The recipe by name or path, or chosen for the data; then options, typed by the recipe itself."""
    parser = argparse.ArgumentParser(prog="vitreous train", add_help=False, allow_abbrev=False)
    for name in ("data", "model", "output"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--weights")
    for name in ("resume", "smoke"):
        parser.add_argument(f"--{name}", action="store_true")
    if not words or words in (["--help"], ["-h"]):
        out.print(usage(), soft_wrap=True)
        return
    named = not words[0].startswith("-")
    known, options = parser.parse_known_args(words[named:])
    known.recipe = words[0] if named else ""
    recipe = resolve(known, options)
    name = Path(known.recipe or known.data).stem
    output = Path(known.output or f"runs/{name}{'-smoke' if known.smoke else ''}")
    try:
        run(recipe, output, join(recipe.train.device), resume=known.resume, command=words)
    finally:
        leave()


def resolve(known: argparse.Namespace, options: list[str]) -> Recipe:
    if known.recipe:
        recipe = find_recipe(known.recipe)
        if known.data:
            recipe = replace(recipe, data=replace(recipe.data, source=known.data))
        if known.weights is not None:  # empty: from scratch, whatever the recipe says
            recipe = replace(recipe, weights=known.weights)
        if known.model:
            raise ValueError("a recipe brings its own model; change it with --model.… options, or leave out the recipe")
    elif known.data:
        recipe, choices = choose(known.data, known.model, known.weights or "")
        if os.environ.get("RANK", "0") == "0":
            out.print(chosen(choices, known.data), soft_wrap=True)
    else:
        raise ValueError("give a recipe or --data; vitreous train --help lists the recipes")
    recipe = with_options(recipe, options, f"vitreous train {known.recipe or '--data ' + known.data}")
    return recipe.smoke() if known.smoke else recipe


def chosen(choices: list[Choice], source: str) -> str:
    name, value = (max(len(getattr(choice, part)) for choice in choices) for part in ("setting", "value"))
    lines = [f"  {choice.setting:<{name}}  {choice.value:<{value}}  because {choice.reason}" for choice in choices]
    return "\n".join([f"[bold]Chosen for {escape(source)}[/bold]", *lines, ""])


def with_options(recipe: Recipe, options: list[str], program: str) -> Recipe:
    """The recipe with ``--train.optimizer.lr 5e-4`` and the like: every part's own fields are options of their type."""
    parts: list[tuple[str, Any, Any]] = [
        (name, type(getattr(recipe, name)), field(default=getattr(recipe, name)))
        for name in ("model", "data", "augment", "task", "train")
    ]
    typed = make_dataclass("Recipe", [*parts, ("weights", str, field(default=recipe.weights))])
    words = gathered(modernized(options, recipe.train, note), recipe)
    given: Any = tyro.cli(typed, args=words, prog=program, config=(tyro.conf.FlagConversionOff,), registry=registry())
    return Recipe(given.model, given.data, given.augment, given.task, given.train, given.weights)


def note(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        err.print(f"note: {text}", markup=False)


def run(recipe: Recipe, output: Path, world: World, *, resume: bool, command: list[str]) -> None:
    world.together(lambda: make_room(output))
    prepared = prepare(recipe)
    if world.is_main:
        introduce(recipe, prepared, output)
    words = [word for word in command if word != "--resume"]
    told = shlex.join(["vitreous", "train", *(Path(word).name if Path(word).is_absolute() else word for word in words)])
    try:
        outcome = train_on(prepared, recipe, output, world, resume=resume, command=told)
    except Interrupted as stopped:
        if world.is_main:
            again = shlex.join(["vitreous", "train", *words, "--resume"])
            err.print(f"\n{stopped}. Go on with\n  {again}", markup=False)
        raise SystemExit(130) from None
    if world.is_main:
        out.print(farewell(outcome, output), soft_wrap=True)


def make_room(output: Path) -> None:
    """The run's folder, before the data are opened: whether anything can be written there."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {output} ({error.strerror}); choose another --output") from None
    need_room(output / "config.json")


def introduce(recipe: Recipe, prepared: Prepared, output: Path) -> None:
    model, train = prepared.model, prepared.train
    number = sum(parameter.numel() for parameter in model.parameters())
    valid = f"{len(prepared.valid):,} to validate" if prepared.valid is not None else "none to validate"
    out.print(f"{type(model).__name__} with {number:,} parameters; {len(train):,} images of {len(train.classes)} "
              f"classes to learn from, {valid}; run folder {output}", markup=False, soft_wrap=True)  # fmt: skip
    for note in prepared.notes:
        err.print(f"note: {note}", markup=False)
    for finding in examine(recipe, prepared):
        err.print(f"[yellow]doctor:[/yellow] {escape(str(finding))}")


def farewell(outcome: Outcome, output: Path) -> str:
    folder = escape(str(output))
    lines = [f"{outcome.images:,} images in {outcome.seconds / 60:.1f} minutes"]
    if outcome.metrics:
        assert outcome.meter is not None
        name, score = next(iter(outcome.metrics.items()))
        shown = f"{score:.2%}" if score.unit == "share" else str(score)
        lines.insert(0, f"[bold]{name} {shown}[/bold] on {len(outcome.meter):,} validation images")
    return f"""
{", ".join(lines)}

  {folder}/model.safetensors   the model
  {folder}/report.html         curves, confusions, the worst mistakes

Next:
  vitreous predict {folder}/model.safetensors IMAGES"""


def usage() -> str:
    known = list_recipes()
    width = max(map(len, known))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in known.items()]
    return "\n".join(
        [
            "vitreous train RECIPE [options]                 by name, or the path of a Python file",
            "vitreous train --data SOURCE [--model NAME] [--weights WEIGHTS] [options]",
            "",
            "SOURCE is a folder of class folders, a CSV file, a folder of shards, CIFAR's folder, shapes or digits.",
            "",
            "  --output FOLDER             where the run is kept; runs/RECIPE when not given",
            "  --resume                    go on with the run in that folder",
            "  --smoke                     two steps on a few drawn scenes, to see that it runs",
            "  --train.optimizer.lr 5e-4   and any other setting; vitreous train RECIPE --help lists them",
            "",
            "Recipes:",
            *lines,
            "",
            "Many processes: torchrun --nproc-per-node 2 -m vitreous train …",
        ]
    )
