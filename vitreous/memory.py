"""Memory that is given back and asked for again with every batch, kept instead.

glibc asks the kernel for every tensor above 32 MiB and gives it back when the tensor dies, and it gives back the end of
its heap as well; the kernel then fills each page with zeros before it is used again. A batch needs the same tensors as
the one before: kept, the pages cost nothing but a process that does not shrink between the two.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # mallopt's names for its settings
NEVER_TRIM, NO_MAPPINGS = -1, 0
USUAL_TRIM, USUAL_MAPPINGS = 64 * 2**20, 65536  # where glibc arrives by itself once large tensors have come and gone

_users, _lock = 0, threading.Lock()


@contextmanager
def memory_kept() -> Iterator[None]:
    """Freed memory stays with the process inside the ``with``, or the outermost of several, and is returned after it;
    without glibc, no change."""
    join(1)
    try:
        yield
    finally:
        join(-1)


def join(more: int) -> None:
    """The first to come changes the settings, the last to leave changes them back."""
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
