"""The buffers of a partition on their way to its file: chosen for, cut, encoded ahead of being written, and listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy.typing as npt

from ckpt_spill.store import blocks, footer, outbound
from ckpt_spill.store.choice import Choice
from ckpt_spill.store.descriptors import Writer
from ckpt_spill.store.device import direct
from ckpt_spill.store.device.libraries import failing_to_write
from ckpt_spill.store.device.memory import Memory
from ckpt_spill.store.device.paths import Paths
from ckpt_spill.store.footer import Buffer
from ckpt_spill.store.frames import Far
from ckpt_spill.store.outbound import FarPiece, Hashed, Sampled, Straight
from ckpt_spill.store.pool import ordered


@dataclass
class _Entry:
    """What will be said of a buffer in the footer."""

    choice: Choice
    offset: int | None = None
    direct: bool = False
    stored: list[int] = field(default_factory=list)
    crcs: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)


@dataclass
class _Failed:
    """What came of encoding a piece."""

    error: BaseException


def write_buffers(
    out: Writer,
    buffers: Sequence[npt.NDArray[Any] | Far],
    decide: Callable[[Any], Choice],
    threads: int,
    paths: Paths,
) -> tuple[tuple[Buffer, ...], int]:
    """Encode all buffers, a few blocks ahead of writing them.

    Returns
    -------
    table : tuple of Buffer
    direct_nbytes : int
        How much of them went to the file directly from a device.
    """
    arrays = outbound.sampled(buffers)
    far = any(isinstance(array, Sampled) for array in arrays)
    straight = far and paths.direct()
    entries: list[_Entry] = []

    def cut(deciding: Iterator[Choice]) -> Iterator[blocks.Piece | FarPiece | Straight]:
        for number, choice in enumerate(deciding):
            entries.append(_Entry(choice))
            array = arrays[number]
            if isinstance(array, Sampled):
                yield from outbound.cut(number, array, choice, footer.BLOCK, direct=straight)
            else:
                yield from blocks.cut(number, array, choice, footer.BLOCK)

    with (
        closing(ordered(decide, arrays, weight=nbytes_of, threads=threads)) as deciding,
        ExitStack() as while_in_use,
        closing(outbound.fetched(cut(deciding), while_in_use)) as pieces,
        closing(ordered(_encode, pieces, weight=nbytes_of, threads=threads)) as encoding,
    ):
        for encoded in encoding:
            if isinstance(encoded, _Failed):
                raise encoded.error
            entry, length = entries[encoded.buffer], arrays[encoded.buffer].nbytes
            if entry.offset is None:
                entry.offset = _begin(out, entry.choice, length)
            _write(out, encoded, entry)
    table: list[Buffer] = []
    for array, entry in zip(arrays, entries, strict=True):
        table.append(_listed(entry, array.nbytes, table[-1].end if table else footer.HEADER_SIZE))
    return tuple(table), sum(buffer.length for buffer, entry in zip(table, entries, strict=True) if entry.direct)


def _encode(piece: blocks.Piece | Straight) -> blocks.Block | Hashed | _Failed:
    """Make what is written, in any thread. Raises nothing: pieces after this one have to be let go of all the same."""
    try:
        if isinstance(piece, Straight):
            with failing_to_write():
                return outbound.hashed(piece)
        return blocks.encode_piece(piece)
    except BaseException as e:  # noqa: BLE001  # raised by who takes it
        return _Failed(e)


def _begin(out: Writer, choice: Choice, length: int) -> int:
    """Go to where a buffer begins: with a page if it is raw and long, so that it can be read past the page cache."""
    if choice.codec == "none" and length >= footer.BLOCK:
        out.align(footer.PAGE)
    return out.written


def _write(out: Writer, encoded: blocks.Block | Hashed, entry: _Entry) -> None:
    if isinstance(encoded, Hashed):
        out.write_by(partial(_write_far, memory=encoded.memory), encoded.memory.nbytes)
        entry.direct = True
        entry.stored += encoded.sizes
        entry.crcs += encoded.crcs
        entry.digests += encoded.digests
    else:
        out.write(encoded.data, encoded.written)
        entry.stored.append(len(encoded.data))
        entry.crcs.append(encoded.crc)
        entry.digests.append(encoded.digest)


def _write_far(fd: int, offset: int, memory: Memory) -> None:
    with failing_to_write():
        direct.write(fd, offset, memory)


def _listed(entry: _Entry, length: int, end: int) -> Buffer:
    return Buffer(
        offset=end if entry.offset is None else entry.offset,
        length=length,
        codec=entry.choice.codec,
        width=entry.choice.width,
        stored=tuple(entry.stored),
        crcs=tuple(entry.crcs),
        digest=footer.tree_digest(entry.digests),
    )


def nbytes_of(item: Any) -> int:
    """Give the raw bytes of a piece, run or buffer."""
    return int(item.nbytes)
