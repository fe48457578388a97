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

from vitreous.cli.deprecated_options import replace_deprecated
from vitreous.cli.display import err, out
from vitreous.cli.named_options import merge_named_options, registry
from vitreous.cli.short_options import expand_short_options
from vitreous.files import check_writable
from vitreous.runs.choose import ChosenSetting, choose_recipe
from vitreous.runs.preflight import preflight
from vitreous.runs.prepare import Prepared, prepare_run
from vitreous.runs.recipe import Recipe, find_recipe, list_recipes
from vitreous.runs.run import run_training
from vitreous.train.loop import Interrupted, TrainOutcome
from vitreous.train.parallel import World, destroy_process_group, init_process_group


def train(argv: list[str]) -> None:
    """Train a recipe given by name or path, or one chosen for ``--data``; all settings of the recipe are options."""
    parser = argparse.ArgumentParser(prog="vitreous train", add_help=False, allow_abbrev=False)
    for name in ("data", "model", "output"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--weights")
    for name in ("resume", "smoke"):
        parser.add_argument(f"--{name}", action="store_true")
    if not argv or argv in (["--help"], ["-h"]):
        out.print(usage(), markup=False, soft_wrap=True)
        return
    has_recipe = not argv[0].startswith("-")
    known, options = parser.parse_known_args(argv[has_recipe:])
    known.recipe = argv[0] if has_recipe else ""
    recipe = build_recipe(known, options)
    name = Path(known.recipe or known.data).stem
    output = Path(known.output or f"runs/{name}{'-smoke' if known.smoke else ''}")
    try:
        train_recipe(recipe, output, init_process_group(recipe.train.device), resume=known.resume, argv=argv)
    finally:
        destroy_process_group()


def build_recipe(known: argparse.Namespace, options: list[str]) -> Recipe:
    """Find or choose the recipe and apply the options to it."""
    if known.recipe:
        recipe = find_recipe(known.recipe)
        if known.data:
            recipe = replace(recipe, data=replace(recipe.data, source=known.data))
        if known.weights is not None:  # an empty string overrides the recipe: train from scratch
            recipe = replace(recipe, weights=known.weights)
        if known.model:
            raise ValueError("a recipe defines its own model; change it with --model.… options, or omit the recipe")
    elif known.data:
        chosen, choices = choose_recipe(known.data, known.model, known.weights or "")
        recipe = apply_options(chosen, options, f"vitreous train --data {known.data}")
        if os.environ.get("RANK", "0") == "0":
            kept = [choice for choice in choices if choice.still_holds(chosen, recipe)]
            out.print(settings_note(kept, known.data), soft_wrap=True)
        return recipe.smoke() if known.smoke else recipe
    else:
        raise ValueError("give a recipe or --data; vitreous train --help lists the recipes")
    recipe = apply_options(recipe, options, f"vitreous train {known.recipe}")
    return recipe.smoke() if known.smoke else recipe


def settings_note(choices: list[ChosenSetting], source: str) -> str:
    """Format the chosen settings with their reasons."""
    name, value = (max(len(getattr(choice, part)) for choice in choices) for part in ("setting", "value"))
    lines = [f"  {choice.setting:<{name}}  {choice.value:<{value}}  because {choice.reason}" for choice in choices]
    return "\n".join([f"[bold]Settings chosen for {escape(source)}[/bold]", *lines, ""])


def apply_options(recipe: Recipe, options: list[str], program: str) -> Recipe:
    """Apply options such as ``--train.optimizer.lr 5e-4``: every field of the recipe's parts is a typed option."""
    parts: list[tuple[str, Any, Any]] = [
        (name, type(getattr(recipe, name)), field(default=getattr(recipe, name)))
        for name in ("model", "data", "augment", "task", "train")
    ]
    typed = make_dataclass("Recipe", [*parts, ("weights", str, field(default=recipe.weights))])
    argv = merge_named_options(replace_deprecated(expand_short_options(options), recipe.train, print_note), recipe)
    parsed: Any = tyro.cli(typed, args=argv, prog=program, config=(tyro.conf.FlagConversionOff,), registry=registry())
    return Recipe(parsed.model, parsed.data, parsed.augment, parsed.task, parsed.train, parsed.weights)


def print_note(text: str) -> None:
    """Print a note to stderr, on the main process only."""
    if os.environ.get("RANK", "0") == "0":
        err.print(f"note: {text}", markup=False)


def train_recipe(recipe: Recipe, output: Path, world: World, *, resume: bool, argv: list[str]) -> None:
    """Train and print the result; on interruption, print the command that resumes the run."""
    world.run_on_main(lambda: make_run_folder(output))
    prepared = prepare_run(recipe)
    if world.is_main:
        print_setup(recipe, prepared, output)
    argv = [word for word in argv if word != "--resume"]
    portable = (Path(word).name if Path(word).is_absolute() else word for word in argv)
    command = shlex.join(["vitreous", "train", *portable])
    try:
        outcome = run_training(prepared, recipe, output, world, resume=resume, command=command)
    except Interrupted as stopped:
        if world.is_main:
            again = shlex.join(["vitreous", "train", *argv, "--resume"])
            err.print(f"\n{stopped}. To resume, run\n  {again}", markup=False)
        raise SystemExit(130) from None
    if world.is_main:
        out.print(closing_message(outcome, output), soft_wrap=True)


def make_run_folder(output: Path) -> None:
    """Create the run folder and check that it is writable, before the data are opened."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {output} ({error.strerror}); choose another --output") from None
    check_writable(output / "config.json")


def print_setup(recipe: Recipe, prepared: Prepared, output: Path) -> None:
    """Print model and data sizes, notes on the data, and preflight warnings."""
    model, train = prepared.model, prepared.train
    number = sum(parameter.numel() for parameter in model.parameters())
    valid = f"{len(prepared.valid):,} validation images" if prepared.valid is not None else "no validation images"
    out.print(f"{type(model).__name__} with {number:,} parameters; {len(train):,} training images in "
              f"{len(train.classes)} classes, {valid}; run folder {output}", markup=False, soft_wrap=True)  # fmt: skip
    for note in prepared.notes:
        err.print(f"note: {note}", markup=False)
    for finding in preflight(recipe, prepared):
        err.print(f"[yellow]preflight:[/yellow] {escape(str(finding))}")


def closing_message(outcome: TrainOutcome, output: Path) -> str:
    """Format the main metric, the files and the next command."""
    folder = escape(str(output))
    lines = [f"trained on {outcome.images:,} images in {outcome.seconds / 60:.1f} minutes"]
    if outcome.metrics:
        assert outcome.meter is not None
        name, score = next(iter(outcome.metrics.items()))
        shown = f"{score:.2%}" if score.unit == "share" else str(score)
        lines.insert(0, f"[bold]{name} {shown}[/bold] on {len(outcome.meter):,} validation images")
    return f"""
{", ".join(lines)}

  {folder}/model.safetensors   the trained model
  {folder}/report.html         training curves, confusion matrix, worst mistakes

Next:
  vitreous predict {folder}/model.safetensors IMAGES"""


def usage() -> str:
    """Format the help text with the list of recipes."""
    known = list_recipes()
    width = max(map(len, known))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in known.items()]
    return "\n".join(
        [
            "vitreous train RECIPE [options]                 RECIPE is a name below, or the path of a Python file",
            "vitreous train --data SOURCE [--model NAME] [--weights WEIGHTS] [options]",
            "",
            "SOURCE is a folder of class folders, a CSV file, tar shards, a CIFAR folder, shapes or digits.",
            "",
            "  --output FOLDER             run folder; default: runs/RECIPE",
            "  --resume                    resume the run in that folder",
            "  --smoke                     smoke test: two steps on a few synthetic scenes",
            "  --epochs 10 --lr 5e-4 --batch-size 64 --device cuda   common settings; --image-size, --steps, --seed …",
            "  --train.optimizer.lr 5e-4   any setting of the recipe; vitreous train RECIPE --help lists them",
            "",
            "Recipes:",
            *lines,
            "",
            "Distributed: torchrun --nproc-per-node 2 -m vitreous train …",
        ]
    )
