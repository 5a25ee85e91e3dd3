"""Clusters that do not take the plugins when a client brings them, and those that have them from the start."""

from __future__ import annotations

import contextlib
import logging
import os

import dask
import dask.array as da
import pytest
from dask import delayed

import ckpt_spill as cs
from ckpt_spill.cluster.scheduler import NAME

REFUSES = {"distributed.scheduler.blocked-handlers": ["register_scheduler_plugin", "register_worker_plugin"]}
OF_SCHEDULER = {"distributed.scheduler.preload": ["ckpt_spill.cluster.scheduler"]}
OF_WORKERS = {"distributed.worker.preload": ["ckpt_spill.cluster.worker"]}
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


@pytest.mark.parametrize("preloads", [OF_SCHEDULER, OF_SCHEDULER | OF_WORKERS])
def test_one_that_has_them_needs_none(cluster, preloads):
    """With the scheduler's plugin as a preload there is nothing to install, so one that refuses plugins will do: it
    gives the workers theirs, also those that come later.
    """
    with dask.config.set(REFUSES | preloads):
        client = cluster(1)
    client.cluster.scale(2)
    client.wait_for_workers(2)
    m = cs.persist_to_disk(da.arange(4, chunks=2), name="x")
    assert cs.rehydrate(m).sum().compute() == 6
    reads = client.run(lambda dask_worker: dask_worker.plugins[NAME].counts["local"])
    assert len(reads) == 2
    assert sum(reads.values()) == 2


@contextlib.contextmanager
def logged(client):
    """Give what scheduler and workers log of distributed itself in a with block, as texts."""
    texts = []
    client.run_on_scheduler(listen)
    client.run(listen)
    yield texts
    heard = [client.run_on_scheduler(tell), *client.run(tell).values()]
    texts += [text for of in heard for text in of]


class Heard(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def listen():
    logging.getLogger("distributed.core").addHandler(Heard())


def tell():
    logger = logging.getLogger("distributed.core")
    [heard] = [handler for handler in logger.handlers if isinstance(handler, Heard)]
    logger.removeHandler(heard)
    return heard.texts


def test_it_is_quiet(cluster):
    """The first call on a cluster asks nobody for what is not there yet, which distributed logs with a traceback."""
    client = cluster(2)
    with logged(client) as texts:
        m = cs.persist_to_disk(da.arange(4, chunks=2), name="x")
        assert cs.rehydrate(m).sum().compute() == 6
    assert texts == []


@pytest.mark.parametrize("preloads", [{}, OF_WORKERS])
def test_a_scheduler_without_the_plugin(cluster, saved, tmp_path, preloads):
    """What workers see is read. Other reads fail with an error that says what to do, at once and quietly."""
    with dask.config.set(preloads):
        client = cluster(2)
    with dask.config.set(scheduler="synchronous"):
        back = cs.rehydrate(saved)
    assert client.compute(back.sum()).result() == 6
    (tmp_path / "root").rename(tmp_path / "elsewhere")
    with logged(client) as texts:
        for _ in range(3):
            future = client.compute(back.sum())
            with pytest.raises(cs.MissingPartitionError, match=r"rehydrate\(\) once .*--preload ckpt_spill.cluster"):
                future.result(10)
            future.release()
    assert texts == []
    (tmp_path / "elsewhere").rename(tmp_path / "root")
    assert cs.rehydrate(saved).sum().compute() == 6
    assert all(client.run(lambda dask_worker: dask_worker.plugins[NAME].steered).values())
