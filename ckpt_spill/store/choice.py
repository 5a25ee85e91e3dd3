"""Which codec and shuffle a buffer gets: a sample of it is compressed, and the fastest way to the disk is taken.

The model of ``codec="auto"``, per raw byte, for a codec that a sample shows to compress by the ratio r at C bytes per
second and thread, with n threads and a disk that gives this process W bytes per second::

    time = max(1 / (n * C), 1 / (r * W))        threads and disk work at the same time
    cost = time + CPU_PRICE / C + DISK_PRICE / (r * W)

CPU has a price because tasks want the cores too; bytes have one because they occupy the disk and are read again. Data
that hardly compresses is stored raw; data that does is never stored raw, however fast the disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ckpt_spill.store.codecs import WIDTHS, Bytes, as_bytes, encode

CodecName: TypeAlias = Literal["auto", "zstd", "lz4", "none"]

MIN_RATIO = 1.1
"""Below this, compressing costs time whenever the data is read and saves next to nothing."""

SHUFFLE_GAIN = 0.95
"""A shuffled sample has to be smaller than this fraction of the plain one: a sample flatters the shuffle, and undoing
it costs time."""

CPU_PRICE = 0.25
DISK_PRICE = 0.5

_TINY = 256
_PIECES = 4
_LARGEST_PIECE, _SMALLEST_PIECE = 64 << 10, 4 << 10


@dataclass(frozen=True)
class Choice:
    """How the blocks of one buffer are stored."""

    codec: str
    width: int


RAW = Choice("none", 1)


@dataclass(frozen=True)
class Trial:
    """What a sample showed of one way to store a buffer.

    Attributes
    ----------
    ratio : float
        Raw over stored size.
    speed : float
        Raw bytes per second of one thread's CPU time, filter included.
    """

    choice: Choice
    ratio: float
    speed: float


class Disk:
    """The bandwidth this process gets from its disk, learnt from the files it writes; safe to share between threads.

    Notes
    -----
    The time counted is the time a writer spent in system calls, flush included. When the threads are the bottleneck
    this takes the disk for faster than it is, which leads to less compression, to more waiting for the disk, and back.
    """

    # A figure of an ordinary NVMe drive, held until a file has been written.
    START = 1.0e9
    _WEIGHT = 0.3
    # Smaller files measure the latency of a flush.
    _ENOUGH = 8 << 20

    def __init__(self, bandwidth: float = START) -> None:
        self.bandwidth = bandwidth
        self._lock = threading.Lock()

    def wrote(self, nbytes: int, seconds: float) -> None:
        """Learn from one file."""
        if nbytes >= self._ENOUGH and seconds > 0:
            with self._lock:
                self.bandwidth += self._WEIGHT * (nbytes / seconds - self.bandwidth)


def choose(array: npt.NDArray[Any], codec: CodecName, *, threads: int, bandwidth: float) -> Choice:
    """Choose how to store `array`.

    Parameters
    ----------
    array : one-dimensional array
        Any fixed-size dtype, any stride; its item size proposes the width of the shuffle.
    codec : str
        ``"zstd"`` and ``"lz4"`` are taken as asked for, and only the shuffle is chosen.
    threads : int
        How many threads will compress.
    bandwidth : float
        Bytes per second that the disk takes.
    """
    if codec == "none" or array.nbytes < _TINY:
        return RAW
    sampled = sample(array)
    if codec != "auto":
        return best_width(try_out(sampled, codec, width) for width in widths(array.dtype)).choice
    zstd = best_width(try_out(sampled, "zstd", width) for width in widths(array.dtype))
    return cheapest([zstd, try_out(sampled, "lz4", zstd.choice.width)], threads=threads, bandwidth=bandwidth)


def widths(dtype: np.dtype[Any]) -> list[int]:
    """Widths to try: none, and the largest that divides the item size; bytes may be the offsets of an Arrow array."""
    if dtype.itemsize == 1:
        return [1, 4, 8] if dtype == np.uint8 else [1]
    return [1, *[width for width in WIDTHS if dtype.itemsize % width == 0][-1:]]


def sample(array: npt.NDArray[Any]) -> Bytes:
    """Take a sixteenth of an array in four pieces, between 16 and 256 KiB; the whole of a small one."""
    piece = min(max(array.nbytes // 64, _SMALLEST_PIECE), _LARGEST_PIECE)
    if array.nbytes <= _PIECES * piece:
        return as_bytes(np.ascontiguousarray(array))
    # A multiple of 16 bytes keeps elements whole when the array is bytes of wider elements.
    count = max(piece // array.itemsize, 1)
    starts = [(len(array) - count) * k // (_PIECES - 1) // 16 * 16 for k in range(_PIECES)]
    return as_bytes(np.concatenate([array[start : start + count] for start in starts]))


def try_out(sampled: Bytes, codec: str, width: int) -> Trial:
    """Compress a sample."""
    # CPU time, so that neither the interpreter's lock nor other processes count.
    start = time.thread_time_ns()
    stored = len(encode(sampled, codec, width))
    nanoseconds = max(time.thread_time_ns() - start, 1)
    return Trial(Choice(codec, width), len(sampled) / stored, len(sampled) / nanoseconds * 1e9)


def best_width(trials: Iterable[Trial]) -> Trial:
    """Pick the smallest of trials with one codec, the first of which is without shuffle."""
    plain, *shuffled = trials
    best = max(shuffled, key=lambda trial: trial.ratio, default=plain)
    return best if plain.ratio < SHUFFLE_GAIN * best.ratio else plain


def cheapest(trials: Sequence[Trial], *, threads: int, bandwidth: float) -> Choice:
    """Apply the model to what samples showed; raw when no codec gains enough."""

    def cost(trial: Trial) -> float:
        cpu, disk = 1 / trial.speed, 1 / (trial.ratio * bandwidth)
        return max(cpu / threads, disk) + CPU_PRICE * cpu + DISK_PRICE * disk

    worthwhile = [trial for trial in trials if trial.ratio >= MIN_RATIO]
    return min(worthwhile, key=cost).choice if worthwhile else RAW
