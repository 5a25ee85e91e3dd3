"""What turns the bytes of one block into stored bytes and back: the byte shuffle, zstd, LZ4, and nothing.

Pure functions from bytes to bytes; they open no files and know no buffers. All release the GIL while they work, and
what they need between calls (compression contexts, scratch memory) belongs to the calling thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import cramjam
import numpy as np
import numpy.typing as npt
import zstandard

Bytes: TypeAlias = npt.NDArray[np.uint8]
"""A one-dimensional, C-contiguous array of bytes."""

WIDTHS = (2, 4, 8, 16)
"""Element widths the byte shuffle knows, besides 1, which leaves the bytes as they are."""

# Every zstd decoder has to accept windows of 8 MiB; more than the largest block is never needed.
_MAX_WINDOW = 1 << 24
_local = threading.local()


class CodecError(ValueError):
    """The stored bytes of a block are not what its codec makes, or make another number of bytes."""


def scratch(name: str, nbytes: int) -> Bytes:
    """Memory of this thread for `name`, valid until the same thread asks for the same name again."""
    held: Bytes | None = getattr(_local, name, None)
    if held is None or len(held) < nbytes:
        held = np.empty(nbytes, np.uint8)
        setattr(_local, name, held)
    return held[:nbytes]


def shuffle(source: Bytes, width: int, out: Bytes) -> None:
    """Put the first bytes of all elements first, then the second ones, and so on; a rest shorter than `width` is last.

    Parameters
    ----------
    source, out : one-dimensional arrays of uint8
        Of equal length, not overlapping.
    width : int
        Bytes per element.
    """
    whole = len(source) // width * width
    elements, planes = source[:whole].reshape(-1, width), out[:whole].reshape(width, -1)
    # A plane at a time: one transposed assignment is two to five times slower.
    for k in range(width):
        planes[k] = elements[:, k]
    out[whole:] = source[whole:]


def unshuffle(source: Bytes, width: int, out: Bytes) -> None:
    """Undo `shuffle`."""
    whole = len(source) // width * width
    planes, elements = source[:whole].reshape(width, -1), out[:whole].reshape(-1, width)
    for k in range(width):
        elements[:, k] = planes[k]
    out[whole:] = source[whole:]


def _zstd_compress(source: Bytes) -> bytes:
    """One frame that tells its content size."""
    compressor = getattr(_local, "compressor", None)
    if compressor is None:
        compressor = _local.compressor = zstandard.ZstdCompressor(level=1)
    compressed: bytes = compressor.compress(source.data)
    return compressed


def zstd_content_size(source: Bytes) -> int:
    """Give the size of the content that a frame claims.

    Raises
    ------
    CodecError
        It is no frame.
    """
    try:
        size: int = zstandard.get_frame_parameters(source.data).content_size
    except zstandard.ZstdError as error:
        raise CodecError(f"not a zstd frame: {error}") from error
    return size


def _zstd_decompress(source: Bytes, out: Bytes) -> None:
    """Decompress one frame straight into `out`; the size the frame claims is looked at first."""
    decompressor = getattr(_local, "decompressor", None)
    if decompressor is None:
        decompressor = _local.decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    size = zstd_content_size(source)
    try:
        # libzstd takes its single-pass way when it is given the whole frame and room for all of its content.
        done = decompressor.stream_reader(source.data).readinto(out.data) if size == len(out) else size
    except zstandard.ZstdError as error:
        raise CodecError(f"not a zstd frame: {error}") from error
    if done != len(out):
        raise CodecError(f"a zstd frame of {done} bytes where {len(out)} were expected")


def _lz4_compress(source: Bytes) -> bytes:
    """One raw LZ4 block, without the size in front."""
    room = scratch("lz4", cramjam.lz4.compress_block_bound(source.data))
    size = cramjam.lz4.compress_block_into(source.data, room.data, store_size=False)
    return room[:size].tobytes()


def _lz4_decompress(source: Bytes, out: Bytes) -> None:
    """Decompress one raw LZ4 block straight into `out`."""
    try:
        done = cramjam.lz4.decompress_block_into(source.data, out.data, output_len=len(out))
    except cramjam.DecompressionError as error:
        raise CodecError(f"not an LZ4 block: {error}") from error
    if done != len(out):
        raise CodecError(f"an LZ4 block of {done} bytes where {len(out)} were expected")


@dataclass(frozen=True)
class Codec:
    """One way to compress a block.

    Attributes
    ----------
    max_ratio : int
        No valid block expands by more than this, so a reader can refuse a forged length before it allocates.
    compress : callable
        Contiguous bytes to compressed bytes.
    decompress : callable
        Compressed bytes into memory of exactly the right size; `CodecError` when they do not fill it.
    """

    max_ratio: int
    compress: Callable[[Bytes], bytes]
    decompress: Callable[[Bytes, Bytes], None]


# zstd: a block of at most 128 KiB takes 3 bytes or more. LZ4: one byte of a match length stands for 255.
CODECS: dict[str, Codec] = {
    "zstd": Codec(1 << 16, _zstd_compress, _zstd_decompress),
    "lz4": Codec(256, _lz4_compress, _lz4_decompress),
}
"""Codecs by the name that stands in a footer. A buffer whose codec is ``"none"`` has raw blocks only."""


def encode(source: Bytes, codec: str, width: int) -> bytes | memoryview:
    """Filter and compress one block; `source` itself, not a copy, when that does not make it smaller.

    Parameters
    ----------
    source : one-dimensional array of uint8
    codec : str
        ``"zstd"``, ``"lz4"`` or ``"none"``.
    width : int
        Width of the byte shuffle; 1 for none.
    """
    if codec == "none":
        return source.data
    filtered = source
    if width > 1:
        filtered = scratch("filtered", len(source))
        shuffle(source, width, filtered)
    compressed = CODECS[codec].compress(filtered)
    return compressed if len(compressed) < len(source) else source.data


def decode(stored: Bytes, codec: str, width: int, out: Bytes) -> None:
    """Undo `encode` into `out`, whose length says how many bytes there have to be.

    Raises
    ------
    CodecError
        `stored` is not a block of that codec and length. `out` may have been written to.
    """
    if len(stored) == len(out):
        out[:] = stored
    elif codec not in CODECS:
        raise CodecError(f"{len(stored)} bytes of a raw block of {len(out)}")
    elif width == 1:
        CODECS[codec].decompress(stored, out)
    else:
        filtered = scratch("filtered", len(out))
        CODECS[codec].decompress(stored, filtered)
        unshuffle(filtered, width, out)


def as_bytes(array: npt.NDArray[Any]) -> Bytes:
    """View a contiguous array as bytes."""
    return array.view(np.uint8) if array.nbytes else np.empty(0, np.uint8)
