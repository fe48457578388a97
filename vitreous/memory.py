"""Retain freed CPU memory between batches.

glibc maps every tensor above 32 MiB separately, unmaps it when it is freed, and trims the top of its heap as well; the
kernel then zeroes each page before it is used again. Consecutive batches need tensors of the same sizes, so retaining
the pages saves that work; in return, the process does not shrink between batches.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # parameters of mallopt
NEVER_TRIM, NO_MAPPINGS = -1, 0
USUAL_TRIM, USUAL_MAPPINGS = 64 * 2**20, 65536  # what glibc adapts to after large tensors were freed

_users, _lock = 0, threading.Lock()


@contextmanager
def retain_freed_memory() -> Iterator[None]:
    """Keep freed memory in the process until the outermost ``with`` block ends; does nothing without glibc."""
    change_users(1)
    try:
        yield
    finally:
        change_users(-1)


def change_users(more: int) -> None:
    """Change the number of active blocks: the first sets glibc's parameters, the last restores them."""
    global _users
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):
        return
    with _lock:
        before, _users = _users, _users + more
        if not before:
            libc.mallopt(MMAP_MAX, NO_MAPPINGS)
            libc.mallopt(TRIM_THRESHOLD, NEVER_TRIM)
        elif not _users:
            libc.mallopt(MMAP_MAX, USUAL_MAPPINGS)
            libc.mallopt(TRIM_THRESHOLD, USUAL_TRIM)
            libc.malloc_trim(0)
