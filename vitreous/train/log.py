"""What a run says while it learns: a line a person can read, JSON lines, TensorBoard events."""

from __future__ import annotations

import importlib
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from vitreous.files import open_file, write_atomically

SECONDS_BETWEEN_LINES = 30  # where no bar can be drawn


class RunLog:
    """Writes ``log.jsonl`` and TensorBoard events, and shows progress; silent where ``shown`` is False.

    A file that cannot be written is complained of once and costs nothing but itself: training goes on.
    """

    def __init__(self, folder: Path, *, total: int, start: int, shown: bool = True) -> None:
        self.total, self.shown, self.folder = total, shown, folder
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.last_line = time.monotonic()
        self.complaints: set[str] = set()
        columns = (TextColumn("{task.description}"), BarColumn(None), TaskProgressColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console, disable=not (shown and self.console.is_terminal))
        self.task = self.bar.add_task("learning", total=total, completed=start)
        if shown:
            forget_after(folder / "log.jsonl", start)
            self.lines = Appended(folder / "log.jsonl")
            self.events = Events(folder / "tensorboard", start)

    def __enter__(self) -> RunLog:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if self.shown:
            for file in (self.lines, self.events.file):
                file.close()
                if file.waiting:
                    self.complain(f"the end of {file.path} is missing: there was no room for it")

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """One line of the log, also as events."""
        if not self.shown:
            return
        self.lines.add((json.dumps({"step": step, "kind": kind, **values}) + "\n").encode())
        for name, value in values.items():
            self.events.add(f"{kind}/{name}", value, step)
        for file in (self.lines, self.events.file):
            if problem := file.flush():
                self.complain(problem)

    def sync(self) -> None:
        """What is written so far outlives a loss of power."""
        if self.shown and (problem := self.lines.sync()):
            self.complain(problem)

    def progress(self, step: int, text: str) -> None:
        self.bar.update(self.task, completed=step, description=text)
        if self.shown and not self.console.is_terminal and time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            self.say(f"step {step:,} of {self.total:,}  {text}")

    def say(self, text: str, *, style: str = "") -> None:
        """Print a line as it is: what looks like markup in it may be the name of a file."""
        if self.shown:
            self.console.print(text, markup=False, style=style)

    def complain(self, text: str) -> None:
        """Say it once."""
        if text not in self.complaints:
            self.complaints.add(text)
            self.say(text, style="yellow")


class Appended:
    """A file that only grows. What finds no room waits in memory until there is some; a removed file begins anew."""

    def __init__(self, path: Path) -> None:
        self.path, self.waiting = path, bytearray()
        self.number = -1

    def add(self, content: bytes) -> None:
        self.waiting += content

    def flush(self) -> str | None:
        """Write what waits; what went wrong, in a sentence."""
        try:
            removed = self.number >= 0 and not self.path.exists()
            if removed:
                self.close()
            if self.number < 0:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.number = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            while self.waiting:
                del self.waiting[: os.write(self.number, self.waiting)]
        except OSError as error:
            return f"{self.path} cannot be written ({error.strerror}); the run goes on"
        return f"{self.path} was removed while the run wrote to it; a new one begins here" if removed else None

    def sync(self) -> str | None:
        problem = self.flush()
        try:
            if self.number >= 0:
                os.fsync(self.number)
        except OSError as error:
            return f"{self.path} cannot be written ({error.strerror}); the run goes on"
        return problem

    def close(self) -> None:
        if self.number >= 0:
            os.close(self.number)
            self.number = -1


class Events:
    """Scalars for TensorBoard, written where we stand: its own writer has a thread that dies of a full disk."""

    def __init__(self, folder: Path, start: int) -> None:
        events = importlib.import_module("tensorboard.compat.proto.event_pb2")
        records = importlib.import_module("tensorboard.summary.writer.record_writer")
        name = f"events.out.tfevents.{time.time_ns() // 10**9}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
        self.file, self.event = Appended(folder / name), events.Event
        self.records = records.RecordWriter(Sink(self.file))
        self.write(step=start, file_version="brain.Event:2")
        start_anew = events.SessionLog(status=events.SessionLog.START)  # later steps of an earlier file do not count
        self.write(step=start, session_log=start_anew)

    def add(self, name: str, value: float, step: int) -> None:
        from torch.utils.tensorboard.summary import scalar

        self.write(step=step, summary=scalar(name, value))

    def write(self, **content: Any) -> None:
        self.records.write(self.event(wall_time=time.time(), **content).SerializeToString())


class Sink:
    """What TensorBoard's records are written to."""

    def __init__(self, file: Appended) -> None:
        self.write = file.add


def forget_after(path: Path, step: int) -> None:
    """Drop the lines of steps that a resumed run will take again, and a line cut in half."""
    if not path.exists():
        return
    with open_file(path) as file:
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    kept = [line for line in lines if is_before(line, step)]
    write_atomically(path, "".join(f"{line}\n" for line in kept).encode())


def is_before(line: str, step: int) -> bool:
    try:
        return bool(json.loads(line)["step"] <= step)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
