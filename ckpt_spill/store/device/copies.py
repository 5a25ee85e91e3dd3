"""Copies between the memory of a device and that of the host: few and large, through pinned memory that is kept."""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from ckpt_spill.store.device import memory
from ckpt_spill.store.device.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOM = 16 << 20
"""Bytes of one slot of a channel."""

SLOTS = 3
"""Of a channel: one is filled while another is emptied, and what is taken from the third may still be in use."""

_KEPT = 4  # channels; there are as many as threads that write at once, and those on a device are few
_spare: deque[Channel] = deque(maxlen=_KEPT)  # appending and popping are safe in several threads


class Channel:
    """Pinned memory in slots, and a stream in which copies to it run. For one thread at a time."""

    def __init__(self) -> None:
        pinned = importlib.import_module("cupy").cuda.alloc_pinned_memory
        self._slots = [np.frombuffer(pinned(ROOM), np.uint8, ROOM) for _ in range(SLOTS)]
        self._stream = importlib.import_module("rmm.pylibrmm.stream").Stream()
        self._copy = importlib.import_module("rmm.pylibrmm.device_buffer").copy_ptr_to_host

    def start(self, slot: int, load: Sequence[Memory]) -> list[np.ndarray]:
        """Begin to copy what fits in a slot; tell where in it the bytes will be after `wait`."""
        room, at = self._slots[slot], 0
        for piece in _joined(load):
            self._copy(piece.address, room[at : at + piece.nbytes], self._stream)
            at += piece.nbytes
        ends = list(itertools.accumulate((piece.nbytes for piece in load), initial=0))
        return [room[start:stop] for start, stop in itertools.pairwise(ends)]

    def wait(self) -> None:
        """Wait for all copies that were begun."""
        self._stream.synchronize()


def _joined(load: Sequence[Memory]) -> Iterator[Memory]:
    """Give the pieces that have bytes, those that follow one another in memory as one."""
    joined = Memory(0, 0)
    for piece in load:
        if joined.nbytes and joined.address + joined.nbytes == piece.address:
            joined = Memory(joined.address, joined.nbytes + piece.nbytes)
        elif piece.nbytes:
            if joined.nbytes:
                yield joined
            joined = piece
    if joined.nbytes:
        yield joined


@contextlib.contextmanager
def channel() -> Iterator[Channel]:
    """Give a channel, through which what was started on the device before can be copied."""
    memory.settle()
    try:
        taken = _spare.pop()
    except IndexError:
        taken = Channel()
    try:
        yield taken
    finally:
        taken.wait()
        _spare.append(taken)


def to_host(pieces: Sequence[Memory]) -> list[np.ndarray]:
    """Copy pieces of device memory to fresh memory of the host."""
    fetched = [np.empty(piece.nbytes, np.uint8) for piece in pieces]
    if not any(map(len, fetched)):
        return fetched
    with channel() as taken:
        waiting: list[tuple[np.ndarray, np.ndarray]] = []
        for number, (load, targets) in enumerate(_loads(pieces, fetched)):
            places = taken.start(number % SLOTS, load)
            _empty(waiting)
            taken.wait()
            waiting = list(zip(places, targets, strict=True))
        _empty(waiting)
    return fetched


def _loads(pieces: Sequence[Memory], fetched: list[np.ndarray]) -> Iterator[tuple[list[Memory], list[np.ndarray]]]:
    """Cut what is to be copied into loads of one slot, with where their contents belong."""
    load: list[Memory] = []
    targets: list[np.ndarray] = []
    room = ROOM
    for piece, into in zip(pieces, fetched, strict=True):
        done = 0
        while done < piece.nbytes:
            target = into[done : done + room]
            load.append(piece.part(done, done + len(target)))
            targets.append(target)
            done, room = done + len(target), room - len(target)
            if not room:
                yield load, targets
                load, targets, room = [], [], ROOM
    if load:
        yield load, targets


def _empty(waiting: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for place, target in waiting:
        target[:] = place


def to_device(data: np.ndarray) -> Memory:
    """Copy contiguous memory of the host to fresh memory of the device.

    Raises
    ------
    MemoryError
        RMM has no more.
    """
    buffer: Any = importlib.import_module("rmm").DeviceBuffer
    made = buffer.to_device(data.reshape(-1).view(np.uint8)) if data.nbytes else buffer(size=0)
    return Memory(made.ptr, data.nbytes, made)
