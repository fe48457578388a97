"""Open, find and hash files, write them atomically, and determine the git commit of this code.

A file is written under a temporary name in the target folder, flushed to disk and then renamed: readers see the old
file or the new one, never a partial one, even after a power failure. Standard library only, so that every module may
import it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

#: Non-blocking, so that opening a pipe does not wait; not every system has each of these flags.
READ_FLAGS = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
TRIAL_BYTES = 4096  # written to test whether a folder is writable


class CannotWrite(OSError, ValueError):
    """A file cannot be written. Also a ``ValueError``, so that the command line reports it in one line."""

    def __str__(self) -> str:
        return f"cannot write {self.filename}: {self.strerror}"


class CannotRead(OSError, ValueError):
    """A file cannot be read. Also a ``ValueError``, so that the command line reports it in one line."""

    def __str__(self) -> str:
        return f"cannot read {self.filename}: {self.strerror}"


def open_file(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading, without blocking on pipes, devices or sockets.

    All files of unknown origin are opened here.

    Raises:
        CannotRead: The path does not exist, is not a regular file, or may not be read.
    """
    try:
        descriptor = os.open(path, READ_FLAGS)
    except OSError as error:
        raise CannotRead(error.errno, error.strerror, os.fspath(path)) from None
    except ValueError as error:  # a null character in the name
        raise CannotRead(errno.EINVAL, str(error), repr(path)) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = "it is a folder" if stat.S_ISDIR(mode) else "it is a pipe, a device or a socket, not a regular file"
        raise CannotRead(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, what, os.fspath(path))
    return os.fdopen(descriptor, "rb")


def files_below(
    folder: str | os.PathLike[str], keep: Callable[[str], bool] = lambda name: True, *, others: list[str] | None = None
) -> Iterator[str]:
    """Yield the regular files below a folder, in no particular order.

    Links are followed, but no folder is visited twice, and links to a parent of ``folder`` are skipped.

    Args:
        folder: The folder to search.
        keep: Filter for the names of files and folders.
        others: A list to which pipes, devices, sockets and broken links are appended.
    """
    visited = parent_folders(folder)
    pending = [os.fspath(folder)]
    while pending:
        current = pending.pop()
        try:
            found = os.stat(current)
            if (found.st_dev, found.st_ino) in visited:
                continue
            visited.add((found.st_dev, found.st_ino))
            with os.scandir(current) as entries:
                for entry in entries:
                    if keep(entry.name) and entry.is_dir():
                        pending.append(entry.path)
                    elif keep(entry.name) and entry.is_file():
                        yield entry.path
                    elif keep(entry.name) and others is not None:
                        others.append(entry.path)
        except OSError as error:
            raise CannotRead(error.errno, error.strerror, error.filename or current) from None


def parent_folders(folder: str | os.PathLike[str]) -> set[tuple[int, int]]:
    """Return device and inode of every parent of a folder."""
    parents: set[tuple[int, int]] = set()
    for parent in Path(os.path.realpath(folder)).parents:
        with suppress(OSError):
            found = os.stat(parent)
            parents.add((found.st_dev, found.st_ino))
    return parents


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` completely or not at all."""
    with atomic_replacement(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def atomic_replacement(path: Path, *, keep_suffix: bool = False) -> Iterator[Path]:
    """Yield a new, empty file in the folder of ``path`` that replaces it at the end, or is removed on an exception.

    Its name ends in ``.part``. ``keep_suffix`` appends the suffix of ``path``, for writers that infer the format.

    >>> with atomic_replacement(Path("model.onnx"), keep_suffix=True) as temporary:
    ...     onnx.save(program, temporary)
    """
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}.part{path.suffix if keep_suffix else ''}")
    create_temporary(temporary, path)
    try:
        yield temporary
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, ValueError):  # a full disk names no file
            raise CannotWrite(error.errno, error.strerror or str(error), str(path)) from error
        raise


def create_temporary(temporary: Path, path: Path) -> None:
    """Create the empty temporary file, or raise :class:`CannotWrite` with the reason."""
    if path.is_dir():
        raise CannotWrite(errno.EISDIR, "it is a folder", str(path))
    if path.exists() and not path.is_file():  # renaming would replace it, e.g. /dev/null
        raise CannotWrite(errno.EINVAL, "it is a pipe, a device or a socket, not a regular file", str(path))
    if not path.parent.is_dir():
        raise CannotWrite(errno.ENOENT, f"there is no folder {path.parent}", str(path))
    try:
        temporary.touch()
    except OSError as error:
        raise CannotWrite(error.errno, f"{error.strerror}; choose another folder", str(path)) from None


def check_writable(path: Path) -> None:
    """Raise :class:`CannotWrite` if a small file cannot be written to ``path``; call it before long computations."""
    try:
        trial = path.with_name(f".{path.name}.{threading.get_native_id()}.trial")
        create_temporary(trial, path)
        try:
            trial.write_bytes(bytes(TRIAL_BYTES))
        finally:
            trial.unlink(missing_ok=True)
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(error.errno, f"{error.strerror}; choose another folder", str(path)) from None


def digest(content: bytes | str) -> str:
    """Return the SHA-256 of bytes or of UTF-8 text, in hexadecimal."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the digest of a file's content in hexadecimal, read in chunks."""
    with open_file(path) as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def commit() -> str:
    """Return the git commit of this code, with the suffix ``-dirty`` if files differ; empty outside a repository."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        answer = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()
