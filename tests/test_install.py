"""Clusters that do not take the plugins when a client brings them, and those that have them from the start."""

from __future__ import annotations

import os

import dask
import dask.array as da
import pytest
from dask import delayed

import ckpt_spill as cs
from ckpt_spill.cluster.scheduler import NAME

REFUSES = {"distributed.scheduler.blocked-handlers": ["register_scheduler_plugin", "register_worker_plugin"]}
PRELOADS = {
    "distributed.scheduler.preload": ["ckpt_spill.cluster.scheduler"],
    "distributed.worker.preload": ["ckpt_spill.cluster.worker"],
}
NOT_INSTALLED = {"distributed.scheduler.preload": ["import sys; sys.modules['ckpt_spill'] = None"]}
WAY_OUT = "Install ckpt_spill where it runs, or start it with `dask scheduler --preload ckpt_spill.cluster.scheduler`"


@pytest.fixture
def saved(tmp_path):
    """A checkpoint that was made without a cluster."""
    with dask.config.set(scheduler="synchronous"):
        return cs.persist_to_disk(da.arange(4, chunks=2), name="x", root=tmp_path / "root")


def refused(saved, tmp_path, reason):
    """Nothing is read or saved: the error has the reason and the way out, and comes before anything is computed."""
    for call in (
        lambda: cs.rehydrate(saved),
        lambda: cs.persist_to_disk(delayed(os.mkdir)(tmp_path / "computed"), name="y"),
    ):
        with pytest.raises(cs.RefusedError, match=f"{reason}.*{WAY_OUT}"):
            call()
    assert not (tmp_path / "computed").exists()


def test_a_scheduler_that_refuses_plugins(cluster, saved, tmp_path):
    """The error says what the scheduler said and how to start it instead."""
    with dask.config.set(REFUSES):
        client = cluster(1)
    refused(saved, tmp_path, "'register_scheduler_plugin' handler has been explicitly disallowed")
    assert not client.run_on_scheduler(lambda dask_scheduler: NAME in dask_scheduler.plugins)


@pytest.mark.slow
def test_a_scheduler_without_the_package(nodes, saved, tmp_path):
    """Where the scheduler cannot import the package, the error says that."""
    nodes(1, config=NOT_INSTALLED)
    refused(saved, tmp_path, "ModuleNotFoundError.*ckpt_spill")


def test_one_that_has_them_needs_none(cluster):
    """With both as preloads there is nothing to install, so a scheduler that refuses plugins will do."""
    with dask.config.set(REFUSES | PRELOADS):
        client = cluster(2)
    m = cs.persist_to_disk(da.arange(4, chunks=2), name="x")
    assert cs.rehydrate(m).sum().compute() == 6
    reads = client.run(lambda dask_worker: dask_worker.plugins[NAME].counts["local"])
    assert sum(reads.values()) == 2
