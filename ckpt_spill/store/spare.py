"""Memory for blocks on their way to a file, used again and again: to touch fresh memory costs several copies of it."""

from __future__ import annotations

from collections import deque

import numpy as np

from ckpt_spill.store.codecs import Bytes

_MOST = 16
_SMALL = 64 << 10

_spare: deque[Bytes] = deque(maxlen=_MOST)  # appending and popping are safe in several threads


def copied(data: Bytes | memoryview, room: int) -> Bytes:
    """Copy a block of at most `room` bytes, which is the same for all, into memory that `release` takes back."""
    if len(data) < _SMALL:
        return np.array(data, np.uint8)
    try:
        memory = _spare.pop()
    except IndexError:
        memory = np.empty(room, np.uint8)
    block = memory[: len(data)]
    block[:] = data
    return block


def release(block: Bytes) -> None:
    """Take back what `copied` gave; nobody may use it any more."""
    if isinstance(block.base, np.ndarray):
        _spare.append(block.base)
