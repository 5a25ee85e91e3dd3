"""Where memory is short while a partition is read or written, a worker's memory makes room for it, if it can."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from ckpt_spill.here import this_worker

T = TypeVar("T")

logger = logging.getLogger("ckpt_spill")


def with_room(function: Callable[[], T]) -> T:
    """Call a function; as long as it lacks memory, let the memory of this worker make some, and call it again.

    RMM and CuPy raise ``MemoryError`` where the device has no more.

    Raises
    ------
    MemoryError
        Nothing is left that could make room.
    """
    while True:
        try:
            return function()
        except MemoryError as e:
            if not _make_room():
                raise
            logger.info("made room, after: %s", e)


def _make_room() -> bool:
    worker = this_worker()
    make_room = getattr(worker and worker.data, "make_room", None)
    if make_room is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # In the thread of the event loop, as all that a worker does with its memory.
        made = asyncio.run_coroutine_threadsafe(_call(make_room), worker.loop.asyncio_loop).result()
    else:
        made = make_room()
    return bool(made)


async def _call(function: Callable[[], T]) -> T:
    return function()
