"""Direct writes from, and reads to, memory of a device."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ckpt_spill.store.device import direct
from ckpt_spill.store.device.memory import Memory, allocate
from tests.gpu import marks

pytestmark = marks(120)

MiB = 1 << 20
PAGE = 4096


def memory_of(array):
    return Memory(array.data.ptr, array.nbytes, array)


def noise(nbytes):
    import cupy

    return cupy.asarray(np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@contextlib.contextmanager
def opened(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture(scope="module", autouse=True)
def started(tmp_path_factory):
    """What kvikio keeps open as long as the process is."""
    with opened(tmp_path_factory.mktemp("started") / "file") as fd:
        direct.write(fd, 0, memory_of(noise(MiB)))


@pytest.fixture(params=["as it is", "compat"], autouse=True)
def way(request):
    """The mode that this machine has, and compatibility mode, which may be the same."""
    import kvikio
    import kvikio.defaults

    forced = {} if request.param == "as it is" else {"compat_mode": kvikio.CompatMode.ON}
    with kvikio.defaults.set(forced):
        assert direct.mode() == "compat" if forced else direct.mode() in {"gds", "compat"}
        yield


@pytest.mark.parametrize("offset", [0, 1, PAGE - 1, PAGE, 3 * PAGE + 17])
@pytest.mark.parametrize("size", [1, PAGE, 5 * PAGE, MiB, 3 * MiB + 11, 8 * MiB, 20 * MiB - 1])
def test_round_trips(size, offset, path):
    """What is written at any offset is what the system reads there, and what is read back; the rest of a file stays."""
    import cupy

    data, before = noise(size), os.urandom(offset + size + 2 * PAGE)
    with opened(path) as fd:
        os.pwrite(fd, before, 0)
        direct.write(fd, offset, memory_of(data))
        expected = before[:offset] + data.tobytes() + before[offset + size :]
        assert os.pread(fd, len(expected) + 1, 0) == expected
        into = cupy.full(size + 2, 0xAA, cupy.uint8)
        assert direct.read(fd, offset, memory_of(into).part(1, size + 1))
        assert bool((into[1:-1] == data).all())
        assert into[0] == into[-1] == 0xAA


def test_memory_of_rmm(path):
    """Memory from RMM's current resource is read to."""
    import cupy

    data = noise(5 * MiB)
    path.write_bytes(data.tobytes())
    with path.open("rb") as file:
        into = allocate(5 * MiB)
        assert direct.read(file.fileno(), 0, into)
        assert bool((cupy.asarray(into) == data).all())


def test_order(path):
    """What was started on the default stream before a write is written, and what is started after a read sees it."""
    import cupy

    n = 16 * MiB
    with opened(path) as fd:
        for step in range(1, 6):
            array = cupy.zeros(n, cupy.uint8)
            for _ in range(50 * step):
                array += 1
            direct.write(fd, 0, memory_of(array))
            assert os.pread(fd, n, 0) == bytes([50 * step % 256]) * n
            for _ in range(50):
                array += 3
            assert direct.read(fd, 0, memory_of(array))
            assert bool((array == 50 * step % 256).all())


def test_files_that_end_before(path):
    """A file that is too short is told from one that is not."""
    with opened(path) as fd:
        os.pwrite(fd, bytes(3 * MiB), 0)
        data = noise(2 * MiB)
        assert direct.read(fd, MiB, memory_of(data))
        assert not direct.read(fd, MiB + 1, memory_of(data))


def test_replaced(path, tmp_path):
    """The file that was opened is read, not the one that is at its path by now."""
    data = noise(2 * MiB)
    with opened(path) as fd:
        direct.write(fd, 0, memory_of(data))
        (tmp_path / "other").write_bytes(bytes(2 * MiB))
        (tmp_path / "other").replace(path)
        into = noise(2 * MiB) + 1
        assert direct.read(fd, 0, memory_of(into))
        assert bool((into == data).all())


def test_no_room(path):
    """Want of room, and a limit of files, come with the system's numbers."""
    data = memory_of(noise(20 * MiB))
    fd = os.open("/dev/full", os.O_RDWR)
    try:
        with pytest.raises(OSError, match="No space left"):
            direct.write(fd, 0, data)
    finally:
        os.close(fd)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(path) as fd:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6 * MiB, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large") as raised:
                direct.write(fd, 0, data)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert raised.value.errno == errno.EFBIG


def test_threads(path):
    """Threads that CUDA does not know yet write and read ranges of one file at once, beside the system's calls."""
    size = 4 * MiB + PAGE
    arrays = [noise(size - 37 * k) for k in range(12)]

    def work(number):
        array = arrays[number]
        if number % 3:
            direct.write(fd, number * size, memory_of(array))
        else:
            os.pwrite(fd, array.tobytes(), number * size)
        into = allocate(array.nbytes)
        assert direct.read(fd, number * size, into)
        return into

    with opened(path) as fd, ThreadPoolExecutor(12) as pool:
        import cupy

        cupy.cuda.Device().synchronize()
        for number, into in enumerate(pool.map(work, range(12))):
            assert bool((cupy.asarray(into) == arrays[number]).all())
            content = np.frombuffer(os.pread(fd, into.nbytes, number * size), np.uint8)
            assert np.array_equal(content, arrays[number].get())
