"""Buffers as blocks: cut, encoded and hashed on the way out; located, checked and decoded on the way in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from crc32c import crc32c

from ckpt_spill.store.choice import Choice
from ckpt_spill.store.codecs import Bytes, CodecError, as_bytes, decode, encode, scratch
from ckpt_spill.store.descriptors import Source
from ckpt_spill.store.footer import BLOCK, Footer, block_sizes
from ckpt_spill.store.spare import copied, release

_RUN = 4 << 20


class BlockError(ValueError):
    """A stored block is not the one that was written; `buffer` and `block` say which."""

    def __init__(self, message: str, buffer: int, block: int | None) -> None:
        super().__init__(message)
        self.buffer = buffer
        self.block = block

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockError, (str(self), self.buffer, self.block)


@dataclass(frozen=True)
class Piece:
    """Bytes `start` to `stop` of an array: one block that is still to be encoded; then `used` is called, if given."""

    buffer: int
    array: npt.NDArray[Any]
    choice: Choice
    start: int
    stop: int
    used: Callable[[], None] | None = None

    @property
    def nbytes(self) -> int:
        """Raw bytes."""
        return self.stop - self.start


@dataclass(frozen=True)
class Block:
    """One encoded block; whoever has written it calls `written`, where that is given."""

    buffer: int
    data: bytes | memoryview
    crc: int
    digest: bytes
    written: Callable[[], None] | None = None


def cut(buffer: int, array: npt.NDArray[Any], choice: Choice, block: int) -> Iterator[Piece]:
    """Cut a buffer in blocks; nothing is copied."""
    if array.flags.c_contiguous:
        array = as_bytes(array)
    for start in range(0, array.nbytes, block):
        yield Piece(buffer, array, choice, start, min(start + block, array.nbytes))


def encode_piece(piece: Piece) -> Block:
    """Compress and hash one block. Runs in any thread."""
    try:
        return _encode_piece(piece)
    finally:
        if piece.used:
            piece.used()


def _encode_piece(piece: Piece) -> Block:
    data = encode(_gather(piece.array, piece.start, piece.stop), piece.choice.codec, piece.choice.width)
    written = None
    if isinstance(data, memoryview):
        # A copy: were a task to change its input in place after the hashing, what is on disk would be no value at all.
        copy = copied(data, BLOCK)
        data, written = copy.data, functools.partial(release, copy)
    return Block(piece.buffer, data, crc32c(data), blake3(data).digest(), written)


def _gather(array: npt.NDArray[Any], start: int, stop: int) -> Bytes:
    """Bytes of an array of any stride, counted as if it were contiguous; a view where it is."""
    width = array.itemsize
    first = start // width
    part = as_bytes(np.ascontiguousarray(array[first : -(-stop // width)]))
    return part[start - first * width : stop - first * width]


@dataclass(frozen=True)
class Run:
    """Consecutive blocks of one buffer, read by one call.

    Attributes
    ----------
    buffer, first : int
        The buffer and its first block in this run.
    offset : int
        Where the run begins in the file.
    stored, crcs, raw : sequence of int
        Stored size, checksum and raw size of each block.
    out : array of uint8 or None
        Where the raw bytes go; None only checks.
    hashed : bool
        Whether the blocks' BLAKE3 digests are wanted.
    """

    buffer: int
    first: int
    offset: int
    stored: tuple[int, ...]
    crcs: tuple[int, ...]
    raw: list[int]
    codec: str
    width: int
    out: Bytes | None
    hashed: bool

    @property
    def nbytes(self) -> int:
        """Raw bytes."""
        return sum(self.raw)


def runs(footer: Footer, outs: Mapping[int, Bytes | None], hashed: frozenset[int]) -> Iterator[Run]:
    """Locate the blocks of the buffers in `outs`."""
    step = max(_RUN // footer.block, 1)
    for number in sorted(outs):
        buffer, out = footer.buffers[number], outs[number]
        raw = block_sizes(buffer.length, footer.block)
        for first in range(0, len(raw), step):
            blocks = slice(first, first + step)
            start = first * footer.block
            yield Run(
                buffer=number,
                first=first,
                offset=buffer.offset + sum(buffer.stored[:first]),
                stored=buffer.stored[blocks],
                crcs=buffer.crcs[blocks],
                raw=raw[blocks],
                codec=buffer.codec,
                width=buffer.width,
                out=None if out is None else out[start : start + sum(raw[blocks])],
                hashed=number in hashed,
            )


def read_run(file: Source, run: Run) -> list[bytes]:
    """Read, check and decode one run; returns the blocks' digests where wanted. Runs in any thread.

    Raises
    ------
    BlockError
        A block fails its checksum or does not decode. `run.out` may have been written to.
    """
    size = sum(run.stored)
    # Where no block is compressed, the bytes go straight to their place.
    straight = run.out is not None and size == len(run.out)
    source = run.out if run.out is not None and straight else scratch("stored", size)
    if not file.read_into(source, run.offset):
        raise BlockError("ends before its last block", run.buffer, run.first)
    digests = []
    at = to = 0
    for k, (stored, crc, raw) in enumerate(zip(run.stored, run.crcs, run.raw, strict=True), run.first):
        data = source.data[at : at + stored]
        if crc32c(data) != crc:
            raise BlockError("fails its CRC-32C", run.buffer, k)
        if run.hashed:
            digests.append(blake3(data).digest())
        if run.out is not None and not straight:
            try:
                decode(source[at : at + stored], run.codec, run.width, run.out[to : to + raw])
            except CodecError as error:
                raise BlockError(f"does not decode: {error}", run.buffer, k) from error
        at, to = at + stored, to + raw
    return digests


def read_stored(file: Source, run: Run) -> Bytes:
    """Read and check one run, and give it as it is stored. Runs in any thread.

    Raises
    ------
    BlockError
        A block fails its checksum.
    """
    stored = np.empty(sum(run.stored), np.uint8)
    if not file.read_into(stored, run.offset):
        raise BlockError("ends before its last block", run.buffer, run.first)
    at = 0
    for k, (size, crc) in enumerate(zip(run.stored, run.crcs, strict=True), run.first):
        if crc32c(stored.data[at : at + size]) != crc:
            raise BlockError("fails its CRC-32C", run.buffer, k)
        at += size
    return stored
