"""The checksums that a device computes: its kernels, run by threads of the host's, and what calls them.

What is compared with is the packages ``crc32c`` and ``blake3``, which compute the checksums of all other files.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import shutil
import subprocess
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ckpt_spill.store.device import hashes
from ckpt_spill.store.device.memory import Memory

SOURCE = resources.files("ckpt_spill.store.device") / "hashes.cu"
HERE = Path(__file__).parent
MiB = 1 << 20

# The official test vectors of BLAKE3 are of bytes that count up to 250 again and again.
CONTENTS = {
    "counting": (np.arange(5 * MiB) % 251).astype("u1"),
    "random": np.random.default_rng(0).integers(0, 256, 5 * MiB, dtype="u1"),
    "zeros": np.zeros(5 * MiB, "u1"),
    "ones": np.full(5 * MiB, 255, "u1"),
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Compile the kernels for the host; give them as functions."""
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    path = tmp_path_factory.mktemp("kernels") / "hashes.so"
    line = [compiler, "-std=c++17", "-O2", "-pthread", "-shared", "-fPIC", f'-DKERNELS="{SOURCE}"']
    done = subprocess.run(
        [*line, HERE / "hashes_on_host.cpp", "-o", path], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(path))
    number, size, pointer = ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_void_p
    library.run_crc_blocks.argtypes = [number, number, pointer, size, size, pointer]
    library.run_hash_blocks.argtypes = [number, number, pointer, size, size, pointer, pointer]
    library.run_lengths.argtypes = [number, pointer, number, pointer, pointer]
    return library


def results(count):
    """Make room for the results of so many blocks."""
    return np.full(count, 0xDEADBEEF, "u4"), np.full((count, 32), 0xA5, "u1")


def expected(data, block):
    blocks = [data[at : at + block] for at in range(0, len(data), block)]
    return [crc32c(part) for part in blocks], [blake3(part).digest() for part in blocks]


def run(kernels, data, block, *, grid=1, threads=64, digests=True):
    """Run a kernel over an array as it would run on a device."""
    crcs, hashed = results(-(-len(data) // block))
    start = grid, threads, data.ctypes.data, len(data), block, crcs.ctypes.data
    if digests:
        kernels.run_hash_blocks(*start, hashed.ctypes.data)
    else:
        kernels.run_crc_blocks(*start)
        hashed = []
    return crcs.tolist(), [row.tobytes() for row in hashed]


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4])
def test_every_length_up_to_three_chunks(kernels, offset):
    """Wherever the first byte lies, and however short the last word, block and chunk are, both checksums are right."""
    most = 3000
    data = CONTENTS["counting"][offset:]
    assert data.ctypes.data % 16 == offset
    crcs, digests = results(most)
    kernels.run_lengths(8, data.ctypes.data, most, crcs.ctypes.data, digests.ctypes.data)
    for n in range(1, most + 1):
        want = expected(data[:n], n)
        assert (n, [crcs[n - 1]], [digests[n - 1].tobytes()]) == (n, *want)


@settings(max_examples=60, deadline=None)
@given(
    content=st.sampled_from(sorted(CONTENTS)),
    offset=st.integers(0, 17),
    length=st.integers(1, 3 * MiB) | st.integers(1, 5000) | st.integers(1, 3000).map(lambda n: n << 10),
    block=st.sampled_from([1 << 10, 1 << 12, 1 << 16, 1 << 20, 1 << 24]) | st.integers(1, 2 * MiB),
    threads=st.sampled_from([32, 64, 96, 256]),
    grid=st.integers(1, 5),
    digests=st.booleans(),
)
@example("random", 0, 3 * MiB + 1, 1 << 20, 256, 3, True)
@example("random", 3, 3 * MiB - 1, 1 << 20, 64, 3, False)
@example("random", 1, 3 * MiB, 1 << 24, 96, 1, True)
@example("random", 4, MiB + 1, 1 << 24, 256, 2, True)
@example("counting", 2, 100 << 10, 1 << 12, 32, 4, True)
def test_any_length_in_any_blocks(kernels, content, offset, length, block, threads, grid, digests):
    """Each block has the checksums of its own bytes, however many threads and thread blocks there are."""
    data = CONTENTS[content][offset : offset + min(length, 40 * block)]  # of tiny blocks a few only, to be quick
    got = run(kernels, data, block, grid=grid, threads=threads, digests=digests)
    want = expected(data, block)
    assert got == (want[0], want[1] if digests else [])


@pytest.mark.parametrize("threads", [256, 1024])
def test_the_largest_block(kernels, threads):
    """A block of 2^24 bytes fills the tree; 1024 threads shift CRCs as far as can be. A few bytes more are a block."""
    data = np.tile(CONTENTS["random"], 4)[: (1 << 24) + 5]
    assert run(kernels, data, 1 << 24, threads=threads) == expected(data, 1 << 24)


def test_the_checksum_of_the_catalogue(kernels):
    """The CRC is the one that catalogues of CRCs, and RFC 3720 for 32 zeros, have."""
    for data, crc in {b"123456789": 0xE3069283, bytes(32): 0x8A9136AA}.items():
        assert run(kernels, np.frombuffer(data, "u1"), 1024)[0] == [crc]


class Stream:
    """The stream in which all is launched: the legacy default one."""

    def __init__(self):
        self.ptr, self.current = 0, False

    def __enter__(self):
        self.current = True

    def __exit__(self, *_):
        self.current = False

    def synchronize(self):
        pass


class Device:
    """The host as a device: CuPy and RMM, as far as the module uses them, with kernels that run here."""

    def __init__(self, kernels, monkeypatch):
        self.kernels, self.stream = kernels, Stream()
        self.launches = 0
        self.wrong = None  # the launch that computes something wrong
        self.room = 1 << 30
        runtime = types.SimpleNamespace(memcpyAsync=self.copy, memcpyDeviceToHost=2)
        cuda = types.SimpleNamespace(Stream=types.SimpleNamespace(null=self.stream), runtime=runtime)
        monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda, RawModule=self.module))
        self.buffer.to_device = lambda host: self.buffer(size=host.nbytes, host=host)
        monkeypatch.setitem(sys.modules, "rmm", types.SimpleNamespace(DeviceBuffer=self.buffer))

    @functools.cached_property
    def buffer(self):
        def make(*, size, host=None):
            self.room -= size
            if self.room < 0:
                raise MemoryError("std::bad_alloc")
            memory = np.full(size, 0xA5, "u1") if host is None else host.copy()
            return types.SimpleNamespace(ptr=memory.ctypes.data, size=size, memory=memory)

        return make

    def module(self, *, code, options):
        assert code == SOURCE.read_text()
        assert options == ("-std=c++17",)
        return types.SimpleNamespace(get_function=self.function)

    def function(self, name):
        def launch(grid, block, parameters):
            assert self.stream.current
            assert {type(parameter) for parameter in parameters} == {np.uint64}
            numbers = [int(parameter) for parameter in parameters]
            getattr(self.kernels, f"run_{name}")(*grid, *block, *numbers)
            if self.launches == self.wrong:
                last = -(-numbers[1] // numbers[2]) * (4 if len(numbers) == 4 else 36) - 1
                ctypes.c_ubyte.from_address(numbers[3] + last).value ^= 1
            self.launches += 1

        return launch

    def copy(self, to, start, size, kind, stream):
        assert (kind, stream) == (2, 0)
        ctypes.memmove(to, start, size)


@pytest.fixture
def device(kernels, monkeypatch):
    """The host as a device, of which nothing is known."""
    monkeypatch.setattr(hashes, "_THREADS", 32)
    monkeypatch.setattr(hashes, "_verdict", [])
    hashes._kernel.cache_clear()
    yield Device(kernels, monkeypatch)
    hashes._kernel.cache_clear()


def memory_of(data):
    return Memory(data.ctypes.data, data.nbytes, data)


@pytest.mark.parametrize("digests", [True, False])
@pytest.mark.parametrize("block", [1000, 1 << 16, 1 << 20, 1 << 24])
def test_blocks_of_memory(device, monkeypatch, block, digests):
    """Checksums come back in the order of the blocks, also where there are more of these than thread blocks."""
    monkeypatch.setattr(hashes, "_GRID", 3)
    data = CONTENTS["random"][: MiB + 12345 if block > 1000 else 20_500]
    memory = memory_of(data).part(3, data.nbytes)
    want = expected(data[3:], block)
    assert hashes.hash_blocks(memory, block, digests=digests) == (want[0], want[1] if digests else [])


def test_no_bytes_have_no_checksums(device):
    """Nothing is launched for nothing, and sizes that the kernels are not made for are refused."""
    assert hashes.hash_blocks(Memory(0, 0), 1 << 20, digests=True) == ([], [])
    for block in (0, -1, (1 << 24) + 1):
        with pytest.raises(ValueError, match="bytes, not"):
            hashes.hash_blocks(memory_of(CONTENTS["zeros"]), block, digests=True)
    assert device.launches == 0


def test_a_device_that_computes_right_is_trusted(device, caplog):
    """It is tried once, whoever asks at the same time."""
    barrier = threading.Barrier(4)

    def ask(_):
        barrier.wait(10)
        return hashes.trusted()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [True] * 4
    assert device.launches == 2 * len(hashes._TRIED)
    assert caplog.records == []


@pytest.mark.parametrize("wrong", [0, 1, 26, 2 * len(hashes._TRIED) - 1])
def test_one_wrong_bit_is_enough_not_to_trust_a_device(device, caplog, wrong):
    """A bit of the last result of any launch is noticed; it is logged once, and the device is not asked again."""
    device.wrong = wrong
    with caplog.at_level(logging.ERROR, "ckpt_spill"):
        assert [hashes.trusted(), hashes.trusted()] == [False, False]
    (record,) = caplog.records
    assert "they are wrong for" in record.getMessage()
    assert device.launches == wrong + 1


def test_a_device_that_fails_is_not_trusted(device, caplog, monkeypatch):
    """Whatever fails, such as the compiler, is logged once, and nothing is raised."""

    def fail(**_):
        raise OSError("libnvrtc.so.12: cannot open shared object file")

    monkeypatch.setattr(sys.modules["cupy"], "RawModule", fail)
    with caplog.at_level(logging.ERROR, "ckpt_spill"):
        assert [hashes.trusted(), hashes.trusted()] == [False, False]
    (record,) = caplog.records
    assert "OSError: libnvrtc" in record.getMessage()


@pytest.mark.parametrize("room", [1000, MiB + 100])
def test_a_device_that_is_full_is_tried_again(device, caplog, room):
    """No memory for the bytes, or for the results, says nothing about the checksums."""
    device.room = room
    assert hashes.trusted() is False
    device.room = 1 << 30
    assert hashes.trusted() is True
    assert caplog.records == []
