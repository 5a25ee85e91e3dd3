"""Host memory on top of the store keeps what dask's own promises."""

from __future__ import annotations

import os
import sys

import pytest
from distributed.spill import SpillBuffer

import ckpt_spill as cs
from ckpt_spill.spill.area import SpillArea
from ckpt_spill.spill.host import HostSpill
from ckpt_spill.spill.tier import DiskTier
from ckpt_spill.store.store import Store
from tests.spill_contract import SpillContract


def disk_tier(directory, max_spill=False, codec="auto"):
    os.makedirs(directory, exist_ok=True)
    return DiskTier([SpillArea(Store.create(directory))], codec=codec, max_weight=max_spill, threads=2)


class TestHostSpill(SpillContract):
    suffix = ".part"

    def opened(self, directory, target, max_spill):
        return HostSpill(disk_tier(directory, max_spill), target)


class TestSpillBuffer(SpillContract):
    breaks = {
        "test_any_key[long]": "a key is a file's name, and a long one none that the system takes",
        "test_evict_nothing": "KeyError where there is nothing to evict",
        "test_full_disk": "reading raises where what should make room cannot be written",
        "test_max_spill": "reading raises where what should make room may not be written",
        "test_closing": "files stay until the worker's directory is removed",
    }

    def opened(self, directory, target, max_spill):
        return SpillBuffer(directory, target, max_spill)


def test_device_spill_without_dask_cuda(tmp_path, monkeypatch):
    """A worker says what it lacks, and what would do."""
    monkeypatch.setitem(sys.modules, "dask_cuda.utils", None)
    opens, options = cs.device_spill(str(tmp_path))
    with pytest.raises(cs.RefusedError, match=r"dask-cuda.*host_spill"):
        opens(str(tmp_path), **options)
