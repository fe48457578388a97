"""Copy exercises to a learner's folder and check solutions, without ever overwriting the learner's files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vitreous.files import file_digest
from vitreous.lab.exercises.result import Result, State
from vitreous.lab.exercises.table import Exercise, find_exercise

START_TIMEOUT = 120.0  # seconds for a subprocess to import torch
RECORD = ".checked.json"


def hand_out(number: int | str, folder: Path) -> Path:
    """Copy the exercise's file to ``folder``, unless it exists already, and return its path."""
    exercise = find_exercise(str(number))
    path = folder / exercise.file.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(exercise.file.read_text(encoding="utf-8"))
    except FileExistsError:
        if not path.is_file():
            raise ValueError(f"cannot write {path}: {folder} is not a folder; choose another --folder") from None
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def check_exercise(number: int | str, path: Path, *, seconds: float = 30.0) -> list[Result]:
    """Run an exercise's checks on a file in a subprocess, with a timeout of ``seconds`` per check."""
    exercise = find_exercise(str(number))
    if not path.is_file():
        raise ValueError(f"{path} does not exist; vitreous lab exercise {exercise.number} creates it")
    results: list[Result] = []
    with checking_process(exercise, path.resolve()) as pipe:
        try:
            if not pipe.poll(START_TIMEOUT):
                raise ValueError(f"Python and torch did not start within {START_TIMEOUT:.0f} seconds; try again")
            titles = pipe.recv()
            while pipe.poll(seconds):
                result = pipe.recv()
                if result is None:
                    return results
                results.append(result)
            message = f"timed out after {seconds:.0f} seconds: is there an infinite loop?"
        except EOFError:
            message = "Python exited during this check: look for exit calls and infinite recursion"
    return [*results, Result(titles[len(results)], State.FAILED, message)]


@contextmanager
def checking_process(exercise: Exercise, path: Path) -> Iterator[Connection]:
    """Start a subprocess that checks the file, and yield the connection that receives its results."""
    from vitreous.lab.exercises.judge import judge_into  # imports torch

    context = get_context("spawn")
    pipe, sender = context.Pipe(duplex=False)
    process = context.Process(target=judge_into, args=(sender, exercise, path), daemon=True)
    process.start()
    sender.close()
    try:
        yield pipe
    finally:
        process.kill()
        process.join()
        pipe.close()


def save_progress(exercise: Exercise, path: Path, results: list[Result]) -> None:
    """Save the number of passed checks beside the file, so that listing the exercises runs no checks."""
    passed = sum(result.state is State.PASSED for result in results)
    known = {
        **read_progress(path.parent),
        exercise.name: {"file": file_digest(path)[:16], "passed": passed, "checks": len(results)},
    }
    with suppress(OSError):  # the record is optional
        (path.parent / RECORD).write_text(json.dumps(known, indent=1) + "\n")


def describe_progress(exercise: Exercise, folder: Path) -> str:
    """Describe a learner's progress in a few words; empty if the exercise was not started."""
    path = folder / exercise.file.name
    if not path.is_file():
        return ""
    if path.read_bytes() == exercise.file.read_bytes():
        return "started"
    known = read_progress(folder).get(exercise.name)
    if known is None or known["file"] != file_digest(path)[:16]:
        return "changed, not checked"
    return "done" if known["passed"] == known["checks"] else f"{known['passed']} of {known['checks']} checks pass"


def read_progress(folder: Path) -> dict[str, Any]:
    """Return the saved progress by exercise name, or an empty dict."""
    try:
        return json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
