"""Work shared by processes of one thread each: small experiments gain more from that than from many threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def side_by_side(work: Callable[..., T], tasks: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[T]:
    """``work(*task)`` for every task, begun in order; results as they are finished. One job stays in this process."""
    if jobs <= 1 or len(tasks) <= 1:
        yield from (work(*task) for task in tasks)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=one_thread) as pool:
        futures = [pool.submit(work, *task) for task in tasks]
        try:
            yield from (future.result() for future in as_completed(futures))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def one_thread() -> None:
    import torch

    torch.set_num_threads(1)
