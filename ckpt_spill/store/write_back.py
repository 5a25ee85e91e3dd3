"""Getting the kernel to write what is in the page cache to the disk, before it would by itself.

What is spilled has left memory only once it is on the disk, and who wants it there later, as a checkpoint made by link
does, has to wait for the rest. Where nobody waits for the disk the asking is done by a thread, as it takes time itself
when the disk has much to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_WAITING = 64
"""Ranges that may wait for the thread, each with a descriptor. A disk that cannot keep up needs no more of them."""


def start_write_back(fd: int, offset: int, nbytes: int) -> None:
    """Ask the kernel to begin writing a range; only a hint, so its answer does not matter."""
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(fd, offset, nbytes, _SYNC_FILE_RANGE_WRITE)


def start_write_back_soon(fd: int, offset: int, nbytes: int) -> None:
    """Have the same done, and do not wait. The descriptor may be closed."""
    _thread().start(fd, offset, nbytes)


class _Thread:
    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ckpt-spill-write-back")
        self._free = threading.BoundedSemaphore(_WAITING)

    def start(self, fd: int, offset: int, nbytes: int) -> None:
        if not self._free.acquire(blocking=False):
            return
        with contextlib.ExitStack() as undo:
            undo.callback(self._free.release)
            with contextlib.suppress(OSError, RuntimeError):  # too many open files; the interpreter is shutting down
                own = os.dup(fd)
                undo.callback(os.close, own)
                self._pool.submit(self._start, own, offset, nbytes)
                undo.pop_all()

    def _start(self, fd: int, offset: int, nbytes: int) -> None:
        try:
            if os.fstat(fd).st_nlink:  # not removed meanwhile
                start_write_back(fd, offset, nbytes)
        finally:
            os.close(fd)
            self._free.release()


@functools.cache
def _thread() -> _Thread:
    """Give the one of this process, which ends with it."""
    return _Thread()


if hasattr(os, "register_at_fork"):
    # A forked child has the pool but not its thread.
    os.register_at_fork(after_in_child=_thread.cache_clear)


def _sync_file_range() -> Callable[..., Any] | None:
    """Linux's call of that name, where the C library has it."""
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


_SYNC_FILE_RANGE = _sync_file_range()
_SYNC_FILE_RANGE_WRITE = 2
