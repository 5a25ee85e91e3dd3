"""Real clusters, of worker processes, for tests.

``client`` is for most tests: a new client of one cluster that all tests share. A test that stops, kills or restarts
workers, or needs another number of them, starts clusters of its own with the ``cluster`` factory.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context

from tests.leaks import open_paths

# Workers are forked from one process that has imported what they need: each of its own would take more than a second.
FORKED = {"distributed.worker.multiprocessing-method": "forkserver"}
# Scheduler and workers check their own state after every transition, so that a wrong use of them shows as an error.
VALIDATE = {"distributed.scheduler.validate": True, "distributed.worker.validate": True}
# When this has passed after a restart, dask's clusters look whether a worker is there again, and end its nanny for good
# if that is still at it, as on a busy machine.
PATIENT = {"distributed.deploy.lost-worker-timeout": "1 day"}


@contextlib.contextmanager
def running_cluster(n_workers: int = 2, *, validate: bool = True, **options: Any) -> Iterator[Client]:
    """Start a cluster of worker processes and yield a client of it; everything is gone on leaving.

    Parameters
    ----------
    n_workers : int
        Number of worker processes, each with one thread unless ``options`` say otherwise.
    validate : bool
        Let scheduler and workers check their state all the time, which is slow for graphs of thousands of tasks.
    **options
        Passed to ``LocalCluster``; ``kind`` is another class to use instead.
    """
    with started(n_workers, validate=validate, **options) as cluster, Client(cluster) as client:
        yield client
    # A client that was closed by shutdown(), or by losing its scheduler, keeps the thread of its event loop alive.
    client._loop_runner.stop()


@contextlib.contextmanager
def started(
    n_workers: int, *, validate: bool, kind: type[LocalCluster] = LocalCluster, **options: Any
) -> Iterator[LocalCluster]:
    """Start a cluster without any client, so that it is nobody's default."""
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL} | options
    with (
        tempfile.TemporaryDirectory(prefix="workers-") as scratch,
        dask.config.set(PATIENT | (VALIDATE if validate else {})),
        forked() if kind is LocalCluster else contextlib.nullcontext(),
        kind(n_workers=n_workers, local_directory=scratch, **options) as cluster,
    ):
        yield cluster


@contextlib.contextmanager
def forked() -> Iterator[None]:
    """Let workers be forked, from a process that has no more than one thread, and has not touched any GPU."""
    with dask.config.set(FORKED):
        get_mp_context()  # dask names what it wants to be imported once, so we do after it
        multiprocessing.set_forkserver_preload(["distributed", "dask.dataframe", "ckpt_spill"])
        yield


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[LocalCluster]:
    """The cluster behind ``client``: two workers, which no test may stop or change for good."""
    with started(2, validate=True) as cluster:
        yield cluster


@pytest.fixture
def client(shared_cluster: LocalCluster, tmp_path: Path) -> Iterator[Client]:
    """A client of the shared cluster; afterwards no worker has a file of this test open."""
    with Client(shared_cluster) as client:
        yield client
        left_open = client.run(open_below, str(tmp_path))
    assert not any(left_open.values()), f"workers still have files open: {left_open}"


@pytest.fixture
def cluster() -> Iterator[Callable[..., Client]]:
    """A factory of clusters of the test's own, with the parameters of ``running_cluster``."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(running_cluster(*args, **options))


def open_below(directory: str) -> list[str]:
    """Return the paths below a directory that this process has open."""
    return [path for path in open_paths() if path.startswith(directory)]
