"""Run experiments, sequentially or in parallel, and cache each result until its file changes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.files import CannotRead, commit, digest, open_file, write_atomically
from vitreous.lab.outcome import ClaimOutcome
from vitreous.lab.table import Experiment, find_experiment
from vitreous.lab.trial import Trial
from vitreous.lab.workers import parallel_map


def run_claim(name: str, trial: Trial) -> ClaimOutcome:
    """Measure a claim, ignoring cached results."""
    experiment = find_experiment(name)
    trial = replace(trial, series={}, left_out=[])
    start = time.perf_counter()
    cases = tuple(experiment.cases(trial))
    seconds = time.perf_counter() - start
    left_out = tuple(trial.left_out)
    return ClaimOutcome(name, cases, trial.quick, round(seconds, 1), trial.series, left_out, provenance(name, trial))


def run_all(names: Sequence[str], trial: Trial, *, jobs: int, fresh: bool = False) -> Iterator[ClaimOutcome]:
    """Yield the outcomes of claims as they finish, cached ones first.

    Args:
        names: Claims to run.
        trial: Settings of the experiments.
        jobs: Number of worker processes, each with one thread.
        fresh: Ignore cached results.
    """
    waiting = []
    for name in names:
        cached = None if fresh else read_cached(name, trial)
        if cached is None:
            waiting.append(name)
        else:
            yield cached
    yield from parallel_map(run_and_save, [(name, trial) for name in waiting], jobs)


def run_and_save(name: str, trial: Trial) -> ClaimOutcome:
    """Measure a claim and cache its outcome."""
    outcome = run_claim(name, trial)
    path = result_path(name, trial)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"key": cache_key(find_experiment(name), trial), **outcome.to_json()}
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    return outcome


def read_cached(name: str, trial: Trial) -> ClaimOutcome | None:
    """Return the cached outcome if it was made by the current code with the same inputs, else None."""
    try:
        found = json.loads(result_path(name, trial).read_bytes())
        return ClaimOutcome.from_json(found) if found.pop("key") == cache_key(find_experiment(name), trial) else None
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def result_path(name: str, trial: Trial) -> Path:
    """Return the path of a cached result."""
    return trial.folder / ("quick" if trial.quick else "full") / f"{name}.json"


def cache_key(experiment: Experiment, trial: Trial) -> str:
    """Hash what a cached result depends on: the claim's file, the instruments, and which inputs were given.

    Layers and models are not included: after changing them, use ``--fresh``.
    """
    lab = Path(__file__).parent
    files = (experiment.file, lab / "sweep.py", lab / "trained.py", *sorted((lab / "instruments").glob("*.py")))
    given = [trial.quick, *(bool(getattr(trial, name)) for name in ("weights", "photos", "cifar"))]
    return digest(b"".join(file.read_bytes() for file in files) + repr(given).encode())[:16]


def provenance(name: str, trial: Trial) -> dict[str, Any]:
    """Describe how to reproduce a result."""
    import torch

    return {
        "command": rerun_command(name, trial),
        "commit": commit(),
        "seeds": len(trial.seeds),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def rerun_command(name: str, trial: Trial) -> str:
    """Return the command line, with paths reduced to their last component."""
    given = {option: Path(getattr(trial, option)).name for option in ("weights", "photos", "cifar")}
    options = [f"--{option} {value}" for option, value in given.items() if value]
    return " ".join(["vitreous lab run", name, *(["--quick"] if trial.quick else []), *options])


def latest_result(name: str, folder: Path) -> ClaimOutcome | None:
    """Return the cached result of a full run, else of a quick run, regardless of its inputs."""
    for kind in ("full", "quick"):
        path = folder / kind / f"{name}.json"
        if path.exists():
            return read_result(path)
    return None


def read_result(path: Path) -> ClaimOutcome:
    """Read a cached result; raise a ValueError if the file is damaged."""
    try:
        with open_file(path) as file:
            found = json.loads(file.read())
        del found["key"]
        outcome = ClaimOutcome.from_json(found)
        assert outcome.verdict  # computed from the cases: fails if they do not hold numbers
    except CannotRead:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(
            f"{path} is not a result of the laboratory, or is damaged; delete it and run vitreous lab run again"
        ) from None
    return outcome
