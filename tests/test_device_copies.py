"""How memory is fetched from a device: through slots of pinned memory, never emptied before they are full."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ckpt_spill.store.device import copies
from ckpt_spill.store.device.memory import Memory
from tests import host_device


@pytest.fixture
def driver(monkeypatch):
    """Stand in for RMM: copies are carried out when their stream is waited for, and not before."""
    seen = SimpleNamespace(started=[], copied=0, waits=0, before=0)

    class Stream:
        def synchronize(self):
            seen.waits += 1
            for address, into in seen.started:
                into[:] = host_device.shown(Memory(address, len(into)))
                seen.copied += len(into)
            seen.started.clear()

    def copy(address, into, stream):
        assert isinstance(stream, Stream)
        into[:] = 255  # what is read too early is wrong
        seen.started.append((address, into))

    def first():
        seen.before += 1

    pinned = SimpleNamespace(alloc_pinned_memory=bytearray, runtime=SimpleNamespace(deviceSynchronize=first))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=pinned))
    monkeypatch.setitem(sys.modules, "rmm.pylibrmm.stream", SimpleNamespace(Stream=Stream))
    monkeypatch.setitem(sys.modules, "rmm.pylibrmm.device_buffer", SimpleNamespace(copy_ptr_to_host=copy))
    monkeypatch.setattr(copies, "ROOM", 64)
    copies._spare.clear()
    yield seen
    copies._spare.clear()


@pytest.mark.parametrize("sizes", [[0], [1], [64], [65], [640], [1, 0, 63, 130, 17, 5], [3] * 100])
def test_pieces_of_any_size_are_fetched(driver, sizes):
    """Pieces smaller and larger than a slot come as they are, many to one wait, after what was started before."""
    memory = [np.arange(n, dtype=np.uint8) % 251 + i for i, n in enumerate(sizes)]
    fetched = copies.to_host([Memory(m.ctypes.data, m.nbytes) for m in memory])
    assert len(fetched) == len(memory)
    assert all(np.array_equal(a, b) for a, b in zip(memory, fetched, strict=True))
    assert driver.copied == sum(sizes)
    assert driver.waits == (-(-sum(sizes) // 64) + 1 if sum(sizes) else 0)  # one for each load, and one at the end
    assert driver.before == bool(sum(sizes))
    assert driver.started == []


def test_pieces_that_follow_one_another_are_one_copy(driver, monkeypatch):
    """Blocks of one buffer do not take a call each."""
    memory = np.arange(60, dtype=np.uint8)
    at = memory.ctypes.data
    calls = []
    with copies.channel() as taken:
        copy = taken._copy
        monkeypatch.setattr(taken, "_copy", lambda *args: calls.append(len(args[1])) or copy(*args))
        load = [Memory(at, 10), Memory(at + 10, 20), Memory(at + 30, 0), Memory(at + 40, 5), Memory(at, 1)]
        places = taken.start(0, load)
        taken.wait()
        assert [place.tolist() for place in places] == [memory[p.address - at :][: p.nbytes].tolist() for p in load]
    assert calls == [30, 5, 1]


def test_a_copy_that_fails_leaves_the_next_one_alone(driver, monkeypatch):
    """The pinned memory is not kept from others by an error."""
    memory = np.arange(10, dtype=np.uint8)
    copies.to_host([Memory(memory.ctypes.data, 10)])
    (spare,) = copies._spare
    with monkeypatch.context() as broken:
        broken.setattr(spare, "_copy", None)
        with pytest.raises(TypeError):
            copies.to_host([Memory(memory.ctypes.data, 10)])
    assert np.array_equal(copies.to_host([Memory(memory.ctypes.data, 10)])[0], memory)
    assert list(copies._spare) == [spare]


def test_channels_are_one_threads_at_a_time(driver):
    """Who copies while another does has a channel of its own; both are used again."""
    with copies.channel() as one, copies.channel() as other:
        assert one is not other
    with copies.channel() as again:
        assert again in (one, other)
