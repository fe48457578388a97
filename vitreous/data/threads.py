"""Parallel map over images with threads; image decoders release the GIL."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
Progress = Callable[[int, int], None]  # images done, total
PENDING_PER_THREAD = 4  # pending results per thread


def in_threads(
    work: Callable[[int], T], total: int, *, workers: int | None = None, progress: Progress | None = None
) -> Iterator[T]:
    """Compute ``work(0)`` … ``work(total - 1)`` in threads and yield the results in order."""
    workers = workers or min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        futures = (pool.submit(work, index) for index in range(total))
        pending = deque(islice(futures, PENDING_PER_THREAD * workers))
        try:
            for done in range(1, total + 1):
                result = pending.popleft().result()
                pending.extend(islice(futures, 1))
                yield result
                if progress:
                    progress(done, total)
        finally:
            for future in pending:
                future.cancel()
