"""Run the checks of an exercise on a learner's file, whatever that file does."""

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

from vitreous.lab.exercises.checking import Answer, CheckFailed, wrap_answer
from vitreous.lab.exercises.result import Result, State
from vitreous.lab.exercises.table import Exercise

Check = Callable[..., None]


def judge(exercise: Exercise, path: Path) -> Iterator[Result]:
    """Yield one result per check; after a final failure the checks of the same function wait."""
    try:
        module = load_module(path)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        yield Result("the file can be loaded", State.FAILED, describe_error(error, path))
        return
    stuck: set[str] = set()
    for check in checks_of(exercise):
        if required_functions(check) & stuck:
            yield Result(check_title(check), State.WAITING, about=required_functions(check))
            continue
        result, final = run_check(check, module, path)
        if final:
            stuck |= result.about
        yield result


def run_check(check: Check, module: ModuleType, path: Path) -> tuple[Result, bool]:
    """Return the result of a check, and whether the other checks of its functions must wait."""
    title, about = check_title(check), required_functions(check)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            check(**{name: learner_function(module, name) for name in about})
    except CheckFailed as wrong:
        return Result(title, State.FAILED, str(wrong), about, wrong.vague), wrong.final
    except NotImplementedError:
        return Result(title, State.NOT_WRITTEN, about=about), True
    except (Exception, SystemExit) as error:
        return Result(title, State.FAILED, describe_error(error, path), about), True
    return Result(title, State.PASSED, about=about), False


def load_module(path: Path) -> ModuleType:
    """Execute the file as a module without caching, so that it can be loaded again after a change."""
    source = path.read_text(encoding="utf-8")
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    return module


def learner_function(module: ModuleType, name: str) -> Answer:
    found = getattr(module, name, None)
    if found is None:
        raise CheckFailed(f"there is no {name} in the file; the checks call it by this name", final=True)
    return wrap_answer(found) if inspect.isfunction(found) else found


def checks_of(exercise: Exercise) -> list[Check]:
    module = importlib.import_module(f"vitreous.lab.exercises.checks.{exercise.module}")
    return [member for name, member in vars(module).items() if name.startswith("check_")]


def required_functions(check: Check) -> frozenset[str]:
    """Names of the learner's functions that a check calls: the names of its parameters."""
    return frozenset(inspect.signature(check).parameters)


def check_title(check: Check) -> str:
    return (check.__doc__ or "").strip().removesuffix(".")


def describe_error(error: BaseException, path: Path) -> str:
    """Describe an error with the line of the learner's file and the arguments of the failed call."""
    what = (str(error).strip().splitlines() or [""])[0]
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}, {(error.text or '').strip()!r}: {kind}: {error.msg}"
    if isinstance(error, SystemExit):
        kind, what = "the file exits Python here", "remove exit()"
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"line {lines[-1].lineno}, {lines[-1].line!r}: " if lines else ""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{where}{kind}: {what}{notes}"


def judge_into(pipe: Connection, exercise: Exercise, path: Path) -> None:
    """Entry point of the check subprocess: send the titles, then every result, then None."""
    sys.path.insert(0, str(path.parent))  # an answer may import earlier ones
    torch.set_num_threads(1)
    pipe.send([check_title(check) for check in checks_of(exercise)])
    for result in judge(exercise, path):
        pipe.send(result)
    pipe.send(None)
