"""Open, find and digest files, write them atomically, and name the commit of the code at hand.

A file is written under a temporary name in its own folder, flushed to the disk and then renamed: readers see the old
file or the new one, never half of it, even when power or disk fail midway. Standard library only, so that every module
may import it.
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

#: Without waiting for the other end of a pipe; not every system has each of these flags.
READING = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
ROOM = 4096  # bytes that must find room where results are to be written


class CannotWrite(OSError, ValueError):
    """A path that no file can be created at: an OSError for code that can do without the file, and in one line."""

    def __str__(self) -> str:
        return f"cannot write {self.filename}: {self.strerror}"


class CannotRead(OSError, ValueError):
    """A path that no file can be read from, in one line."""

    def __str__(self) -> str:
        return f"cannot read {self.filename}: {self.strerror}"


def open_file(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading; a named pipe, a device or a socket is refused, and nothing waits for it.

    This is the one place that opens files of unknown origin: whatever is wrong is a :class:`CannotRead`.
    """
    try:
        descriptor = os.open(path, READING)
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
    """Regular files below a folder, in no particular order; ``keep`` decides by name which files and folders count.

    Links are followed, but no folder is entered twice, nor any that holds ``folder``: a link to a folder above ends.
    Pipes, devices, sockets and links that lead nowhere are added to ``others``.
    """
    entered = folders_above(folder)
    waiting = [os.fspath(folder)]
    while waiting:
        place = waiting.pop()
        try:
            found = os.stat(place)
            if (found.st_dev, found.st_ino) in entered:
                continue
            entered.add((found.st_dev, found.st_ino))
            with os.scandir(place) as entries:
                for entry in entries:
                    if keep(entry.name) and entry.is_dir():
                        waiting.append(entry.path)
                    elif keep(entry.name) and entry.is_file():
                        yield entry.path
                    elif keep(entry.name) and others is not None:
                        others.append(entry.path)
        except OSError as error:
            raise CannotRead(error.errno, error.strerror, error.filename or place) from None


def folders_above(folder: str | os.PathLike[str]) -> set[tuple[int, int]]:
    """Device and inode of every folder that holds this one."""
    above: set[tuple[int, int]] = set()
    for parent in Path(os.path.realpath(folder)).parents:
        with suppress(OSError):
            found = os.stat(parent)
            above.add((found.st_dev, found.st_ino))
    return above


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, in whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path, *, keep_suffix: bool = False) -> Iterator[Path]:
    """Yield a new, empty file beside ``path`` that takes its place at the end, or is removed if anything goes wrong.

    Its name ends in ``.part``; ``keep_suffix`` is for writers that choose the format by the suffix.

    >>> with replacing(Path("model.onnx"), keep_suffix=True) as temporary:
    ...     onnx.save(program, temporary)
    """
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}.part{path.suffix if keep_suffix else ''}")
    create(temporary, path)
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


def create(temporary: Path, path: Path) -> None:
    """Create the empty temporary file, or say in one line why ``path`` cannot be written."""
    if path.is_dir():
        raise CannotWrite(errno.EISDIR, "it is a folder", str(path))
    if path.exists() and not path.is_file():  # renaming would replace it, /dev/null for instance
        raise CannotWrite(errno.EINVAL, "it is a pipe, a device or a socket, not a regular file", str(path))
    if not path.parent.is_dir():
        raise CannotWrite(errno.ENOENT, f"there is no folder {path.parent}", str(path))
    try:
        temporary.touch()
    except OSError as error:
        raise CannotWrite(error.errno, f"{error.strerror}; choose another folder", str(path)) from None


def need_room(path: Path) -> None:
    """Refuse in one line, before the work is done, a place where no small file can be written."""
    try:
        trial = path.with_name(f".{path.name}.{threading.get_native_id()}.trial")
        create(trial, path)
        try:
            trial.write_bytes(bytes(ROOM))
        finally:
            trial.unlink(missing_ok=True)
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(error.errno, f"{error.strerror}; choose another place", str(path)) from None


def digest(content: bytes | str) -> str:
    """SHA-256 of bytes, or of a text in UTF-8, in hexadecimal digits."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Digest of a file's content, read in parts, in hexadecimal digits."""
    with open_file(path) as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def commit() -> str:
    """The git commit of this code, with ``-dirty`` behind it when files differ; empty outside a repository."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        answer = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()
