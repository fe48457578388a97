"""Process many images with a journal, so that an interrupted run resumes where it stopped.

Results are appended to ``OUTPUT.part``, one JSON line per image after a header that identifies the run; the output is
written once all images are done. A truncated last line is dropped, and the journal of a different run is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from vitreous.cli.display import err
from vitreous.cli.image_paths import with_progress
from vitreous.data.image_files import printable
from vitreous.files import CannotWrite

T = TypeVar("T")


class Journal:
    """The results of a run so far: ``done`` maps a file name to its record.

    Args:
        output: The final output; the journal lies beside it as ``OUTPUT.part``.
        run: What identifies the run, compared with the header of an existing journal.
    """

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
        """Read the complete lines of an interrupted run and truncate a partial last line."""
        content = self.path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        lines = complete.decode("utf-8").split("\n")[:-1]
        try:
            head, *rest = map(json.loads, lines) if lines else [self.run]
            self.done = {line["file"]: line for line in rest}
        except (ValueError, KeyError, TypeError):
            head = None
        if head != self.run:
            raise ValueError(
                f"{self.path} belongs to a run with other settings; remove it to start over, or choose another --output"
            )
        os.truncate(self.path, len(complete))

    def write(self, line: dict[str, Any]) -> None:
        """Append a JSON line, unbuffered."""
        content = memoryview((json.dumps(line, ensure_ascii=False) + "\n").encode())
        try:
            while content:
                content = content[self.file.write(content) :]
        except OSError as error:
            raise CannotWrite(error.errno, error.strerror, str(self.path)) from None

    def add(self, line: dict[str, Any]) -> None:
        """Record a finished image."""
        self.write(line)
        self.done[line["file"]] = line

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *failure: object) -> None:
        self.file.close()


def run_resumable(
    paths: list[Path],
    output: Path,
    run: dict[str, Any],
    process: Callable[[list[Path]], Iterable[T]],
    as_line: Callable[[Path, T], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return a record per image, processing only those that an interrupted run has not finished."""
    with Journal(output, run) as journal:
        todo = [path for path in paths if printable(path) not in journal.done]
        if journal.done:
            err.print(f"{len(paths) - len(todo):,} of {len(paths):,} images are already done; {len(todo):,} remaining")
        counted = with_progress(process(todo), len(paths), len(paths) - len(todo))
        try:
            for path, one in zip(todo, counted, strict=True):
                journal.add(as_line(path, one))
        except KeyboardInterrupt:
            err.print(resume_note(journal, paths))
            raise
        except CannotWrite as error:
            raise ValueError(f"{error}; free some space: {resume_note(journal, paths)}") from None
    return [journal.done[printable(path)] for path in paths]


def resume_note(journal: Journal, paths: list[Path]) -> str:
    return f"{len(journal.done):,} of {len(paths):,} images are saved; run the same command again to resume"


def remove_journal(output: Path) -> None:
    """Delete the journal once the output has been written."""
    journal_path(output).unlink(missing_ok=True)


def journal_path(output: Path) -> Path:
    return output.with_name(output.name + ".part")
