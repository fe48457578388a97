"""Memory that is given back and asked for again at every step, kept instead.

glibc asks the kernel for every tensor above 32 MiB and gives it back when the tensor dies, and it gives back the end of
its heap as well; the kernel then fills each page with zeros before it is used again. A training step needs the same
tensors as the one before: kept, the pages cost nothing but a process that does not shrink between two steps.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # mallopt's names for its settings
NEVER_TRIM, NO_MAPPINGS = -1, 0
USUAL_TRIM, USUAL_MAPPINGS = 64 * 2**20, 65536  # where glibc arrives by itself once large tensors have come and gone


@contextmanager
def memory_kept() -> Iterator[None]:
    """Freed memory stays with the process inside the ``with`` and is returned after it; without glibc, no change."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(MMAP_MAX, NO_MAPPINGS)
    libc.mallopt(TRIM_THRESHOLD, NEVER_TRIM)
    try:
        yield
    finally:
        libc.mallopt(MMAP_MAX, USUAL_MAPPINGS)
        libc.mallopt(TRIM_THRESHOLD, USUAL_TRIM)
        libc.malloc_trim(0)
