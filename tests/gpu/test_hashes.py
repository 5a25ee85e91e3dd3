"""Checksums that are computed on a GPU, against those that the host computes of the same bytes."""

import numpy as np
import pytest

from ckpt_spill.store.device import hashes
from ckpt_spill.store.device.memory import Memory
from tests.gpu import marks
from tests.test_device_hashes import expected

pytestmark = marks(120)

MiB = 1 << 20


def on_device(nbytes):
    import cupy

    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype="u1")
    array = cupy.asarray(data)
    return data, Memory(array.data.ptr, array.nbytes, array)


def test_this_gpu_is_trusted(caplog):
    """The try that comes before any use finds nothing wrong here."""
    assert hashes.trusted() is True
    assert caplog.records == []


@pytest.mark.parametrize("digests", [True, False])
@pytest.mark.parametrize("block", [1 << 10, 1 << 12, 1 << 16, 1 << 20, 3 * MiB + 7, 1 << 24])
def test_slices_at_any_address(block, digests):
    """Slices that begin and end anywhere have the host's checksums, in blocks of any size."""
    data, memory = on_device(40 * MiB + 77 if block >= MiB else 5 * MiB + 77)
    for start in (*range(5), 8, 16, 1001):
        for stop in (data.nbytes, data.nbytes - start - 1):
            want = expected(data[start:stop], block)
            got = hashes.hash_blocks(memory.part(start, stop), block, digests=digests)
            assert got == (want[0], want[1] if digests else [])


@pytest.mark.parametrize("threads", [32, 64, 96, 512, 1024])
def test_any_number_of_threads(monkeypatch, threads):
    """The results do not depend on how many threads share a block, or on how many thread blocks there are."""
    monkeypatch.setattr(hashes, "_THREADS", threads)
    monkeypatch.setattr(hashes, "_GRID", 3)
    data, memory = on_device(9 * MiB + 13)
    assert hashes.hash_blocks(memory.part(3, data.nbytes), MiB, digests=True) == expected(data[3:], MiB)


def test_every_short_length():
    """All lengths up to two chunks and a bit, each at another alignment."""
    data, memory = on_device(4096)
    for n in range(1, 2100):
        start = n % 19
        got = hashes.hash_blocks(memory.part(start, start + n), 1 << 20, digests=True)
        assert (n, *got) == (n, *expected(data[start : start + n], 1 << 20))


@pytest.mark.parametrize("stream", ["null", "ptds", "blocking"])
def test_what_was_started_before_is_waited_for(stream):
    """Bytes that are still being written when the checksums are asked for have the checksums of what is written."""
    import cupy

    streams = cupy.cuda.Stream
    made = {"null": streams.null, "ptds": streams.ptds}.get(stream) or streams()
    array = cupy.zeros(256 * MiB, "u1")
    memory = Memory(array.data.ptr, array.nbytes, array)
    cupy.cuda.runtime.deviceSynchronize()
    with made:
        for _ in range(200):
            array += 1
    assert hashes.hash_blocks(memory, MiB, digests=True) == expected(np.full(256 * MiB, 200, "u1"), MiB)
