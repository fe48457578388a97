"""Command-line entry point: a table of typed functions, each imported when its command runs."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from dataclasses import dataclass

from vitreous import __version__


@dataclass(frozen=True)
class Command:
    """An entry of the command table."""

    target: str  # module:function
    summary: str
    raw_arguments: bool = False  # the function parses argv itself: its options depend on the first argument


COMMANDS = {
    "quickstart": Command("vitreous.cli.quickstart:quickstart", "train a small ViT in two minutes, show its attention"),
    "train": Command("vitreous.cli.train:train", "train a recipe, or a model on your own images", raw_arguments=True),
    "evaluate": Command("vitreous.cli.evaluate:evaluate", "accuracy, calibration and confusions on labeled images"),
    "predict": Command("vitreous.cli.predict:predict", "predictions for images, folders or glob patterns"),
    "embed": Command("vitreous.cli.embed:embed", "image embeddings, nearest neighbors and duplicates"),
    "explain": Command("vitreous.cli.explain:explain", "an HTML page that explains a prediction, with evidence"),
    "export": Command("vitreous.cli.export:export", "export to ONNX, or to a package compiled for this CPU"),
    "bench": Command("vitreous.cli.bench:bench", "benchmark a model with every engine available on this machine"),
    "models": Command("vitreous.cli.models:models", "list all models: size, cost, paper, published weights"),
    "models show": Command("vitreous.cli.models:show", "the stages of a model and their output shapes"),
    "cost": Command("vitreous.cli.cost:cost", "parameters, MACs and memory of models at any image size"),
    "cost plan": Command("vitreous.cli.cost:plan", "estimate memory, sharding and duration of a training run"),
    "data show": Command("vitreous.cli.data:show", "a contact sheet of the synthetic Shapes dataset"),
    "data inspect": Command("vitreous.cli.inspect:inspect", "class balance, image sizes, broken and duplicate images"),
    "data pack": Command("vitreous.cli.inspect:pack", "pack a dataset into tar shards, for sets larger than memory"),
    "lab": Command("vitreous.cli.lab:lab", "textbook claims about vision transformers, with verdicts"),
    "lab run": Command("vitreous.cli.lab:run_claims", "test claims: prediction, measurement, figure"),
    "lab exercise": Command("vitreous.cli.exercise:exercise", "ten programming exercises with automatic checks"),
    "push": Command("vitreous.cli.push:push", "publish a model on the Hugging Face hub, with a model card"),
    "completion": Command("vitreous.cli.completion:completion", "print a shell completion script"),
}  # fmt: skip

HELP = ("-h", "--help", "help")


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    Errors that users can fix are one line on stderr with exit code 2; bugs are one line with exit code 1.
    """
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in HELP or (subcommands(argv[0]) and argv[1:2] and argv[1] in HELP):
        print(overview())
        return 0
    if argv[0] == "--version":
        print(f"vitreous {__version__}")
        return 0
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # class names in unusual scripts
    warnings.filterwarnings("ignore", module="PIL")  # odd metadata; unreadable images are reported one by one
    name = ""
    try:
        name = find_command(argv)
        run_command(name, argv[len(name.split()) :])
    except KeyboardInterrupt as error:  # a run says at which step it stopped, and repeating quickstart continues it
        print(f"vitreous: {error or 'interrupted'}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from vitreous.cli.errors import report_error

        return report_error(error, name)
    return 0


def find_command(argv: list[str]) -> str:
    """Return the longest command name that ``argv`` starts with."""
    for length in (2, 1):
        if (name := " ".join(argv[:length])) in COMMANDS:
            return name
    from vitreous.options import did_you_mean

    if group := subcommands(argv[0]):
        raise ValueError(f"'{argv[0]}' needs a subcommand: {', '.join(group)}")
    raise ValueError(f"unknown command {argv[0]!r}{did_you_mean(argv[0], COMMANDS)} (vitreous --help lists all)")


def subcommands(word: str) -> list[str]:
    """List the commands that start with ``word``, where ``word`` alone is not a command."""
    return [name for name in COMMANDS if name.startswith(f"{word} ") and word not in COMMANDS]


def run_command(name: str, argv: list[str]) -> None:
    """Import a command and call it with its parsed arguments."""
    import tyro

    module, function = COMMANDS[name].target.split(":")
    command = getattr(importlib.import_module(module), function)
    if COMMANDS[name].raw_arguments:
        command(argv)
    else:
        tyro.cli(command, args=argv, prog=f"vitreous {name}")


def overview() -> str:
    """Format the help text that lists every command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            f"Vitreous {__version__}: vision transformers you can see through",
            "",
            *lines,
            "",
            "Run vitreous COMMAND --help for the options of a command.",
        ]
    )
