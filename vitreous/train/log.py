"""What a run says while it learns: a line a person can read, JSON lines, TensorBoard events."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from vitreous.files import write_atomically

SECONDS_BETWEEN_LINES = 30  # where no bar can be drawn


class RunLog:
    """Writes ``log.jsonl`` and TensorBoard events, and shows progress; silent where ``shown`` is False."""

    def __init__(self, folder: Path, *, total: int, start: int, shown: bool = True) -> None:
        self.total, self.shown, self.folder = total, shown, folder
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.last_line = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(None), TaskProgressColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console, disable=not (shown and self.console.is_terminal))
        self.task = self.bar.add_task("learning", total=total, completed=start)
        if shown:
            forget_after(folder / "log.jsonl", start)
            self.file = open(folder / "log.jsonl", "a", encoding="utf-8")  # noqa: SIM115 - closed in __exit__
            self.events = tensorboard(folder / "tensorboard", start)

    def __enter__(self) -> RunLog:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if self.shown:
            self.file.close()
            self.events.close()

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """One line of the log, also as events."""
        if not self.shown:
            return
        self.file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
        self.file.flush()
        for name, value in values.items():
            self.events.add_scalar(f"{kind}/{name}", value, step)

    def progress(self, step: int, text: str) -> None:
        self.bar.update(self.task, completed=step, description=text)
        if self.shown and not self.console.is_terminal and time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            self.say(f"step {step:,} of {self.total:,}  {text}")

    def say(self, text: str) -> None:
        if self.shown:
            self.console.print(text)


def forget_after(path: Path, step: int) -> None:
    """Drop the lines of steps that a resumed run will take again, and a line cut in half."""
    if not path.exists():
        return
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if is_before(line, step)]
    write_atomically(path, "".join(f"{line}\n" for line in kept).encode())


def is_before(line: str, step: int) -> bool:
    try:
        return bool(json.loads(line)["step"] <= step)
    except (ValueError, KeyError, TypeError):
        return False


def tensorboard(folder: Path, start: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=start)
