"""Direct reads and writes: with real kvikio over memory that passes for a device's, and with what passes for kvikio."""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ckpt_spill.store.device import direct
from ckpt_spill.store.device.memory import Memory
from tests.test_full_disk import small_disk  # noqa: F401

HERE = Path(__file__).parent
KVIKIO = importlib.util.find_spec("kvikio") is not None
needs_kvikio = pytest.mark.skipif(not KVIKIO, reason="needs kvikio")
CHECKS = re.findall(r"^def (\w+)\(driver, directory\)", (HERE / "on_fake_cuda.py").read_text(), re.MULTILINE)


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory):
    """A directory with the library, made of its source."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    directory = tmp_path_factory.mktemp("cuda")
    line = [compiler, "-shared", "-fPIC", "-O1", "-o", directory / "libcuda.so.1", HERE / "fake_cuda.c"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory


def check(name, library, directory):
    """Run one of the checks in a process of its own, which must not print anything."""
    path = os.pathsep.join(filter(None, [str(library), os.environ.get("LD_LIBRARY_PATH")]))
    variables = {"LD_LIBRARY_PATH": path, "KVIKIO_COMPAT_MODE": "ON"}
    line = [sys.executable, "-m", "tests.on_fake_cuda", name, str(directory)]
    done = subprocess.run(
        line, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr


@pytest.mark.rapids
@needs_kvikio
@pytest.mark.parametrize("name", CHECKS)
def test_kvikio(name, fake_cuda, request):
    """What tests.on_fake_cuda says of each of them holds for real kvikio in compatibility mode."""
    check(name, fake_cuda, request.getfixturevalue("small_disk" if name == "full_disk" else "tmp_path"))


@pytest.mark.rapids
@needs_kvikio
def test_names(capfd):
    """What is used of kvikio is there, takes what it is given, and says nothing where there is no device."""
    import kvikio
    import kvikio.cufile_driver
    import kvikio.defaults

    for call in (kvikio.CuFile.read, kvikio.CuFile.write):
        assert {"buf", "file_offset", "task_size"} <= set(inspect.signature(call).parameters)
    assert list(inspect.signature(kvikio.CuFile).parameters) == ["file", "flags"]
    assert list(inspect.signature(kvikio.cufile_driver.get).parameters) == ["config_name"]
    assert "is_gds_available" in vars(kvikio.cufile_driver.cufile_driver.DriverProperties)
    assert not inspect.signature(kvikio.defaults.is_compat_mode_preferred).parameters
    with kvikio.defaults.set("compat_mode", kvikio.CompatMode.ON):
        assert direct.mode() == "compat"
    with kvikio.defaults.set("compat_mode", kvikio.CompatMode.OFF):
        assert direct.mode() in {"gds", "compat"}
    assert capfd.readouterr() == ("", "")


def never():
    raise AssertionError


def refuse(*_):
    raise ValueError("Unknown compatibility mode: often")


def no_driver(*_):
    raise RuntimeError("nvidia-fs driver is not loaded")


@pytest.mark.parametrize(
    ("mode", "compatible", "device", "driver"),
    [
        ("", None, never, never),
        ("", refuse, never, never),
        ("compat", lambda: True, never, never),
        ("compat", lambda: False, lambda: False, never),
        ("compat", lambda: False, lambda: True, lambda _: False),
        ("compat", lambda: False, lambda: True, no_driver),
        ("gds", lambda: False, lambda: True, lambda name: {"is_gds_available": True}[name]),
    ],
)
def test_mode(mode, compatible, device, driver, monkeypatch):
    """The mode is what kvikio says, which is asked for its driver only where there is a device."""
    defaults = compatible and SimpleNamespace(is_compat_mode_preferred=compatible)
    monkeypatch.setitem(sys.modules, "kvikio.defaults", defaults)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(is_available=device)))
    monkeypatch.setitem(sys.modules, "kvikio.cufile_driver", SimpleNamespace(get=driver))
    assert direct.mode() == mode


def test_mode_without_descriptors_as_files(monkeypatch):
    """Where the system does not show open files as files, kvikio cannot be given them."""
    defaults = SimpleNamespace(is_compat_mode_preferred=lambda: True)
    monkeypatch.setitem(sys.modules, "kvikio.defaults", defaults)
    monkeypatch.setattr(direct, "_OPEN_FILES", "/nowhere")
    assert direct.mode() == ""


class File:
    """What passes for kvikio's file: one whose calls, by a script, do less than they are asked for.

    A step of the script is None, for a gap in the middle, a number of bytes, or an error.
    """

    script: list

    def __init__(self, path, flags):
        self.fd = os.open(path, {"r": os.O_RDONLY, "r+": os.O_RDWR}[flags])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        os.close(self.fd)

    def read(self, memory, size=None, file_offset=0, task_size=None):
        return self.move(os.preadv, memory, file_offset, task_size)

    def write(self, memory, size=None, file_offset=0, task_size=None):
        return self.move(os.pwritev, memory, file_offset, task_size)

    def move(self, call, memory, offset, task_size):
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        view = memoryview((ctypes.c_ubyte * memory.nbytes).from_address(memory.address))
        if step is None:
            assert task_size is None
            third = memory.nbytes // 3
            return call(self.fd, [view[:third]], offset) + call(self.fd, [view[2 * third :]], offset + 2 * third)
        assert task_size == memory.nbytes or step >= memory.nbytes
        return call(self.fd, [view[:step]], offset) if step else 0


@pytest.fixture
def scripted(monkeypatch):
    def scripted(*steps):
        File.script = list(steps)
        return File.script

    monkeypatch.setitem(sys.modules, "kvikio", SimpleNamespace(CuFile=File))
    return scripted


@pytest.fixture
def file(tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def memory_of(array):
    return Memory(array.ctypes.data, array.nbytes, array)


DATA = np.random.default_rng(5).integers(1, 256, 9000, np.uint8)

SHORT = [[9000], [None, 9000], [None, 4000, 5000], [None, 1, 4095, 4903, 1], [10_000]]


@pytest.mark.parametrize("steps", SHORT)
def test_short_counts(steps, scripted, file):
    """Whatever part kvikio does at a time, all is written and read in the end, and nothing else."""
    left = scripted(*steps)
    direct.write(file, 77, memory_of(DATA))
    assert os.pread(file, 10_000, 0) == bytes(77) + DATA.tobytes()
    assert not left
    left = scripted(*steps)
    into = np.zeros(9000, np.uint8)
    assert direct.read(file, 77, memory_of(into)) is True
    assert np.array_equal(into, DATA)
    assert not left


def test_nothing_is_nothing(scripted, file):
    """No bytes are there and are written, without kvikio being asked; not behind the end."""
    scripted()
    direct.write(file, 5, Memory(0, 0))
    assert direct.read(file, 0, Memory(0, 0)) is True
    assert direct.read(file, 1, Memory(0, 0)) is False


EOF = RuntimeError("KvikIO failure at: posix_io.hpp:173: POSIX error on pread: EOF")


@pytest.mark.parametrize("steps", [[EOF], [None, 0], [None, 5000, 0], [None, 5000, EOF]])
def test_a_file_that_is_cut_while_it_is_read(steps, scripted, file):
    """However kvikio meets the end, it is told."""
    os.pwrite(file, DATA, 0)
    scripted(*steps)
    assert direct.read(file, 0, memory_of(np.zeros(9000, np.uint8))) is False


@pytest.mark.parametrize("steps", [[None, 0], [None, 5000, 0]])
def test_a_write_that_comes_to_nothing(steps, scripted, file):
    """kvikio saying again and again that it wrote nothing is an error, not an endless loop."""
    scripted(*steps)
    with pytest.raises(RuntimeError, match="moved nothing"):
        direct.write(file, 0, memory_of(DATA))


@pytest.mark.parametrize("text", ["cuFile error at: f.cpp:1: ", "KvikIO failure at: f.cpp:1: Unable to write file: "])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES])
def test_errors_of_the_system(number, text, scripted, file):
    """What kvikio says in the system's words has the system's number again, in reads and in writes."""
    os.pwrite(file, DATA, 0)
    error = RuntimeError(text + os.strerror(number))
    for call in (direct.read, direct.write):
        scripted(error)
        with pytest.raises(OSError, match=os.strerror(number)) as raised:
            call(file, 0, memory_of(DATA))
        assert raised.value.errno == number
        assert raised.value.__cause__ is error


OTHERS = ["cuFile error at: f.cpp:1: internal error", "CUDA error at: f.cpp:1: CUDA_ERROR_INVALID_VALUE(none)"]


@pytest.mark.parametrize("text", OTHERS)
def test_errors_of_the_device(text, scripted, file):
    """What is not the system's stays what it is."""
    os.pwrite(file, DATA, 0)
    for call in (direct.read, direct.write):
        scripted(RuntimeError(text))
        with pytest.raises(RuntimeError, match=r"internal|INVALID"):
            call(file, 0, memory_of(DATA))


@pytest.mark.parametrize("text", [*OTHERS, "cuFile error at: f.cpp:1: Operation not permitted"])
def test_want_of_room_in_other_words(text, scripted, file):
    """Where cuFile does not say that there is no room, the file system does."""
    scripted(RuntimeError(text))
    with pytest.raises(OSError, match=r"large|space") as raised:
        direct.write(file, 1 << 60, memory_of(DATA))
    assert raised.value.errno in {errno.EFBIG, errno.ENOSPC}


def test_want_of_room_on_a_small_disk(scripted, small_disk):  # noqa: F811
    """A disk that is full says so, too, when cuFile does not."""
    data = np.ones(40 << 20, np.uint8)
    fd = os.open(os.path.join(small_disk, "file"), os.O_RDWR | os.O_CREAT)
    try:
        scripted(RuntimeError("cuFile error at: f.cpp:1: internal error"))
        with pytest.raises(OSError, match="No space left"):
            direct.write(fd, 0, memory_of(data))
    finally:
        os.close(fd)
