"""What is spilled is on its way to the disk at once, without anybody waiting for that."""

from __future__ import annotations

import os

import numpy as np
import pytest

from ckpt_spill.spill import write_back
from ckpt_spill.spill.host import HostSpill
from tests.test_spill_host import disk_tier


@pytest.fixture
def started(monkeypatch):
    """Paths of the files that the kernel was asked to write, and how much of them."""
    asked = []

    def start(fd, offset, nbytes):
        asked.append((os.readlink(f"/proc/self/fd/{fd}"), offset, nbytes))

    monkeypatch.setattr(write_back, "start_write_back", start)
    return asked


def wait():
    write_back._pool().submit(int).result()


def test_all_of_a_file_is_asked_for_when_it_is_spilled(tmp_path, started):
    memory = HostSpill(disk_tier(str(tmp_path / "root")), 10**9)
    memory["x"] = np.arange(100_000)
    memory.evict()
    wait()
    path = memory.tier.whole_file("x").path
    memory.close()
    assert started == [(path, 0, 0)]


def test_a_file_that_is_gone_costs_nothing(tmp_path, started):
    """And the thread goes on to the next."""
    there = tmp_path / "there"
    there.write_bytes(b"x")
    write_back.write_back_soon(str(tmp_path / "gone"))
    write_back.write_back_soon(str(there))
    wait()
    assert started == [(str(there), 0, 0)]


def test_where_no_thread_can_be_had_the_value_is_spilled_all_the_same(tmp_path, monkeypatch):
    """As when the interpreter is shutting down."""

    class Ended:
        def submit(self, *args):
            raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(write_back, "_pool", Ended)
    memory = HostSpill(disk_tier(str(tmp_path / "root")), 10**9)
    memory["x"] = np.arange(1000)
    assert memory.evict() > 0
    assert (memory["x"] == np.arange(1000)).all()
    memory.close()
