"""What is written without waiting for the disk is on its way there at once."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from ckpt_spill.spill.host import HostSpill
from ckpt_spill.store import write_back
from tests.test_spill_host import disk_tier


@pytest.fixture
def asked(monkeypatch):
    """Paths of the files that the kernel is asked to write, and which bytes of them."""
    asked = []

    def start(fd, offset, nbytes):
        asked.append((os.readlink(f"/proc/self/fd/{fd}"), offset, nbytes))

    monkeypatch.setattr(write_back, "start_write_back", start)
    thread = write_back._Thread()
    monkeypatch.setattr(write_back, "_thread", lambda: thread)
    yield asked
    thread._pool.shutdown()


def wait():
    write_back._thread()._pool.submit(int).result()


@pytest.fixture
def busy(asked):
    """Keep the thread from working."""
    end = threading.Event()
    write_back._thread()._pool.submit(end.wait)
    yield end
    end.set()


def test_every_byte_that_is_spilled(tmp_path, asked):
    memory = HostSpill(disk_tier(str(tmp_path / "root"), codec="none"), 10**9)
    memory["x"] = np.arange(2_000_000)
    memory.evict()
    wait()
    path = memory.tier.whole_file("x").path
    size = os.path.getsize(path)
    memory.close()
    assert {path for path, _, _ in asked} == {path}
    ends = [0]
    for _, offset, nbytes in asked:
        assert offset == ends[-1]
        ends.append(offset + nbytes)
    assert ends[-1] == size
    assert len(asked) > 3  # while the rest is still being written


def test_what_is_removed_is_not_written(tmp_path, asked, busy):
    for name in ("gone", "there"):
        with open(tmp_path / name, "xb") as file:
            write_back.start_write_back_soon(file.fileno(), 0, 10)
    os.unlink(tmp_path / "gone")
    busy.set()
    wait()
    assert asked == [(str(tmp_path / "there"), 0, 10)]


def test_a_disk_that_is_too_slow_for_it_costs_nothing(tmp_path, asked, busy):
    """Neither time nor more descriptors than a few."""
    before = len(os.listdir("/proc/self/fd"))
    with open(tmp_path / "x", "xb") as file:
        for n in range(1000):
            write_back.start_write_back_soon(file.fileno(), n, 1)
    assert len(os.listdir("/proc/self/fd")) == before + write_back._WAITING
    busy.set()
    wait()
    assert len(asked) == write_back._WAITING
    assert len(os.listdir("/proc/self/fd")) == before
    with open(tmp_path / "x", "rb") as file:
        write_back.start_write_back_soon(file.fileno(), 0, 1)
    wait()
    assert len(asked) == write_back._WAITING + 1


def test_where_no_thread_can_be_had_nothing_fails(tmp_path, asked):
    """As when the interpreter is shutting down."""
    write_back._thread()._pool.shutdown()
    memory = HostSpill(disk_tier(str(tmp_path / "root")), 10**9)
    memory["x"] = np.arange(1000)
    before = len(os.listdir("/proc/self/fd"))
    assert memory.evict() > 0
    assert (memory["x"] == np.arange(1000)).all()
    assert len(os.listdir("/proc/self/fd")) == before
    memory.close()
