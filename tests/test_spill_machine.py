"""Worker memory on top of the store, compared with a dict under whatever can happen to it."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import tempfile

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from ckpt_spill.clean import CleanFile
from ckpt_spill.spill import tier as tier_module
from ckpt_spill.spill.host import HostSpill
from ckpt_spill.store import partition as partition_files
from ckpt_spill.store.partition import Identity
from tests import host_columns
from tests.spill_contract import KiB, OnlyDask, Unpicklable, noise, same
from tests.test_spill_host import disk_tier

TARGET = 60 * KiB
KEYS = st.sampled_from(["a", ("a", 1), ("a", 2), "b/c", b"d", 5])
SEEDS = st.integers(0, 2**20)
READ = Identity("checkpoint", 3, 1)
COLUMNS = st.sampled_from([None, ("b",)])
LIBRARIES = st.sampled_from([None, "pandas"])


class AsDict(RuleBasedStateMachine):
    """Whatever is done, each key has the value that it was set to last."""

    def make(self, tier):
        raise NotImplementedError

    def __init__(self):
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.tier = disk_tier(os.path.join(self.directory.name, "root"), max_spill=400 * KiB)
        self.store = self.tier._areas[0].store
        self.data = self.make(self.tier)
        self.model, self.serial = {}, itertools.count()
        self.broken = False
        self.real, tier_module.partition_files.write = partition_files.write, self.write

    def write(self, fd, value, *args, **kwargs):
        written = self.real(fd, value, *args, **kwargs)
        if self.broken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written

    def teardown(self):
        partition_files.write = self.real
        for key in list(self.model):
            self.check(key, self.data[key])
            del self.data[key]
        assert list(self.data) == self.files() == []
        self.data.close()
        assert not os.listdir(os.path.join(self.store.root, "spill"))
        self.directory.cleanup()

    def files(self):
        return [f for d, _, fs in os.walk(os.path.join(self.store.root, "spill")) for f in fs if f.endswith(".part")]

    def put(self, key, value):
        """Set a value. What is evicted and still in use would not be read again: that of the model is another one."""
        self.model[key] = value.copy()
        self.data[key] = value

    # ---------------------------------------------------------------------------------------------------- what is done
    @rule(key=KEYS, seed=SEEDS, kib=st.integers(0, 25))
    def set_array(self, key, seed, kib):
        self.put(key, noise(kib, seed))

    @rule(key=KEYS, seed=SEEDS)
    def set_heavy(self, key, seed):
        self.put(key, noise(70, seed))

    @rule(key=KEYS, n=SEEDS)
    def set_small(self, key, n):
        self.data[key] = self.model[key] = {"n": n}

    @rule(key=KEYS, n=SEEDS)
    def set_for_dask(self, key, n):
        self.data[key] = self.model[key] = OnlyDask(str(n).encode() * KiB)

    @rule(key=KEYS)
    def set_unpicklable(self, key):
        self.data[key] = self.model[key] = Unpicklable(5 * KiB)

    @rule(key=KEYS)
    def set_heavy_and_unpicklable(self, key):
        with pytest.raises(TypeError):
            self.data[key] = Unpicklable(100 * KiB)
        self.model.pop(key, None)

    @rule(key=KEYS, seed=SEEDS, columns=COLUMNS, library=LIBRARIES)
    def read_and_set(self, key, seed, columns, library):
        """A task reads a partition, all of it or a column, as it was saved or as an object of another library."""
        value, self.data.noted[key] = self.partition(seed, columns, library)
        self.put(key, value)

    def partition(self, seed, columns, library):
        import pandas as pd

        arrays = {"a": noise(4, seed), "b": noise(4, seed + 1)}
        path = os.path.join(self.directory.name, f"{next(self.serial)}.part")
        with open(path, "w+b") as f, host_columns.standing_in():
            if library is None:
                saved = pd.DataFrame(arrays)
            else:  # which cannot be read as what it was saved from
                made = [host_columns.column(pa.array(array)) for array in arrays.values()]
                saved = host_columns.OfCudf(host_columns.frame(made, labels=pd.Index(list(arrays))))
            written = self.real(f.fileno(), saved, READ)
        file = CleanFile(self.store, path, READ, written.digest, columns, library)
        return partition_files.read(path, READ, file.digest, columns=columns, library=library), file

    @rule(key=KEYS, seed=SEEDS, columns=COLUMNS, library=LIBRARIES, evict=st.booleans())
    def get_and_learn(self, key, seed, columns, library, evict):
        """A peer sends a partition, and the scheduler tells of it, late or twice."""
        value, file = self.partition(seed, columns, library)
        self.put(key, value)
        if evict:
            self.data.evict()
        self.data.learn(key, file)
        self.data.learn(key, file)

    @precondition(lambda self: self.model)
    @rule(key=KEYS, data=st.data())
    def alias(self, key, data):
        """A task gives the value of another key as its own."""
        target = data.draw(st.sampled_from(list(self.model)))
        if key != target:
            self.data[key] = self.data[target]
            self.model[key] = self.model[target]
            self.data.learn_alias(key, target)

    @rule(keys=st.sets(KEYS))
    def wait_for_answers(self, keys):
        """The scheduler is asked about these, and has answered about all others."""
        self.tier.awaited.clear()
        self.tier.awaited.update(keys)

    @rule()
    def lose_checkpoints(self):
        for name in os.listdir(self.directory.name):
            if name.endswith(".part"):
                os.unlink(os.path.join(self.directory.name, name))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def read(self, data):
        key = data.draw(st.sampled_from(list(self.model)))
        self.check(key, self.data[key])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data):
        key = data.draw(st.sampled_from(list(self.model)))
        del self.data[key], self.model[key]

    @rule(times=st.integers(1, 6))
    def evict(self, times):
        for _ in range(times):
            assert self.data.evict() >= -1

    @rule(broken=st.booleans())
    def disk(self, broken):
        self.broken = broken

    # -------------------------------------------------------------------------------------------------- what is true
    def check(self, key, value):
        expected = self.model[key]
        if isinstance(expected, OnlyDask):
            assert value.content == expected.content
        elif isinstance(expected, Unpicklable):
            assert value is expected
        elif isinstance(expected, np.ndarray | dict):
            assert same(value, expected)
        else:
            assert value.equals(expected)

    @invariant()
    def keys(self):
        assert len(self.data) == len(self.model)
        assert set(self.data) == set(self.model)
        assert all(key in self.data for key in self.model)

    @invariant()
    def files_and_figures(self):
        """There is one file for each key on disk, or unchanged since; what is known of the bytes is true."""
        kept = [key for key, file in self.tier.clean.items() if self.tier._is_ours(file) and key not in self.tier]
        assert len(self.files()) == len(self.tier) + len(kept)
        spilled = self.tier._files.values()
        written = [s.file.path for s in spilled if s.file.identity != READ]
        assert self.data.spilled_total.disk == sum(map(os.path.getsize, written)) <= 400 * KiB
        assert self.tier.weight_by_key.keys() == self.tier._files.keys()

    @invariant()
    def whole_files(self):
        """A file that may become a checkpoint's holds just the value."""
        for key in self.model:
            if file := self.tier.whole_file(key):
                self.check(key, partition_files.read(file.path, file.identity, file.digest))

    @invariant()
    def clean(self):
        assert self.tier.clean.keys() <= self.model.keys()
        assert not self.tier.noted


class OfHost(AsDict):
    def make(self, tier):
        return HostSpill(tier, TARGET)


@pytest.fixture(autouse=True)
def no_log(monkeypatch):
    """What fails is logged, with all tracebacks, which is slow."""
    for name in ("distributed.spill", "ckpt_spill"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)


def run(machine):
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        machine, settings=settings(max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=checks)
    )


def test_host():
    """``HostSpill`` is a dict."""
    run(OfHost)


@pytest.mark.rapids
@pytest.mark.parametrize("limit", [None, 1 << 20])
def test_device(limit):
    """``DeviceSpill`` is one, for values on the host."""
    pytest.importorskip("dask_cuda", reason="dask-cuda is not installed")
    from ckpt_spill.spill.device import DeviceSpill

    class OfDevice(AsDict):
        def make(self, tier):
            return DeviceSpill(self.directory.name, tier=tier, device_memory_limit=limit, target=TARGET)

    run(OfDevice)
