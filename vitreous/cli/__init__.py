"""The command line: a table of typed functions, imported when they are called."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from dataclasses import dataclass

from vitreous import __version__


@dataclass(frozen=True)
class Command:
    home: str  # module:function
    summary: str
    parses_itself: bool = False  # the function takes the words; its options depend on the first of them


COMMANDS = {
    "quickstart": Command("vitreous.cli.quickstart:quickstart", "train a small ViT in two minutes and look inside"),
    "train": Command("vitreous.cli.train:train", "a recipe, or a model for your images", parses_itself=True),
    "evaluate": Command("vitreous.cli.evaluate:evaluate", "accuracy, calibration and confusions on labeled images"),
    "predict": Command("vitreous.cli.predict:predict", "classes of images, folders or patterns"),
    "embed": Command("vitreous.cli.embed:embed", "feature vectors of images; nearest neighbors and duplicates"),
    "explain": Command("vitreous.cli.explain:explain", "a page that shows why: maps, faithfulness, heads, measures"),
    "export": Command("vitreous.cli.export:export", "a file that runs without Vitreous: ONNX, or compiled for here"),
    "bench": Command("vitreous.cli.bench:bench", "how fast a model runs here, in every way there is"),
    "models": Command("vitreous.cli.models:models", "every model: size, cost, paper, public weights"),
    "models show": Command("vitreous.cli.models:show", "what a model is made of, stage by stage"),
    "cost": Command("vitreous.cli.cost:cost", "parameters, MACs and memory of models, at any size"),
    "cost plan": Command("vitreous.cli.cost:plan", "does a training run fit, how to shard it, how long it takes"),
    "data show": Command("vitreous.cli.data:show", "a contact sheet of Shapes with its labels"),
    "data inspect": Command("vitreous.cli.inspect:inspect", "counts, balance, sizes, broken and duplicate images"),
    "data pack": Command("vitreous.cli.inspect:pack", "a dataset as tar shards, for sets larger than memory"),
    "lab": Command("vitreous.cli.lab:lab", "what textbooks state about vision transformers, with verdicts"),
    "lab run": Command("vitreous.cli.lab:run", "put claims to the test: prediction, measurement, figure"),
    "lab exercise": Command("vitreous.cli.exercise:exercise", "build it yourself: ten tasks, and checks that help"),
}  # fmt: skip

HELP = ("-h", "--help", "help")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; what users can mend is one line on stderr and exit code 2, a bug one line and exit code 1."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in HELP or (group_of(words[0]) and words[1:2] and words[1] in HELP):
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"vitreous {__version__}")
        return 0
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # of a class name in an unusual script
    warnings.filterwarnings("ignore", module="PIL")  # of odd metadata: what matters is reported image by image
    name = ""
    try:
        name = find(words)
        run(name, words[len(name.split()) :])
    except KeyboardInterrupt:
        print("vitreous: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from vitreous.cli.mishaps import tell

        return tell(error, name)
    return 0


def find(words: list[str]) -> str:
    """The longest command that the words begin with."""
    for length in (2, 1):
        if (name := " ".join(words[:length])) in COMMANDS:
            return name
    from vitreous.options import did_you_mean

    if group := group_of(words[0]):
        raise ValueError(f"'{words[0]}' needs one of: {', '.join(group)}")
    raise ValueError(f"there is no command {words[0]!r}{did_you_mean(words[0], COMMANDS)} (vitreous --help lists all)")


def group_of(word: str) -> list[str]:
    """The commands that begin with a word which is no command by itself."""
    return [name for name in COMMANDS if name.startswith(f"{word} ") and word not in COMMANDS]


def run(name: str, words: list[str]) -> None:
    import tyro

    module, function = COMMANDS[name].home.split(":")
    command = getattr(importlib.import_module(module), function)
    if COMMANDS[name].parses_itself:
        command(words)
    else:
        tyro.cli(command, args=words, prog=f"vitreous {name}")


def overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            f"Vitreous {__version__}: vision transformers you can see through",
            "",
            *lines,
            "",
            "vitreous COMMAND --help tells a command's options.",
        ]
    )
