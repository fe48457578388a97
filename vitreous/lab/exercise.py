"""Handing out exercises and checking answers; what a learner has written is never touched."""

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
from vitreous.lab.exercises.table import Exercise, find

START = 120.0  # seconds until a new Python must have imported torch
RECORD = ".checked.json"


def hand_out(number: int | str, folder: Path) -> Path:
    """The exercise's file in ``folder``, which is made; one that is there already stays as it is."""
    exercise = find(str(number))
    path = folder / exercise.file.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(exercise.file.read_text(encoding="utf-8"))
    except FileExistsError:
        if not path.is_file():
            raise ValueError(f"cannot write {path}: {folder} must be a folder; choose another --folder") from None
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def check(number: int | str, path: Path, *, seconds: float = 30.0) -> list[Result]:
    """What every check says about the file, run in a Python of its own with ``seconds`` for each check."""
    exercise = find(str(number))
    if not path.is_file():
        raise ValueError(f"there is no {path}; vitreous lab exercise {exercise.number} hands it out")
    results: list[Result] = []
    with running(exercise, path.resolve()) as pipe:
        try:
            if not pipe.poll(START):
                raise ValueError(f"Python and torch did not start within {START:.0f} seconds; try again")
            titles = pipe.recv()
            while pipe.poll(seconds):
                result = pipe.recv()
                if result is None:
                    return results
                results.append(result)
            message = f"not finished after {seconds:.0f} seconds: is there a loop that never ends?"
        except EOFError:
            message = "Python itself came to an end while this ran: look for exit calls and endless recursion"
    return [*results, Result(titles[len(results)], State.FAILED, message)]


@contextmanager
def running(exercise: Exercise, path: Path) -> Iterator[Connection]:
    """A process that judges the file, and the end of the pipe at which its results come out."""
    from vitreous.lab.exercises.judge import judge_into  # torch comes with it

    context = get_context("spawn")
    pipe, other_end = context.Pipe(duplex=False)
    process = context.Process(target=judge_into, args=(other_end, exercise, path), daemon=True)
    process.start()
    other_end.close()
    try:
        yield pipe
    finally:
        process.kill()
        process.join()
        pipe.close()


def remember(exercise: Exercise, path: Path, results: list[Result]) -> None:
    """Keeps what a check found beside the file, so that a list of exercises needs no new check."""
    passed = sum(result.state is State.PASSED for result in results)
    known = {
        **record(path.parent),
        exercise.name: {"file": file_digest(path)[:16], "passed": passed, "checks": len(results)},
    }
    with suppress(OSError):  # it is no more than a convenience
        (path.parent / RECORD).write_text(json.dumps(known, indent=1) + "\n")


def progress(exercise: Exercise, folder: Path) -> str:
    """How far a learner has come, in a few words; empty before the file is handed out."""
    path = folder / exercise.file.name
    if not path.is_file():
        return ""
    if path.read_bytes() == exercise.file.read_bytes():
        return "handed out"
    known = record(folder).get(exercise.name)
    if known is None or known["file"] != file_digest(path)[:16]:
        return "changed, not checked"
    return "done" if known["passed"] == known["checks"] else f"{known['passed']} of {known['checks']} checks pass"


def record(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
