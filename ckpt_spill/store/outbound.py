"""Buffers that lie on a device, on their way to a file.

Small ones are brought to the host together. Of large ones samples are brought first, to choose how they are stored.
Then they go directly to the file, if they are stored raw and may; else piece by piece through pinned memory, each
compressed while the next is being copied.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ckpt_spill.store.blocks import Piece
from ckpt_spill.store.choice import Choice, sample_ranges
from ckpt_spill.store.codecs import Bytes
from ckpt_spill.store.device import copies, hashes
from ckpt_spill.store.device.memory import Memory
from ckpt_spill.store.frames import Far

_SMALL = 128 << 10


@dataclass(frozen=True)
class Sampled:
    """A large buffer on a device, and what its choice is made by."""

    memory: Memory
    width: int
    sample: Bytes

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.memory.nbytes

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its numbers, as far as their width."""
        return np.dtype((np.void, self.width))


@dataclass(frozen=True)
class FarPiece:
    """One block of a buffer on a device that is still to be copied and encoded."""

    buffer: int
    memory: Memory
    choice: Choice

    @property
    def nbytes(self) -> int:
        """Raw bytes."""
        return self.memory.nbytes


@dataclass(frozen=True)
class Straight:
    """A buffer on a device that goes to the file as it is, in blocks of `block` bytes."""

    buffer: int
    memory: Memory
    block: int

    @property
    def nbytes(self) -> int:
        """Raw bytes."""
        return self.memory.nbytes


@dataclass(frozen=True)
class Hashed:
    """The same, and what its blocks are checked by."""

    buffer: int
    memory: Memory
    sizes: list[int]
    crcs: list[int]
    digests: list[bytes]


def sampled(buffers: Sequence[npt.NDArray[Any] | Far]) -> list[npt.NDArray[Any] | Sampled]:
    """Bring small buffers to the host, and samples of large ones."""
    asked: list[Memory] = []
    for buffer in buffers:
        if isinstance(buffer, Far):
            asked += _wanted(buffer)
    fetched = iter(copies.to_host(asked))
    found: list[npt.NDArray[Any] | Sampled] = []
    for buffer in buffers:
        if isinstance(buffer, Far):
            parts = [next(fetched) for _ in _wanted(buffer)]
            if buffer.nbytes < _SMALL:
                found.append(_numbers(parts[0], buffer.width))
            else:
                found.append(Sampled(buffer.memory, buffer.width, np.concatenate(parts)))
        else:
            found.append(buffer)
    return found


def _wanted(buffer: Far) -> list[Memory]:
    """Give what to bring: all of a small buffer, a sample of a large one."""
    if buffer.nbytes < _SMALL:
        return [buffer.memory]
    ranges = sample_ranges(buffer.nbytes // buffer.width, buffer.width)
    return [buffer.memory.part(start * buffer.width, stop * buffer.width) for start, stop in ranges]


def _numbers(data: Bytes, width: int) -> npt.NDArray[Any]:
    return data if width == 1 or not data.nbytes else data.view(np.dtype((np.void, width)))


def cut(number: int, buffer: Sampled, choice: Choice, block: int, *, direct: bool) -> Iterator[FarPiece | Straight]:
    """Cut a buffer in blocks; a long one that is to be stored raw, and may go directly, stays whole."""
    if direct and choice.codec == "none" and buffer.nbytes >= block:
        yield Straight(number, buffer.memory, block)
        return
    for start in range(0, buffer.nbytes, block):
        yield FarPiece(number, buffer.memory.part(start, start + block), choice)


def hashed(straight: Straight) -> Hashed:
    """Compute on the device what blocks are checked by. Runs in any thread."""
    crcs, digests = hashes.hash_blocks(straight.memory, straight.block, digests=True)
    full, rest = divmod(straight.nbytes, straight.block)
    return Hashed(straight.buffer, straight.memory, [straight.block] * full + [rest] * (rest > 0), crcs, digests)


def fetched(pieces: Iterator[Piece | FarPiece | Straight], while_in_use: ExitStack) -> Generator[Piece | Straight]:
    """Copy far pieces to the host, a load ahead of those that are given; others are passed on in their order.

    They are in memory that is somebody else's once `while_in_use` is closed: not before the last one was encoded, which
    is after this has ended. Within, the memory of a far piece is used again once it was encoded. Each load with far
    pieces but the last has more to encode than `pool.ordered` collects before it begins: so a load is not waited for in
    vain when two more were given.
    """
    latches: deque[_Latch] = deque()
    ahead: list[Piece | Straight] = []
    taken: copies.Channel | None = None
    for number, load in _loads(pieces):
        far = [piece for piece in load if isinstance(piece, FarPiece)]
        if not far:
            yield from ahead
            ahead = [piece for piece in load if not isinstance(piece, FarPiece)]
            continue
        taken = taken or while_in_use.enter_context(copies.channel())
        if len(latches) == copies.SLOTS:
            latches.popleft().wait()
        latches.append(_Latch(len(far)))
        places = iter(taken.start(number % copies.SLOTS, [piece.memory for piece in far]))
        yield from ahead
        taken.wait()
        ahead = [_near(p, next(places), latches[-1]) if isinstance(p, FarPiece) else p for p in load]
    yield from ahead


def _loads(pieces: Iterator[Piece | FarPiece | Straight]) -> Iterator[tuple[int, list[Piece | FarPiece | Straight]]]:
    """Cut pieces into numbered loads of which the far ones fill a slot; others alone are loads of their own."""
    number = far = near = 0
    load: list[Piece | FarPiece | Straight] = []
    for piece in pieces:
        is_far = isinstance(piece, FarPiece)
        if (is_far and far + piece.nbytes > copies.ROOM) or near >= copies.ROOM:
            yield number, load
            number, far, near, load = number + 1, 0, 0, []
        if not is_far and not load:
            yield number, [piece]
            continue
        load.append(piece)
        far += piece.nbytes * is_far
        near += piece.nbytes * isinstance(piece, Piece)
    if load:
        yield number, load


def _near(piece: FarPiece, place: Bytes, latch: _Latch) -> Piece:
    return Piece(piece.buffer, place, piece.choice, 0, piece.nbytes, latch.down)


class _Latch:
    """Opens when it was counted down; safe in several threads."""

    def __init__(self, count: int) -> None:
        self._count, self._lock, self._open = count, threading.Lock(), threading.Event()

    def down(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                self._open.set()

    def wait(self) -> None:
        self._open.wait()
