"""Which codec and shuffle a buffer gets: a sample of it is stored in every way, and the cheapest way is taken.

The model, per raw byte, for a way that makes the sample r times smaller at C bytes per second of one thread's CPU time,
with n threads and a disk that gives this process W bytes per second::

    time = max(1 / (n * C), 1 / (r * W))        threads and disk work at the same time
    cost = time + CPU_PRICE / C + BYTE_PRICE / r

CPU has a price because tasks want the cores too; stored bytes have one, whatever the disk, because they take its room
and are read again. With ``codec="auto"``, data that hardly compresses is stored raw; data that does never is, however
fast the disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ckpt_spill.store.codecs import CODECS, WIDTHS, Bytes, as_bytes, encode

CodecName: TypeAlias = Literal["auto", "zstd", "lz4", "none"]

MIN_RATIO = 1.25
"""Below this, compressing costs time whenever the data is read and saves little. Random floating-point numbers,
shuffled, shrink by a fifth, and take three times as long to read."""

CPU_PRICE = 0.25
"""Of a second of CPU time, in seconds of waiting."""

BYTE_PRICE = 5e-9
"""Of a stored byte, in seconds: a disk of 200 MB/s. At half of it LZ4 takes nearly everything, and text grows by
two thirds; at twice as much zstd does, and writing takes a fifth more CPU."""

BYTE_PRICE_OF_SPILLS = 2.5e-9
"""The same where nothing is flushed. Such files are soon gone, and somebody waits for the memory."""

_TINY = 256
_PIECES = 4
_SMALLEST_PIECE, _LARGEST_PIECE = 8 << 10, 64 << 10


@dataclass(frozen=True)
class Choice:
    """How the blocks of one buffer are stored."""

    codec: str
    width: int


RAW = Choice("none", 1)


class Sampled(Protocol):
    """An array that is not at hand, but a sample of it is."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the numbers in it, as far as their width."""

    @property
    def sample(self) -> Bytes:
        """What `sample` would take of it."""


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


def choose(
    array: npt.NDArray[Any] | Sampled,
    codec: CodecName,
    *,
    threads: int,
    bandwidth: float,
    byte_price: float = BYTE_PRICE,
) -> Choice:
    """Choose how to store `array`.

    Parameters
    ----------
    array : one-dimensional array, or Sampled
        Any fixed-size dtype, any stride; its item size proposes the width of the shuffle.
    codec : str
        ``"zstd"`` and ``"lz4"`` are taken as asked for, and only the shuffle is chosen.
    threads : int
        How many threads will compress.
    bandwidth : float
        Bytes per second that the disk takes.
    byte_price : float
        Of a stored byte, in seconds.
    """
    if codec == "none" or array.nbytes < _TINY:
        return RAW
    sampled = sample(array) if isinstance(array, np.ndarray) else array.sample
    codecs = CODECS if codec == "auto" else [codec]
    trials = [try_out(sampled, name, width) for name in codecs for width in widths(array.dtype)]
    if codec == "auto":
        trials = [trial for trial in trials if trial.ratio >= MIN_RATIO]
    return cheapest(trials, threads=threads, bandwidth=bandwidth, byte_price=byte_price)


def widths(dtype: np.dtype[Any]) -> list[int]:
    """Widths to try: none, and the largest that divides the item size."""
    return [1, *[width for width in WIDTHS if dtype.itemsize % width == 0][-1:]]


def sample(array: npt.NDArray[Any]) -> Bytes:
    """Take a sample of an array."""
    parts = [array[start:stop] for start, stop in sample_ranges(len(array), array.itemsize)]
    return as_bytes(np.ascontiguousarray(parts[0]) if len(parts) == 1 else np.concatenate(parts))


def sample_ranges(length: int, itemsize: int) -> list[tuple[int, int]]:
    """Place four pieces in an array, together a sixty-fourth of it but 32 KiB at least and 256 at most."""
    piece = min(max(length * itemsize // 64 // _PIECES, _SMALLEST_PIECE), _LARGEST_PIECE)
    count = max(piece // itemsize, 1)
    if length <= _PIECES * count:
        return [(0, length)]
    starts = [(length - count) * k // (_PIECES - 1) for k in range(_PIECES)]
    return [(start, start + count) for start in starts]


def try_out(sampled: Bytes, codec: str, width: int) -> Trial:
    """Compress a sample."""
    # CPU time, so that neither the interpreter's lock nor other processes count.
    start = time.thread_time_ns()
    stored = len(encode(sampled, codec, width))
    nanoseconds = max(time.thread_time_ns() - start, 1)
    return Trial(Choice(codec, width), len(sampled) / stored, len(sampled) / nanoseconds * 1e9)


def cheapest(trials: Sequence[Trial], *, threads: int, bandwidth: float, byte_price: float = BYTE_PRICE) -> Choice:
    """Apply the model; raw where there are no trials."""

    def cost(trial: Trial) -> float:
        cpu, disk = 1 / trial.speed, 1 / (trial.ratio * bandwidth)
        return max(cpu / threads, disk) + CPU_PRICE * cpu + byte_price / trial.ratio

    return min(trials, key=cost).choice if trials else RAW
