"""The threads of this process that encode and decode blocks, and the one pattern in which they are used."""

from __future__ import annotations

import functools
import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

GRAIN = 1 << 20
"""Weight (raw bytes) from which on work is worth handing to another thread."""


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads shared by all callers; idle ones end with the process."""
    return ThreadPoolExecutor(threads, thread_name_prefix="ckpt-spill")


if hasattr(os, "register_at_fork"):
    # A forked child has the pool but none of its threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)


def ordered(
    function: Callable[[T], R], items: Iterable[T], *, weight: Callable[[T], int], threads: int
) -> Generator[R, None, None]:
    """Results of `function` for all items, in their order, computed by the pool a few ahead of the caller.

    Parameters
    ----------
    function : callable
        Must not itself wait for the pool.
    items : iterable
        Taken by the caller's thread, a bounded number ahead of the results it has used.
    weight : callable
        How many bytes an item stands for; light ones go to the pool together.
    threads : int
        Size of the pool; 1 computes everything in the caller's thread.

    Notes
    -----
    When the generator ends, also by an error or because the caller leaves, nothing of it is running any more: the
    caller may close files and let go of memory that `function` used.
    """
    if threads == 1:
        yield from map(function, items)
        return
    pool = _pool(threads)
    waiting: deque[Future[list[R]]] = deque()
    groups = _grouped(items, weight)
    try:
        for group in itertools.islice(groups, 2 * threads + 2):
            waiting.append(pool.submit(_all, function, group))
        while waiting:
            results = waiting[0].result()  # stays in the list until it is done: an interrupt can come while it runs
            waiting.popleft()
            for group in itertools.islice(groups, 1):
                waiting.append(pool.submit(_all, function, group))
            yield from results
    finally:
        for future in waiting:
            future.cancel()
        for future in waiting:
            if not future.cancelled():
                future.exception()


def _all(function: Callable[[T], R], group: list[T]) -> list[R]:
    """Apply a function to one group, in the pool's thread."""
    return [function(item) for item in group]


def _grouped(items: Iterable[T], weight: Callable[[T], int]) -> Iterator[list[T]]:
    """Consecutive items, together at least GRAIN heavy."""
    group: list[T] = []
    total = 0
    for item in items:
        group.append(item)
        total += weight(item)
        if total >= GRAIN:
            yield group
            group, total = [], 0
    if group:
        yield group
