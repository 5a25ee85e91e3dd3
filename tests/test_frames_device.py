"""How memory is fetched from a device: through two halves of pinned memory, never emptied before they are full."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ckpt_spill.store.frames import device
from ckpt_spill.store.frames.layout import Window
from tests import host_columns as host


@pytest.fixture
def driver(monkeypatch):
    """Stand in for RMM: copies are carried out when their stream is waited for, and not before."""
    seen = SimpleNamespace(started=[], copied=0, waits=0, before=0)

    class Stream:
        def synchronize(self):
            seen.waits += 1
            for address, into in seen.started:
                into[:] = host.fetch([Window(address, len(into))])[0]
                seen.copied += len(into)
            seen.started.clear()

    def copy(address, into, stream):
        assert isinstance(stream, Stream)
        into[:] = 255  # what is read too early is wrong
        seen.started.append((address, into))

    def first():
        seen.before += 1

    streams = SimpleNamespace(Stream=Stream, DEFAULT_STREAM=SimpleNamespace(synchronize=first))
    monkeypatch.setitem(sys.modules, "rmm.pylibrmm.stream", streams)
    monkeypatch.setitem(sys.modules, "rmm.pylibrmm.device_buffer", SimpleNamespace(copy_ptr_to_host=copy))
    monkeypatch.setattr(device, "_HALF", 64)
    monkeypatch.setattr(device, "_halves", [np.empty(64, np.uint8), np.empty(64, np.uint8)])
    return seen


@pytest.mark.parametrize("sizes", [[0], [1], [64], [65], [640], [1, 0, 63, 130, 17, 5], [3] * 100])
def test_pieces_of_any_size_are_fetched(driver, sizes):
    """Pieces smaller and larger than a half come as they are, many to one wait, after what was started before."""
    memory = [np.arange(n, dtype=np.uint8) % 251 + i for i, n in enumerate(sizes)]
    fetched = device.to_host([Window(m.ctypes.data, m.nbytes) for m in memory])
    assert len(fetched) == len(memory)
    assert all(np.array_equal(a, b) for a, b in zip(memory, fetched, strict=True))
    assert driver.copied == sum(sizes)
    assert driver.waits == -(-sum(sizes) // 64)
    assert driver.before == bool(sum(sizes))
    assert driver.started == []


def test_a_copy_that_fails_leaves_the_next_one_alone(driver, monkeypatch):
    """The pinned memory is not kept from others by an error."""
    memory = np.arange(10, dtype=np.uint8)
    with monkeypatch.context() as broken:
        broken.setitem(sys.modules, "rmm.pylibrmm.device_buffer", SimpleNamespace(copy_ptr_to_host=None))
        with pytest.raises(TypeError):
            device.to_host([Window(memory.ctypes.data, 10)])
    assert np.array_equal(device.to_host([Window(memory.ctypes.data, 10)])[0], memory)
