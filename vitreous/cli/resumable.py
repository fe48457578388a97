"""A run over many images that can be interrupted at any moment and goes on where it stopped.

Finished images are lines of a file ``OUTPUT.part``, whose first line says what the run is; when all are done the
output is made of it. A last line that was cut off is dropped, and a file of another run is never mixed in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from vitreous.cli.image_paths import with_progress
from vitreous.cli.show import err
from vitreous.data.image_files import printable
from vitreous.files import CannotWrite

T = TypeVar("T")


class Journal:
    def __init__(self, output: Path, run: dict[str, Any]) -> None:
        if not output.parent.is_dir():
            raise ValueError(f"cannot write {output}: there is no folder {output.parent}")
        self.path = journal_path(output)
        self.run = run
        self.done: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            self.recover()
        self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (closed on exit)
        if self.path.stat().st_size == 0:
            self.write(run)

    def recover(self) -> None:
        """Read the whole lines of an interrupted run, and cut off what was half written."""
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        lines = whole.decode("utf-8").split("\n")[:-1]
        try:
            head, *rest = map(json.loads, lines) if lines else [self.run]
            self.done = {line["file"]: line for line in rest}
        except (ValueError, KeyError, TypeError):
            head = None
        if head != self.run:
            raise ValueError(
                f"{self.path} belongs to a run with other settings; remove it to start anew, or give another --output"
            )
        os.truncate(self.path, len(whole))

    def write(self, line: dict[str, Any]) -> None:
        content = memoryview((json.dumps(line, ensure_ascii=False) + "\n").encode())
        try:
            while content:
                content = content[self.file.write(content) :]
        except OSError as error:
            raise CannotWrite(error.errno, error.strerror, str(self.path)) from None

    def add(self, line: dict[str, Any]) -> None:
        self.write(line)
        self.done[line["file"]] = line

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *failure: object) -> None:
        self.file.close()


def journalled(
    paths: list[Path],
    output: Path,
    run: dict[str, Any],
    answer: Callable[[list[Path]], Iterable[T]],
    as_line: Callable[[Path, T], dict[str, Any]],
) -> list[dict[str, Any]]:
    """A line for every image; those that an interrupted run has answered are not asked again."""
    with Journal(output, run) as journal:
        todo = [path for path in paths if printable(path) not in journal.done]
        if journal.done:
            err.print(f"{len(paths) - len(todo):,} of {len(paths):,} images are done already; {len(todo):,} to go")
        counted = with_progress(answer(todo), len(paths), len(paths) - len(todo))
        try:
            for path, one in zip(todo, counted, strict=True):
                journal.add(as_line(path, one))
        except KeyboardInterrupt:
            err.print(kept(journal, paths))
            raise
        except CannotWrite as error:
            raise ValueError(f"{error}; make room there: {kept(journal, paths)}") from None
    return [journal.done[printable(path)] for path in paths]


def kept(journal: Journal, paths: list[Path]) -> str:
    return f"{len(journal.done):,} of {len(paths):,} images are kept; the same command goes on from there"


def forget(output: Path) -> None:
    """The output is written: the journal has done its work."""
    journal_path(output).unlink(missing_ok=True)


def journal_path(output: Path) -> Path:
    return output.with_name(output.name + ".part")
