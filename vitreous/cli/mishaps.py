"""What no command foresaw, in one line: a full disk, a place that may not be written to, too little memory, a bug.

The one place that turns an exception into a sentence. ``VITREOUS_DEBUG=1`` shows where it came from as well.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from json import JSONDecodeError

MENDABLE, BUG = 2, 1  # exit codes
REMEDIES = {
    errno.ENOSPC: "make room there, or choose another place",
    errno.EDQUOT: "make room there, or choose another place",
    errno.EACCES: "you may not read or write there: change its permissions, or choose another place",
    errno.EPERM: "you may not read or write there: change its permissions, or choose another place",
    errno.EROFS: "choose a place that can be written to",
    errno.ENOENT: "check the path",
    errno.EISDIR: "give a file, not a folder",
    errno.ENOTDIR: "one of the folders of that path is a file",
    errno.EMFILE: "too many files are open: raise the limit with ulimit -n, or use fewer workers",
}
MEMORY = ("can't allocate memory", "out of memory", "not enough memory", "cannot allocate memory", "unable to allocate")


def tell(error: Exception, command: str) -> int:
    """Print one line about what went wrong to stderr; the exit code."""
    told, code = explained(error)
    if os.environ.get("VITREOUS_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    elif code == BUG:
        told += f" ({where_to_look(error)})"
    print(f"{speaker('' if is_foreseen(error) else command)}: {one_line(told)}", file=sys.stderr)
    return code


def one_line(text: str) -> str:
    """The text with its control characters written out: names of files and classes may hold line ends and more."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text.strip())


def speaker(command: str) -> str:
    """Who speaks, with the number of the process where there are several."""
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    return f"vitreous {command}".rstrip() + (f" (process {os.environ.get('RANK', '?')})" if several else "")


def explained(error: Exception) -> tuple[str, int]:
    """A sentence that says what to do, and whether users can do something about it."""
    if is_foreseen(error):
        return str(error), MENDABLE
    kind, text = type(error).__name__, first_line(error)
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in MEMORY):
        return f"not enough memory ({text or kind}); lower the batch size or the image size", MENDABLE
    if isinstance(error, OSError):
        return of_the_system(error, text or kind), MENDABLE
    if isinstance(error, RecursionError):
        return "something is nested too deeply to be read (RecursionError); check the files that were given", MENDABLE
    if isinstance(error, UnicodeError):
        return f"some text is not in the encoding that was expected ({text}); save it as UTF-8", MENDABLE
    if isinstance(error, JSONDecodeError):
        return f"a file that should hold JSON is damaged ({text})", MENDABLE
    return f"this is a bug of Vitreous, please report it: {kind}: {text}", BUG


def is_foreseen(error: Exception) -> bool:
    """Whether the error says in its own words what was given and what to do."""
    return isinstance(error, ValueError) and not isinstance(error, UnicodeError | JSONDecodeError)


def of_the_system(error: OSError, text: str) -> str:
    reason = error.strerror or text
    if error.filename is not None:
        reason = f"{os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename}: {reason}"
    remedy = REMEDIES.get(error.errno or 0, "")
    return f"{reason}; {remedy}" if remedy else reason


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def where_to_look(error: Exception) -> str:
    """Where the traceback is, in a file of its own where one can be written."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="vitreous-", suffix=".log", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return "VITREOUS_DEBUG=1 shows the traceback"
    return f"traceback in {file.name}"
