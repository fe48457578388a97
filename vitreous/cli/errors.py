"""Report any exception as one line: full disks, missing permissions, too little memory, invalid input, bugs.

``VITREOUS_DEBUG=1`` prints the traceback as well.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from json import JSONDecodeError

USER_ERROR, BUG = 2, 1  # exit codes
REMEDIES = {
    errno.ENOSPC: "free some space, or choose another location",
    errno.EDQUOT: "free some space, or choose another location",
    errno.EACCES: "change its permissions, or choose another location",
    errno.EPERM: "change its permissions, or choose another location",
    errno.EROFS: "choose a writable location",
    errno.ENOENT: "check the path",
    errno.EISDIR: "give a file, not a folder",
    errno.ENOTDIR: "one of the folders in that path is a file",
    errno.EMFILE: "too many open files: raise the limit with ulimit -n, or use fewer workers",
}
MEMORY = ("can't allocate memory", "out of memory", "not enough memory", "cannot allocate memory", "unable to allocate")


def report_error(error: Exception, command: str) -> int:
    """Print one line about the error to stderr and return the exit code."""
    message, code = message_and_code(error)
    if os.environ.get("VITREOUS_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    elif code == BUG:
        message += f" ({save_traceback(error)})"
    print(f"{prefix('' if is_user_error(error) else command)}: {one_line(message)}", file=sys.stderr)
    return code


def one_line(text: str) -> str:
    """Escape control characters: names of files and classes may contain line breaks."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text.strip())


def prefix(command: str) -> str:
    """Return the program and command name, with the rank in distributed runs."""
    distributed = os.environ.get("WORLD_SIZE", "1") != "1"
    return f"vitreous {command}".rstrip() + (f" (process {os.environ.get('RANK', '?')})" if distributed else "")


def message_and_code(error: Exception) -> tuple[str, int]:
    """Return a message that says what to do, and the exit code."""
    if is_user_error(error):
        return str(error), USER_ERROR
    kind, text = type(error).__name__, first_line(error)
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in MEMORY):
        return f"not enough memory ({text or kind}); lower the batch size or the image size", USER_ERROR
    if isinstance(error, OSError):
        return os_error_message(error, text or kind), USER_ERROR
    if isinstance(error, RecursionError):
        return "the input is nested too deeply (RecursionError); check the files that were given", USER_ERROR
    if isinstance(error, UnicodeError):
        return f"a text file has an unexpected encoding ({text}); save it as UTF-8", USER_ERROR
    if isinstance(error, JSONDecodeError):
        return f"a JSON file is damaged ({text})", USER_ERROR
    return f"this is a bug in Vitreous, please report it: {kind}: {text}", BUG


def is_user_error(error: Exception) -> bool:
    """Whether the error was raised with a message for users."""
    return isinstance(error, ValueError) and not isinstance(error, UnicodeError | JSONDecodeError)


def os_error_message(error: OSError, text: str) -> str:
    """Format the file name, the system's message and a remedy."""
    reason = error.strerror or text
    if error.filename is not None:
        reason = f"{os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename}: {reason}"
    remedy = REMEDIES.get(error.errno or 0, "")
    return f"{reason}; {remedy}" if remedy else reason


def first_line(error: Exception) -> str:
    """Return the first line of the error's message, or an empty string."""
    return next(iter(str(error).strip().splitlines()), "")


def save_traceback(error: Exception) -> str:
    """Write the traceback to a temporary file and return a note about where to find it."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="vitreous-", suffix=".log", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return "VITREOUS_DEBUG=1 shows the traceback"
    return f"traceback in {file.name}"
