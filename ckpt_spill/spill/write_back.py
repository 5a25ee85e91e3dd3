"""Files that were written without waiting for the disk, on their way there in the background.

What is spilled has left memory only once it is on the disk: until then it is in the page cache. And who makes a
checkpoint of it by link has to wait for what is not there yet.
"""

from __future__ import annotations

import contextlib
import functools
import os
from concurrent.futures import ThreadPoolExecutor

from ckpt_spill.store.descriptors import start_write_back


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """One thread: the call waits where the disk has too much to do already."""
    return ThreadPoolExecutor(1, thread_name_prefix="ckpt-spill-write-back")


if hasattr(os, "register_at_fork"):
    # A forked child has the pool but not its thread.
    os.register_at_fork(after_in_child=_pool.cache_clear)


def write_back_soon(path: str) -> None:
    """Ask for a file to be written to the disk, and do not wait; one that is gone by its turn costs nothing."""
    with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
        _pool().submit(_write_back, path)


def _write_back(path: str) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            start_write_back(fd, 0, 0)
        finally:
            os.close(fd)
