"""Logging of a training run: progress on the terminal, JSON lines, TensorBoard events."""

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

SECONDS_BETWEEN_LINES = 30  # of progress, where the output is not a terminal


class RunLog:
    """Write ``log.jsonl`` and TensorBoard events and show progress; do nothing if ``shown`` is False.

    A file that cannot be written causes one warning; training continues without it.
    """

    def __init__(self, folder: Path, *, total: int, start: int, shown: bool = True) -> None:
        self.total, self.shown, self.folder = total, shown, folder
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.last_line = time.monotonic()
        self.warned: set[str] = set()
        columns = (TextColumn("{task.description}"), BarColumn(None), TaskProgressColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console, disable=not (shown and self.console.is_terminal))
        self.task = self.bar.add_task("training", total=total, completed=start)
        if shown:
            drop_lines_after(folder / "log.jsonl", start)
            self.lines = AppendOnlyFile(folder / "log.jsonl")
            self.events = EventWriter(folder / "tensorboard", start)

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
                if file.pending:
                    self.warn_once(f"the end of {file.path} could not be written: no space left")

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Append one record to ``log.jsonl`` and its values as TensorBoard scalars."""
        if not self.shown:
            return
        self.lines.add((json.dumps({"step": step, "kind": kind, **values}) + "\n").encode())
        for name, value in values.items():
            self.events.add(f"{kind}/{name}", value, step)
        for file in (self.lines, self.events.file):
            if problem := file.flush():
                self.warn_once(problem)

    def sync(self) -> None:
        """Flush ``log.jsonl`` to the disk, so that it survives a power failure."""
        if self.shown and (problem := self.lines.sync()):
            self.warn_once(problem)

    def progress(self, step: int, text: str) -> None:
        self.bar.update(self.task, completed=step, description=text)
        if self.shown and not self.console.is_terminal and time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            self.print(f"step {step:,} of {self.total:,}  {text}")

    def print(self, text: str, *, style: str = "") -> None:
        """Print a line without interpreting markup, since file names may contain brackets."""
        if self.shown:
            self.console.print(text, markup=False, style=style)

    def warn_once(self, text: str) -> None:
        """Print a warning unless the same one was printed before."""
        if text not in self.warned:
            self.warned.add(text)
            self.print(text, style="yellow")


class AppendOnlyFile:
    """A log file opened for appending. Content that cannot be written stays in memory; a removed file is recreated."""

    def __init__(self, path: Path) -> None:
        self.path, self.pending = path, bytearray()
        self.descriptor = -1

    def add(self, content: bytes) -> None:
        self.pending += content

    def flush(self) -> str | None:
        """Write pending content; return a message if the file cannot be written or was removed."""
        try:
            removed = self.descriptor >= 0 and not self.path.exists()
            if removed:
                self.close()
            if self.descriptor < 0:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            while self.pending:
                del self.pending[: os.write(self.descriptor, self.pending)]
        except OSError as error:
            return f"{self.path} cannot be written ({error.strerror}); training continues"
        return f"{self.path} was removed during the run; a new file was started" if removed else None

    def sync(self) -> str | None:
        """Flush and ``fsync``; return a message on failure."""
        problem = self.flush()
        try:
            if self.descriptor >= 0:
                os.fsync(self.descriptor)
        except OSError as error:
            return f"{self.path} cannot be written ({error.strerror}); training continues"
        return problem

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class EventWriter:
    """Write TensorBoard scalars synchronously: TensorBoard's own writer thread dies when the disk is full."""

    def __init__(self, folder: Path, start: int) -> None:
        events = importlib.import_module("tensorboard.compat.proto.event_pb2")
        records = importlib.import_module("tensorboard.summary.writer.record_writer")
        name = f"events.out.tfevents.{time.time_ns() // 10**9}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
        self.file, self.event = AppendOnlyFile(folder / name), events.Event
        self.records = records.RecordWriter(RecordSink(self.file))
        self.write(step=start, file_version="brain.Event:2")
        restart = events.SessionLog(
            status=events.SessionLog.START
        )  # makes TensorBoard discard later steps of earlier files
        self.write(step=start, session_log=restart)

    def add(self, name: str, value: float, step: int) -> None:
        from torch.utils.tensorboard.summary import scalar

        self.write(step=step, summary=scalar(name, value))

    def write(self, **content: Any) -> None:
        self.records.write(self.event(wall_time=time.time(), **content).SerializeToString())


class RecordSink:
    """The minimal file object that TensorBoard's RecordWriter needs."""

    def __init__(self, file: AppendOnlyFile) -> None:
        self.write = file.add


def drop_lines_after(path: Path, step: int) -> None:
    """Drop log lines after ``step``, which a resumed run writes again, and any truncated line."""
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
