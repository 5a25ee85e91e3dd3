"""Header, footer and trailer of a partition file: bytes to checked facts and back. See docs/format.md."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from blake3 import blake3
from crc32c import crc32c

from ckpt_spill.store.checked import FormatError, digest_of, fail, fields_of, integer, no_constant, of_type
from ckpt_spill.store.codecs import CODECS, WIDTHS

VERSION = 1
BLOCK = 1 << 20
PAGE = 1 << 12
"""Storage that goes past the page cache moves whole pages: long raw buffers begin with one."""
LARGEST_BLOCK = 1 << 24

MAGIC = b"\x89CKP\r\n\x1a\n"
END_MAGIC = MAGIC[::-1]
_HEADER = struct.Struct("<8sII")
_TRAILER = struct.Struct("<QII8s")
HEADER_SIZE = _HEADER.size
TRAILER_SIZE = _TRAILER.size
HEADER = _HEADER.pack(MAGIC, VERSION, 0)
LARGEST_FOOTER = 1 << 28
"""No footer is longer, so that a forged length costs no more memory; enough for the blocks of ten terabytes."""


@dataclass(frozen=True)
class Identity:
    """Which partition a file is of.

    Attributes
    ----------
    checkpoint : str
        Id of the checkpoint.
    generation : int
        Counts the checkpoints saved under that id.
    partition : int
        Position in the collection.
    """

    checkpoint: str
    generation: int
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.checkpoint!r}, generation {self.generation}"


@dataclass(frozen=True)
class Buffer:
    """One buffer as a file stores it.

    Attributes
    ----------
    offset : int
        Where in the file its first block begins.
    length : int
        Raw bytes.
    codec : str
        ``"zstd"``, ``"lz4"`` or ``"none"``.
    width : int
        Width of the byte shuffle, 1 for none.
    stored : tuple of int
        Stored size of each block; equal to its raw size where the block is raw.
    crcs : tuple of int
        CRC-32C of each stored block.
    digest : bytes
        `tree_digest` of the stored blocks.
    """

    offset: int
    length: int
    codec: str
    width: int
    stored: tuple[int, ...]
    crcs: tuple[int, ...]
    digest: bytes

    @property
    def end(self) -> int:
        """Where in the file its last block ends."""
        return self.offset + sum(self.stored)

    @property
    def is_raw(self) -> bool:
        """Whether the stored bytes are the raw bytes, in one piece."""
        return sum(self.stored) == self.length


@dataclass(frozen=True)
class Footer:
    """All there is to know about a file except the buffers' bytes.

    Attributes
    ----------
    identity : Identity
    description : dict
        The value without its buffers, in the words of docs/format-values.md.
    block : int
        Raw bytes of every block but the last of a buffer.
    buffers : tuple of Buffer
        In the order in which their blocks lie in the file.
    """

    identity: Identity
    description: dict[str, Any]
    block: int
    buffers: tuple[Buffer, ...]

    @property
    def nbytes(self) -> int:
        """Raw bytes of all buffers."""
        return sum(buffer.length for buffer in self.buffers)

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Give where padding begins and ends."""
        end = HEADER_SIZE
        for buffer in self.buffers:
            if buffer.offset != end:
                yield end, buffer.offset
            end = buffer.end


def block_sizes(length: int, block: int) -> list[int]:
    """Raw sizes of the blocks of a buffer."""
    full, rest = divmod(length, block)
    return [block] * full + [rest] * (rest > 0)


def tree_digest(block_digests: list[bytes]) -> bytes:
    """Digest of a buffer from the BLAKE3 digests of its stored blocks."""
    return blake3(b"".join(block_digests)).digest()


def pack(footer: Footer) -> bytes:
    """Give the footer as it stands in the file."""
    return json.dumps(_as_json(footer), separators=(",", ":"), allow_nan=False).encode()


def trailer(packed: bytes) -> bytes:
    """Give the last bytes of the file."""
    return _TRAILER.pack(len(packed), crc32c(packed), 0, END_MAGIC)


def _as_json(footer: Footer) -> dict[str, Any]:
    identity = footer.identity
    aligned = {start for _, start in footer.gaps()}
    return {
        "version": VERSION,
        "checkpoint": identity.checkpoint,
        "generation": identity.generation,
        "partition": identity.partition,
        "block": footer.block,
        "value": footer.description,
        "buffers": [
            {
                **({"at": buffer.offset} if buffer.offset in aligned else {}),
                "length": buffer.length,
                **({"codec": buffer.codec} if buffer.codec != "none" else {}),
                **({"shuffle": buffer.width} if buffer.width != 1 else {}),
                "stored": buffer.stored,
                "crc32c": buffer.crcs,
                "blake3": buffer.digest.hex(),
            }
            for buffer in footer.buffers
        ],
    }


def check_header(header: bytes) -> None:
    """Raise FormatError unless these are the first bytes of a file of this version."""
    if header == HEADER:
        return
    if len(header) == HEADER_SIZE and header[:8] == MAGIC:
        version = _HEADER.unpack(header)[1]
        if version > VERSION:
            fail(f"is of format version {version}; this release reads up to {VERSION}: upgrade ckpt_spill")
    fail("does not begin as a partition file")


def footer_place(end: bytes, size: int) -> tuple[int, int]:
    """Length and CRC of the footer from the trailer of a file of `size` bytes."""
    if size < HEADER_SIZE + TRAILER_SIZE or len(end) != TRAILER_SIZE:
        fail(f"is too short, {size} bytes")
    length, crc, reserved, magic = _TRAILER.unpack(end)
    if magic != END_MAGIC or reserved:
        fail("does not end as a partition file: truncated, extended or overwritten")
    if length > min(size - HEADER_SIZE - TRAILER_SIZE, LARGEST_FOOTER):
        fail(f"tells of a footer of {length} bytes in a file of {size}")
    return length, crc


def unpack(packed: bytes, size: int) -> Footer:
    """Check and read the footer of a file of `size` bytes.

    Raises
    ------
    FormatError
        It is not a footer of this version, or what it says cannot be true of such a file.
    """
    try:
        tree = json.loads(packed.decode(), parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"has a footer that is not JSON: {error}") from error
    fields = fields_of(tree, "footer", "version", "checkpoint", "generation", "partition", "block", "value", "buffers")
    if fields["version"] != VERSION:
        fail(f"has a footer of version {fields['version']!r} under a header of version {VERSION}")
    block = integer(fields["block"], "block size", 1, LARGEST_BLOCK)
    footer = Footer(
        identity=Identity(
            of_type(str, fields["checkpoint"], "checkpoint"),
            integer(fields["generation"], "generation"),
            integer(fields["partition"], "partition"),
        ),
        description=of_type(dict, fields["value"], "value"),
        block=block,
        buffers=tuple(_buffers(of_type(list, fields["buffers"], "buffers"), block)),
    )
    end = footer.buffers[-1].end if footer.buffers else HEADER_SIZE
    expected = end + len(packed) + TRAILER_SIZE
    if expected != size:
        fail(f"has {size} bytes where its footer tells of {expected}")
    return footer


def _buffers(entries: list[Any], block: int) -> Iterator[Buffer]:
    end = HEADER_SIZE
    for entry in entries:
        buffer = _buffer(entry, block, end)
        end = buffer.end
        yield buffer


def _buffer(entry: Any, block: int, end: int) -> Buffer:
    """Read one entry of the buffer table, so that no later step can be led to allocate or read out of bounds."""
    fields = {"at": end, "codec": "none", "shuffle": 1} | of_type(dict, entry, "buffer")
    fields_of(fields, "buffer", "at", "length", "codec", "shuffle", "stored", "crc32c", "blake3")
    offset = integer(fields["at"], "place", end, end + PAGE - 1)
    if offset != end and offset % PAGE:
        fail("has a buffer that begins neither with a page nor where the one before ends")
    length = integer(fields["length"], "length")
    codec = fields["codec"]
    if codec not in ("none", *CODECS):
        fail(f"has a buffer of unknown codec {codec!r:.40}")
    width = integer(fields["shuffle"], "shuffle", 1, max(WIDTHS))
    if width not in (1, *WIDTHS):
        fail(f"has a buffer of unknown shuffle {width}")
    stored, crcs = of_type(list, fields["stored"], "stored sizes"), of_type(list, fields["crc32c"], "checksums")
    if not len(stored) == len(crcs) == -(-length // block):
        fail("has a buffer whose blocks do not make its length")
    ratio = CODECS[codec].max_ratio if codec in CODECS else 1
    for size, raw in zip(stored, block_sizes(length, block), strict=True):
        integer(size, "stored size", -(-raw // ratio), raw)
    return Buffer(
        offset=offset,
        length=length,
        codec=codec,
        width=width,
        stored=tuple(stored),
        crcs=tuple(integer(crc, "checksum", 0, 0xFFFFFFFF) for crc in crcs),
        digest=digest_of(fields["blake3"]),
    )
