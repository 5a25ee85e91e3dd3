"""The command lines of docs/spill.md, as they stand there, with a scheduler and workers of their own."""

from __future__ import annotations

import os
import signal

import dask.array as da
import numpy as np
import pytest
from distributed import wait

from tests.commands import DEADLINE, scheduler, started, wait_until
from tests.nodes import CHECKOUT
from tests.spilling import held, spill_all, spilled_files

pytestmark = pytest.mark.slow

MB = 10**6
KINDS = {"ckpt_spill.spill.host": "HostSpill", "ckpt_spill.spill.device": "DeviceSpill"}
THRESHOLDS = ("SPILL", "PAUSE", "TERMINATE")  # of the whole process, in which libraries alone are more than the limit
VARIABLES = dict.fromkeys([f"DASK_DISTRIBUTED__WORKER__MEMORY__{name}" for name in THRESHOLDS], "False")
WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": "0", "DASK_CUDA_TEST_DISABLE_DEVICE_SPECIFIC": "1"}


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


@pytest.fixture
def preload():
    return "ckpt_spill.spill.host"


@pytest.fixture
def worker(preload, root, tmp_path):
    """Run the line of the document that has a preload, with the test's root, scheduler and limit put in."""

    def worker(client):
        text = (CHECKOUT / "docs" / "spill.md").read_text()
        [line] = [line for line in text.splitlines() if line.startswith("DASK_") and f"--preload {preload} " in line]
        own = {"/nvme/ckpt": root, "tcp://scheduler:8786": client.scheduler.address, "4GB": "100MB"}
        for other, mine in own.items():
            assert line.count(other) == 1
            line = line.replace(other, mine)
        return started(line, tmp_path, **VARIABLES, **WITHOUT_GPU)

    return worker


def ramps(n, nbytes):
    """Partitions that compress."""

    def block(block_info=None):
        (number,) = block_info[None]["chunk-location"]
        return np.arange(nbytes // 8) + number

    return da.map_blocks(block, chunks=((nbytes // 8,) * n,), dtype="i8")


def sums(n, nbytes):
    length = nbytes // 8
    return [length * (length - 1) // 2 + number * length for number in range(n)]


def checked(client, kept, n, nbytes):
    """Whether all partitions are right."""
    found = client.compute(kept.map_blocks(lambda block: block.sum(keepdims=True), chunks=((1,) * n,)), sync=True)
    return found.tolist() == sums(n, nbytes)


def areas(root):
    return os.listdir(os.path.join(root, "spill"))


def test_command_line(worker, preload, root, tmp_path):
    """Five times as much as the worker may hold is held by it, and right; what it wrote is compressed."""
    n, nbytes = 200, 25 * MB // 10
    with scheduler(tmp_path) as client, worker(client):
        client.wait_for_workers(1, timeout=DEADLINE)
        found = client.run(
            lambda dask_worker: (type(dask_worker.data).__name__, dask_worker.memory_manager.memory_limit)
        )
        assert list(found.values()) == [(KINDS[preload], n * nbytes // 5)]
        kept = client.persist(ramps(n, nbytes))
        wait(kept)
        assert held(client)[0] <= 60 * MB
        assert len(spilled_files(root)) >= n - 60 * MB // nbytes
        assert sum(map(os.path.getsize, spilled_files(root))) < n * nbytes // 2
        assert checked(client, kept, n, nbytes)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_what_a_worker_leaves(worker, root, tmp_path, how):
    """What a worker leaves that is ended by a signal is gone when the next one has started; keys are there again."""
    n, nbytes = 10, MB
    with scheduler(tmp_path) as client:
        with worker(client) as command:
            client.wait_for_workers(1, timeout=DEADLINE)
            kept = client.persist(ramps(n, nbytes))
            wait(kept)
            spill_all(client)
            before = areas(root)
            assert len(before) == 1
            assert len(spilled_files(root)) == n
            if how == signal.SIGTERM:
                command.send_signal(how)  # as whoever manages processes does
            else:
                os.killpg(command.pid, how)
            command.wait(DEADLINE)
        wait_until(lambda: not client.scheduler_info()["workers"], tmp_path)
        assert areas(root) in ([before] if how == signal.SIGKILL else ([], before))
        with worker(client):
            assert checked(client, kept, n, nbytes)
            assert len(areas(root)) == 1
            assert not set(areas(root)) & set(before)


@pytest.mark.parametrize("nanny", ["--nanny", "--no-nanny"])
def test_a_root_that_cannot_be_used(root, tmp_path, nanny):
    """No worker starts, where dask would go on with other memory on another disk; its log says why."""
    with open(root, "w"):
        pass
    line = f"DASK_CKPT_SPILL__ROOT={root} dask worker --no-dashboard {nanny} --preload ckpt_spill.spill.host"
    with scheduler(tmp_path) as client, started(f"{line} {client.scheduler.address}", tmp_path) as command:
        assert command.wait(DEADLINE) != 0
        assert client.scheduler_info()["workers"] == {}
    assert f"this worker does not start: cannot spill here:\n  {root}: it is not a directory" in log_of(tmp_path)


def test_a_scheduler_cannot_have_it(tmp_path):
    """It is told so, and is a scheduler all the same."""
    file = tmp_path / "other.json"
    line = f"dask scheduler --port 0 --no-dashboard --preload ckpt_spill.spill.host --scheduler-file {file}"
    with started(line, tmp_path):
        wait_until(file.exists, tmp_path)
    assert "this preload is for `dask worker`, not for a Scheduler" in log_of(tmp_path)


def log_of(directory):
    return (directory / "log").read_text()
