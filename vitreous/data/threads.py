"""The same work on many pictures, by several threads: decoders let go of Python's lock while they work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
Progress = Callable[[int, int], None]  # pictures done, pictures in all
AHEAD = 1024  # results that may wait for their turn


def in_threads(
    work: Callable[[int], T], total: int, *, workers: int | None = None, progress: Progress | None = None
) -> Iterator[T]:
    """``work(0)``, ``work(1)`` … in this order, whichever thread is done first."""
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, total, AHEAD):
            block = range(start, min(start + AHEAD, total))
            for index, result in zip(block, pool.map(work, block), strict=True):
                yield result
                if progress:
                    progress(index + 1, total)
