"""Parallel execution in single-threaded processes, which suits small experiments better than many threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def parallel_map(work: Callable[..., T], tasks: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[T]:
    """Yield ``work(*task)`` for every task as results arrive; with one job, run in this process."""
    if jobs <= 1 or len(tasks) <= 1:
        yield from (work(*task) for task in tasks)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=use_one_thread) as pool:
        futures = [pool.submit(work, *task) for task in tasks]
        try:
            yield from (future.result() for future in as_completed(futures))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)
