"""Running experiments: one after the other or side by side, each result kept until its file changes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.files import CannotRead, commit, digest, open_file, write_atomically
from vitreous.lab.outcome import Outcome
from vitreous.lab.table import Experiment, find
from vitreous.lab.trial import Trial
from vitreous.lab.workers import side_by_side


def run(name: str, trial: Trial) -> Outcome:
    """Measure one claim, whatever was measured before."""
    experiment = find(name)
    trial = replace(trial, series={}, left_out=[])
    start = time.perf_counter()
    cases = tuple(experiment.cases(trial))
    seconds = time.perf_counter() - start
    return Outcome(name, cases, trial.quick, round(seconds, 1), trial.series, tuple(trial.left_out), made(name, trial))


def run_all(names: Sequence[str], trial: Trial, *, jobs: int, fresh: bool = False) -> Iterator[Outcome]:
    """Outcomes as they are finished; kept ones come first. ``jobs`` processes share the work, a thread each."""
    waiting = []
    for name in names:
        kept = None if fresh else read(name, trial)
        if kept is None:
            waiting.append(name)
        else:
            yield kept
    yield from side_by_side(run_and_keep, [(name, trial) for name in waiting], jobs)


def run_and_keep(name: str, trial: Trial) -> Outcome:
    outcome = run(name, trial)
    path = place(name, trial)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"key": key(find(name), trial), **outcome.to_json()}
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    return outcome


def read(name: str, trial: Trial) -> Outcome | None:
    """A kept result, if it was made by the present file with the same things at hand."""
    try:
        found = json.loads(place(name, trial).read_bytes())
        return Outcome.from_json(found) if found.pop("key") == key(find(name), trial) else None
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def place(name: str, trial: Trial) -> Path:
    return trial.folder / ("quick" if trial.quick else "full") / f"{name}.json"


def key(experiment: Experiment, trial: Trial) -> str:
    """What a kept result depends on: the claim's file, what it measures with, and what it was given.

    Not the layers: ``--fresh`` measures again after a change there.
    """
    lab = Path(__file__).parent
    files = (experiment.file, lab / "sweep.py", lab / "trained.py", *sorted((lab / "instruments").glob("*.py")))
    given = [trial.quick, *(bool(getattr(trial, name)) for name in ("weights", "photos", "cifar"))]
    return digest(b"".join(file.read_bytes() for file in files) + repr(given).encode())[:16]


def made(name: str, trial: Trial) -> dict[str, Any]:
    """How to make a result again."""
    import torch

    return {
        "command": command(name, trial),
        "commit": commit(),
        "seeds": len(trial.seeds),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def command(name: str, trial: Trial) -> str:
    """What to type; of files and folders the last name, since they lie elsewhere for others."""
    given = {option: Path(getattr(trial, option)).name for option in ("weights", "photos", "cifar")}
    options = [f"--{option} {value}" for option, value in given.items() if value]
    return " ".join(["vitreous lab run", name, *(["--quick"] if trial.quick else []), *options])


def latest(name: str, folder: Path) -> Outcome | None:
    """The kept result of a full run, or of a quick one, whatever it was given."""
    for kind in ("full", "quick"):
        path = folder / kind / f"{name}.json"
        if path.exists():
            return kept(path)
    return None


def kept(path: Path) -> Outcome:
    """A kept result, or one line about a file that is none."""
    try:
        with open_file(path) as file:
            found = json.loads(file.read())
        del found["key"]
        outcome = Outcome.from_json(found)
        assert outcome.verdict  # follows from the cases, and fails where they hold other things than numbers
    except CannotRead:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(
            f"{path} is no result of the laboratory, or damaged; remove it and measure anew with vitreous lab run"
        ) from None
    return outcome
