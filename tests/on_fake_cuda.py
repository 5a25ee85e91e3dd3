"""Checks of direct reads and writes with real kvikio, but memory of a device that is none: see ``fake_cuda.c``.

Each runs in a process of its own, which finds that library instead of the driver's:
``python -m tests.on_fake_cuda NAME DIRECTORY``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import itertools
import os
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import kvikio
import numpy as np

from ckpt_spill.store.device import direct
from ckpt_spill.store.device.memory import Memory

MiB = 1 << 20
PAGE = 4096
MOVED = 1 << 47
SIZES = [0, 1, PAGE - 1, PAGE, PAGE + 1, 4 * PAGE - 1, 4 * PAGE, MiB + 3, 4 * MiB, 20 * MiB + 5]
OFFSETS = [0, 1, 511, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 2 * MiB + 13]
DIRECT_IO = ["auto_direct_io_read", "auto_direct_io_write"]


class Owner:
    """Frees memory when nothing uses it any more."""

    def __init__(self, library, address):
        self.free = functools.partial(library.cuMemFree_v2, ctypes.c_ulonglong(address))

    def __del__(self):
        self.free()


class Driver:
    """The library that passes for CUDA's."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def memory(self, nbytes, content=None):
        """Give memory of the device, and a view of it from here."""
        address = ctypes.c_ulonglong()
        assert self.library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes)) == 0
        assert address.value & MOVED
        owner = Owner(self.library, address.value)
        array = (ctypes.c_ubyte * nbytes).from_address(address.value - MOVED)
        array.owner = owner
        view = np.frombuffer(array, np.uint8)
        view[:] = 0xAA if content is None else content
        return Memory(address.value, nbytes, owner), view


def noise(nbytes, seed=0):
    return np.random.default_rng([nbytes, seed]).integers(0, 256, nbytes, np.uint8)


@contextlib.contextmanager
def opened(path, flags=os.O_RDWR | os.O_CREAT | os.O_TRUNC):
    fd = os.open(path, flags, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def content(fd):
    return np.frombuffer(os.pread(fd, os.fstat(fd).st_size, 0), np.uint8)


def same(a, b):
    assert np.array_equal(a, b), np.flatnonzero(np.asarray(a) != np.asarray(b))[:5] if len(a) == len(b) else (a, b)


def refusal(fd, offset, memory):
    """Give the number of the error that a write raises."""
    try:
        direct.write(fd, offset, memory)
    except OSError as error:
        return error.errno
    return None


def round_trips(driver, directory):
    """Any size at any offset, from and to any address, with and without O_DIRECT; what is around it stays."""
    for settings in itertools.product([False, True], repeat=2):
        with kvikio.defaults.set(dict(zip(DIRECT_IO, settings, strict=True))):
            for size, offset in itertools.product(SIZES, OFFSETS):
                if size < 4 * MiB or offset in OFFSETS[:3]:
                    round_trip(driver, directory / "file", size, offset)


def round_trip(driver, path, size, offset):
    before, data, start = noise(offset + size + 2 * PAGE + 7), noise(size, 1), offset % 3
    expected = before.copy()
    expected[offset : offset + size] = data
    with opened(path) as fd:
        os.pwrite(fd, before, 0)
        memory, view = driver.memory(size + 5)
        view[start : start + size] = data
        direct.write(fd, offset, memory.part(start, start + size))
        same(content(fd), expected)
        into, view = driver.memory(size + 5)
        assert direct.read(fd, offset, into.part(start, start + size))
        same(view[start : start + size], data)
        assert set(view[:start]) | set(view[start + size :]) == {0xAA}


def growth(driver, directory):
    """A range that lies behind the end of a file makes the file as long as it has to be."""
    with opened(directory / "file") as fd:
        for offset, size in [(0, 5), (PAGE, 3 * PAGE), (8 * PAGE, 5 * MiB + 1)]:
            direct.write(fd, offset, driver.memory(size, 7)[0])
            assert os.fstat(fd).st_size == offset + size
        assert np.count_nonzero(content(fd)) == 5 + 3 * PAGE + 5 * MiB + 1


def mixed(driver, directory):
    """Pages written by the system's calls and pages written directly, at once and unflushed, are both there for all."""
    length = 64 * 16 * PAGE
    data = noise(length)
    data[:length] |= 1
    with kvikio.defaults.set(dict.fromkeys(DIRECT_IO, True)), opened(directory / "file") as fd:
        os.pwrite(fd, bytes(length), 0)  # which is in the page cache, and not on the disk

        def put(part):
            if part.start // (16 * PAGE) % 2:
                os.pwrite(fd, data[part], part.start)
            else:
                direct.write(fd, part.start, driver.memory(part.stop - part.start, data[part])[0])

        ends = [16 * PAGE - k * 37 for k in range(64)]  # most of them no whole pages, the next begins at one
        parts = [slice(start, start + end) for start, end in zip(range(0, length, 16 * PAGE), ends, strict=True)]
        expected = np.zeros(length, np.uint8)
        for part in parts:
            expected[part] = data[part]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(put, parts))
        same(content(fd), expected)
        os.fdatasync(fd)
        into, view = driver.memory(length)
        assert direct.read(fd, 0, into)
        same(view, expected)


def ends(driver, directory):
    """A file that ends before the range, or is cut while it is read, is told from one that does not."""
    with opened(directory / "file") as fd:
        os.pwrite(fd, noise(5 * MiB), 0)
        for size, offset in [(1, 5 * MiB), (2, 5 * MiB - 1), (5 * MiB, 1), (1, 9 * MiB)]:
            into, view = driver.memory(size)
            assert direct.read(fd, offset, into) is False
            assert set(view) == {0xAA}
        assert direct.read(fd, 5 * MiB - 1, driver.memory(1)[0]) is True
        direct.os = SimpleNamespace(**{**vars(os), "fstat": lambda fd: SimpleNamespace(st_size=9 * MiB)})
        try:
            assert direct.read(fd, 0, driver.memory(6 * MiB)[0]) is False
        finally:
            direct.os = os


def no_room(driver, directory):
    """Want of room and a limit of files come with the system's numbers, and so does a file that cannot be written."""
    memory = driver.memory(20 * MiB, 1)[0]
    with opened("/dev/full", os.O_RDWR) as fd:
        assert refusal(fd, 0, memory) == errno.ENOSPC
    with opened(directory / "file") as fd:
        assert refusal(fd, 1 << 60, memory) in {errno.EFBIG, errno.ENOSPC}
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6 * MiB, limits[1]))
        assert refusal(fd, 0, memory) == errno.EFBIG
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert refusal(fd, 0, memory) is None
    with opened(directory, os.O_RDONLY) as fd:
        assert refusal(fd, 0, memory) == errno.EISDIR


def full_disk(driver, directory):
    """On a disk with room for some of it, what does not fit fails with ENOSPC, and the next file can be written."""
    with opened(directory / "file") as fd:
        assert refusal(fd, 0, driver.memory(40 * MiB, 1)[0]) == errno.ENOSPC
        os.ftruncate(fd, 0)
        direct.write(fd, 0, driver.memory(10 * MiB, 1)[0])


def replaced(driver, directory):
    """The file that was opened is read and written, though another one, or none, is at its path by now."""
    path, other = directory / "file", directory / "other"
    data = noise(3 * MiB)
    for change in (other.replace, lambda target: target.unlink()):
        other.write_bytes(b"another" * MiB)
        with opened(path) as fd:
            os.pwrite(fd, data, 0)
            change(path)
            into, view = driver.memory(len(data))
            assert direct.read(fd, 0, into)
            same(view, data)
            direct.write(fd, 0, driver.memory(len(data), data[::-1])[0])
            same(content(fd), data[::-1])
        assert not path.exists() or path.read_bytes() == b"another" * MiB


def descriptors(driver, directory):
    """Reading and writing leaves no descriptor open, be it done or not."""
    with opened(directory / "file") as fd:
        direct.write(fd, 0, driver.memory(MiB)[0])
        before = os.listdir("/proc/self/fd")
        for _ in range(5):
            direct.write(fd, 3, driver.memory(MiB)[0])
            assert direct.read(fd, 3, driver.memory(MiB)[0])
            assert not direct.read(fd, 4, driver.memory(MiB)[0])
            assert refusal(fd, 1 << 60, driver.memory(MiB)[0])
            assert os.listdir("/proc/self/fd") == before


def threads(driver, directory):
    """Threads that CUDA does not know yet write and read ranges of one file at once."""
    size, n = 3 * MiB + 2 * PAGE, 16
    data = noise(size * n)
    ready = threading.Barrier(n)

    def work(number):
        part = data[number * size : (number + 1) * size]
        ready.wait()
        direct.write(fd, number * size, driver.memory(size, part)[0])
        into, view = driver.memory(size)
        assert direct.read(fd, number * size, into)
        same(view, part)

    for count in (1, 4):
        with kvikio.defaults.set("num_threads", count), opened(directory / "file") as fd, ThreadPoolExecutor(n) as pool:
            list(pool.map(work, range(n)))
            same(content(fd), data)


if __name__ == "__main__":
    assert direct.mode() == "compat"
    globals()[sys.argv[1]](Driver(), Path(sys.argv[2]))
