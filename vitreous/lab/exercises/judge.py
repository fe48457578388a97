"""Running a learner's file against the checks of its exercise, whatever the file does."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

import torch

from vitreous.lab.exercises.checking import Answer, Wrong, guarded
from vitreous.lab.exercises.result import Result, State
from vitreous.lab.exercises.table import Exercise

Check = Callable[..., None]


def judge(exercise: Exercise, path: Path) -> Iterator[Result]:
    """One result after the other; what cannot be answered before something else is mended waits for it."""
    try:
        module = load(path)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        yield Result("the file can be read", State.FAILED, told(error, path))
        return
    stuck: set[str] = set()
    for check in checks_of(exercise):
        if needs_of(check) & stuck:
            yield Result(title_of(check), State.WAITING, about=needs_of(check))
            continue
        result, final = one_result(check, module, path)
        if final:
            stuck |= result.about
        yield result


def one_result(check: Check, module: ModuleType, path: Path) -> tuple[Result, bool]:
    """What a check found, and whether the others must wait."""
    title, about = title_of(check), needs_of(check)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            check(**{name: answer(module, name) for name in about})
    except Wrong as wrong:
        return Result(title, State.FAILED, str(wrong), about, wrong.vague), wrong.final
    except NotImplementedError:
        return Result(title, State.NOT_WRITTEN, about=about), True
    except (Exception, SystemExit) as error:
        return Result(title, State.FAILED, told(error, path), about), True
    return Result(title, State.PASSED, about=about), False


def load(path: Path) -> ModuleType:
    """The file as a module; nothing is kept, so that it can be loaded again when it has changed."""
    source = path.read_text(encoding="utf-8")
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    return module


def answer(module: ModuleType, name: str) -> Answer:
    found = getattr(module, name, None)
    if found is None:
        raise Wrong(f"there is no {name} in the file: the checks call it by that name", final=True)
    return guarded(found) if inspect.isfunction(found) else found


def checks_of(exercise: Exercise) -> list[Check]:
    module = importlib.import_module(f"vitreous.lab.exercises.checks.{exercise.module}")
    return [member for name, member in vars(module).items() if name.startswith("check_")]


def needs_of(check: Check) -> frozenset[str]:
    """The learner's functions that a check asks for, by the names of its parameters."""
    return frozenset(inspect.signature(check).parameters)


def title_of(check: Check) -> str:
    return (check.__doc__ or "").strip().removesuffix(".")


def told(error: BaseException, path: Path) -> str:
    """What went wrong, in which line of the learner's file, and what the function had been given."""
    what = (str(error).strip().splitlines() or [""])[0]
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}, {(error.text or '').strip()!r}: {kind}: {error.msg}"
    if isinstance(error, SystemExit):
        kind, what = "the file ends Python here", "take out exit()"
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"line {lines[-1].lineno}, {lines[-1].line!r}: " if lines else ""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{where}{kind}: {what}{notes}"


def judge_into(pipe: Connection, exercise: Exercise, path: Path) -> None:
    """The work of a process of its own: says when it is ready, sends every result, then an end."""
    sys.path.insert(0, str(path.parent))  # an answer may use earlier ones
    torch.set_num_threads(1)
    pipe.send([title_of(check) for check in checks_of(exercise)])
    for result in judge(exercise, path):
        pipe.send(result)
    pipe.send(None)
