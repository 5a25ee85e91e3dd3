"""The system calls of a partition file: whole reads, batched writes, early write-back, flushing. No format in here."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ckpt_spill.store.codecs import Bytes
from ckpt_spill.store.write_back import start_write_back, start_write_back_soon

_BATCH_BYTES = 4 << 20
_BATCH_PIECES = 512  # IOV_MAX is at least 1024 on Linux and macOS

_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


class NotRegularError(ValueError):
    """What lies at the path is no regular file."""


class Source(Protocol):
    """The bytes of a partition file, wherever it is. Ranges may be read by several threads at once."""

    @property
    def name(self) -> str:
        """What to call it in errors."""

    @property
    def size(self) -> int:
        """Number of bytes."""

    def read_into(self, out: Bytes, offset: int) -> bool:
        """Fill `out` from `offset` on; False when the file ends before."""


def read_bytes(source: Source, length: int, offset: int) -> bytes:
    """Read a range, or what there is of it."""
    out = np.empty(max(min(length, source.size - offset), 0), np.uint8)
    return out.tobytes() if source.read_into(out, offset) else b""


@dataclass(frozen=True)
class OpenFile:
    """A file of this machine that is open for reading."""

    name: str
    fd: int
    size: int

    def read_into(self, out: Bytes, offset: int) -> bool:
        """Fill `out` from `offset` on; False when the file ends before."""
        done = 0
        while done < len(out):
            count = os.preadv(self.fd, [out.data[done:]], offset + done)
            if count == 0:
                return False
            done += count
        return True


@contextmanager
def open_regular(path: str | os.PathLike[str]) -> Iterator[OpenFile]:
    """Open a file for reading; follows no link and waits for no pipe."""
    try:
        fd = os.open(path, _OPEN)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a symbolic link, a socket
            raise NotRegularError("is no regular file") from error
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise NotRegularError("is no regular file")
        yield OpenFile(os.fspath(path), fd, status.st_size)
    finally:
        os.close(fd)


class Writer:
    """Writes pieces one after the other, from the start of an empty file.

    Parameters
    ----------
    fd : int
        Left open.
    durable : bool
        Whether `finish` flushes to the disk. In any case Linux is told to begin with each batch at once, so that the
        disk works while later blocks are still being compressed.

    Attributes
    ----------
    written : int
        Bytes handed over so far.
    seconds : float
        Time spent in system calls.
    """

    def __init__(self, fd: int, *, durable: bool) -> None:
        self.written = 0
        self.seconds = 0.0
        self._fd = fd
        self._durable = durable
        self._batch: list[memoryview] = []
        self._written: list[Callable[[], None]] = []
        self._bytes = 0

    def write(self, data: bytes | memoryview, written: Callable[[], None] | None = None) -> None:
        """Take one piece, which must not change before `written` is called, at the latest by `finish`."""
        self._batch.append(memoryview(data))
        if written:
            self._written.append(written)
        self._bytes += len(data)
        self.written += len(data)
        if self._bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_PIECES:
            self._flush()

    def align(self, page: int) -> None:
        """Go on at a multiple of `page` bytes."""
        if missing := -self.written % page:
            self.write(bytes(missing))

    def write_by(self, write: Callable[[int, int], None], nbytes: int) -> None:
        """Let `write` put the next bytes there, given descriptor and offset."""
        self._flush()
        start = time.perf_counter()
        write(self._fd, self.written)
        self.written += nbytes
        self.seconds += time.perf_counter() - start

    def finish(self) -> None:
        """Write what is left and, if durable, wait until everything is on the disk."""
        self._flush()
        if self._durable:
            start = time.perf_counter()
            datasync(self._fd)
            self.seconds += time.perf_counter() - start

    def _flush(self) -> None:
        start, offset = time.perf_counter(), self.written - self._bytes
        batch, self._batch, self._bytes = self._batch, [], 0
        position = offset
        while batch:
            count = os.pwritev(self._fd, batch, position)
            position += count
            batch = _rest(batch, count)
        written, self._written = self._written, []
        for tell in written:
            tell()
        (start_write_back if self._durable else start_write_back_soon)(self._fd, offset, position - offset)
        self.seconds += time.perf_counter() - start


def _rest(pieces: list[memoryview], count: int) -> list[memoryview]:
    """Drop what is written from pieces of which the first `count` bytes have been written."""
    for k, piece in enumerate(pieces):
        if count < len(piece):
            return [piece[count:], *pieces[k + 1 :]]
        count -= len(piece)
    return []


def datasync(fd: int) -> None:
    """Wait until the data of a file, and what is needed to find it, is on the disk."""
    if sys.platform == "darwin":
        # fsync of macOS stops at the drive's cache.
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)
