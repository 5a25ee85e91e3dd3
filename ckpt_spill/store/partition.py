"""The partition file: one value in one immutable file, of which every byte is checked before it is used.

The format is docs/format.md. A value becomes a description and buffers (`ckpt_spill.store.frames`); here the buffers
become blocks, and blocks and description a file.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from blake3 import blake3
from crc32c import crc32c

from ckpt_spill.errors import CorruptPartitionError, UnserializableError
from ckpt_spill.store import blocks, descriptors, footer, frames, inbound, writing
from ckpt_spill.store.checked import FormatError
from ckpt_spill.store.choice import BYTE_PRICE, BYTE_PRICE_OF_SPILLS, CodecName, Disk, choose
from ckpt_spill.store.codecs import Bytes
from ckpt_spill.store.descriptors import NotRegularError, Source, open_regular, read_bytes
from ckpt_spill.store.device.paths import ANY, Paths
from ckpt_spill.store.footer import Footer, Identity
from ckpt_spill.store.frames import Library
from ckpt_spill.store.pool import ordered

__all__ = ["CodecName", "Footer", "Identity", "Library", "Paths", "Written", "read", "read_footer", "verify", "write"]

# Below this, handing work to other threads costs more than it saves.
_SMALL = 2 << 20
# Read in one go with the trailer; the footer of most files is in it.
_TAIL = 32 << 10

# What is not flushed goes to memory, until the system holds so much of it that writers wait for the disk.
_disk, _page_cache = Disk(), Disk()


@dataclass(frozen=True)
class Written:
    """What a file holds.

    Attributes
    ----------
    nbytes : int
        Raw bytes of the buffers.
    stored_nbytes : int
        Size of the whole file.
    digest : bytes
        BLAKE3-256 of the footer, and through it of every byte of the value.
    proven : bool
        Whether it is certain that the value can be loaded again; False only of what was written without proof.
    direct_nbytes : int
        How many of the raw bytes went directly from a device to the file; 0 where that is not known.
    """

    nbytes: int
    stored_nbytes: int
    digest: bytes
    proven: bool = True
    direct_nbytes: int = field(default=0, compare=False)


def write(
    fd: int,
    value: Any,
    identity: Identity,
    *,
    codec: CodecName = "auto",
    threads: int = 1,
    durable: bool = True,
    prove: bool = True,
    paths: Paths = ANY,
) -> Written:
    """Write a value as a partition file.

    Parameters
    ----------
    fd : int
        An open, empty, writable file. It stays open.
    value
        Must not be changed meanwhile.
    identity : Identity
        Stored in the file; `read` wants the same.
    codec : {"auto", "zstd", "lz4", "none"}
    threads : int
        Size of the pool that compresses; the caller's thread writes.
    durable : bool
        Whether the data has to be on the disk when this returns.
    prove : bool
        As for `frames.encoding`.
    paths : Paths
        By which ways bytes may come from a device.

    Raises
    ------
    UnserializableError
        The value, or a part of it, cannot be saved.
    OSError
        As it came from the system. In every case what was written so far is no valid file.
    """
    out = descriptors.Writer(fd, durable=durable)
    out.write(footer.HEADER)
    disk = _disk if durable else _page_cache
    price = BYTE_PRICE if durable else BYTE_PRICE_OF_SPILLS
    with frames.encoding(value, prove=prove) as encoded:
        nbytes = sum(buffer.nbytes for buffer in encoded.buffers)
        threads = _threads(threads, nbytes)
        decide = partial(choose, codec=codec, threads=threads, bandwidth=disk.bandwidth, byte_price=price)
        table, direct = writing.write_buffers(out, encoded.buffers, decide, threads, paths)
    packed = footer.pack(Footer(identity, encoded.description, footer.BLOCK, table))
    if len(packed) > footer.LARGEST_FOOTER:
        raise UnserializableError(f"The description of this {type(value).__name__} takes {len(packed)} bytes.")
    out.write(packed)
    out.write(footer.trailer(packed))
    out.finish()
    disk.wrote(out.written, out.seconds)
    return Written(nbytes, out.written, blake3(packed).digest(), encoded.proven, direct)


def read(
    path: str | os.PathLike[str] | Source,
    identity: Identity,
    digest: bytes | None,
    *,
    columns: Sequence[Hashable] | None = None,
    library: Library | None = None,
    threads: int = 1,
    paths: Paths = ANY,
) -> Any:
    """Read a value, or some columns of it.

    Parameters
    ----------
    path : path-like or Source
        Links are not followed.
    identity : Identity
        The partition that has to be in the file, where there is no digest: that says more.
    digest : bytes or None
        `Written.digest`. Without it damage is found, but not a forgery.
    columns : sequence, optional
        Only these; other columns' bytes are not read.
    library : {"pandas", "cudf"}, optional
        Make objects of pandas and numpy, or of cuDF and CuPy; by default, of the library that they were saved from.
    threads : int
        Size of the pool that decompresses.
    paths : Paths
        By which ways bytes may come to a device.

    Raises
    ------
    FileNotFoundError
    CorruptPartitionError
        It is not the file that was written. Nothing in it has been executed.
    KeyError, TypeError
        There is no such column; the value has no columns.
    ReadError
        The library or its device cannot be used here, or has nothing like the value; the file is not at fault.
    """
    with _opened(path) as file:
        found, _ = _read_footer(file, identity, digest)
        lengths = [buffer.length for buffer in found.buffers]
        ways = inbound.Ways(file, found, paths, threads)
        with _described():
            decoding = frames.decoding(found.description, lengths, columns, library, ways)
        _read_buffers(file, found, decoding.destinations, decoding.pickled, threads)
        for number, memory in decoding.far.items():
            ways.read(number, memory)
        with _described():
            return decoding.value()


def read_footer(path: str | os.PathLike[str], identity: Identity | None, digest: bytes | None) -> Footer:
    """Read what a file says of itself; checks of it what is given.

    Raises
    ------
    FileNotFoundError
    CorruptPartitionError
        It is no whole partition file, or another one. The blocks are not looked at.
    """
    with _opened(path) as file:
        return _read_footer(file, identity, digest)[0]


def verify(
    path: str | os.PathLike[str] | Source, identity: Identity, digest: bytes | None, *, threads: int = 1
) -> Written:
    """Check every byte of a file, decoding nothing; give what `write` gave when it wrote the file.

    Raises
    ------
    FileNotFoundError
    CorruptPartitionError
        It is not the file that was written.
    """
    with _opened(path) as file:
        found, digest = _read_footer(file, identity, digest)
        everything = range(len(found.buffers))
        _read_buffers(file, found, dict.fromkeys(everything), frozenset(everything), threads)
        for start, stop in found.gaps():
            if any(read_bytes(file, stop - start, start)):
                raise FormatError(f"has padding at {start} that is not zeros")
    return Written(sum(buffer.length for buffer in found.buffers), file.size, digest)


def _read_footer(file: Source, identity: Identity | None, digest: bytes | None) -> tuple[Footer, bytes]:
    """Check header, trailer and footer, in this order, and read the footer and its BLAKE3."""
    size = file.size
    footer.check_header(read_bytes(file, footer.HEADER_SIZE, 0))
    begin = max(size - _TAIL, 0)
    tail = read_bytes(file, _TAIL, begin)
    length, crc = footer.footer_place(tail[-footer.TRAILER_SIZE :], begin + len(tail))
    start = size - footer.TRAILER_SIZE - length
    packed = tail[start - begin : -footer.TRAILER_SIZE] if start >= begin else read_bytes(file, length, start)
    if crc32c(packed) != crc:
        raise FormatError("has a footer that fails its CRC-32C")
    actual = blake3(packed).digest()
    if digest is not None and actual != digest:
        raise FormatError("has a footer that is not the one that was written")
    found = footer.unpack(packed, size)
    if digest is None and identity is not None and found.identity != identity:
        raise FormatError(f"is {found.identity}, where {identity} should be")
    return found, actual


def _read_buffers(
    file: Source, found: Footer, outs: Mapping[int, Bytes | None], hashed: frozenset[int], threads: int
) -> None:
    """Read, check and decode buffers; those in `hashed` are checked by their digests, too."""
    threads = _threads(threads, sum(found.buffers[number].length for number in outs))
    todo, names = itertools.tee(blocks.runs(found, outs, hashed))
    digests: dict[int, list[bytes]] = {number: [] for number in hashed & outs.keys()}
    with closing(ordered(partial(blocks.read_run, file), todo, weight=writing.nbytes_of, threads=threads)) as reading:
        for run, hashes in zip(names, reading, strict=True):
            if run.hashed:
                digests[run.buffer] += hashes
    for number, of_blocks in digests.items():
        if footer.tree_digest(of_blocks) != found.buffers[number].digest:
            raise blocks.BlockError("fails its BLAKE3", number, None)


@contextmanager
def _described() -> Iterator[None]:
    """Say of a description that makes no value that the file is at fault."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise FormatError(f"does not describe a value: {error}") from error


@contextmanager
def _opened(path: str | os.PathLike[str] | Source) -> Iterator[Source]:
    """Open a partition file; whatever is found wrong with it leaves as CorruptPartitionError."""
    where = os.fspath(path) if isinstance(path, str | os.PathLike) else path.name
    try:
        with open_regular(path) if isinstance(path, str | os.PathLike) else nullcontext(path) as file:
            yield file
    except blocks.BlockError as error:
        part = f"buffer {error.buffer}" + ("" if error.block is None else f", block {error.block},")
        raise CorruptPartitionError(
            f"{where}: {part} {error}", path=where, buffer=error.buffer, block=error.block
        ) from error
    except (FormatError, NotRegularError) as error:
        raise CorruptPartitionError(f"{where} {error}", path=where, buffer=None, block=None) from error


def _threads(threads: int, nbytes: int) -> int:
    return 1 if nbytes <= _SMALL else threads
