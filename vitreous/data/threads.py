"""The same work on many images, by several threads: decoders let go of Python's lock while they work."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
Progress = Callable[[int, int], None]  # images done, images in all
AHEAD = 4  # results for each thread that may wait for their turn


def in_threads(
    work: Callable[[int], T], total: int, *, workers: int | None = None, progress: Progress | None = None
) -> Iterator[T]:
    """``work(0)``, ``work(1)`` … in this order, whichever thread is done first."""
    workers = workers or min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        coming = (pool.submit(work, index) for index in range(total))
        waiting = deque(islice(coming, AHEAD * workers))
        try:
            for done in range(1, total + 1):
                result = waiting.popleft().result()
                waiting.extend(islice(coming, 1))
                yield result
                if progress:
                    progress(done, total)
        finally:
            for future in waiting:
                future.cancel()
