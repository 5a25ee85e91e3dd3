"""Runs that are killed: what they wrote is taken over, and nothing of them is trusted unseen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client

import ckpt_spill as cs
from ckpt_spill.store.partition import Identity, verify
from ckpt_spill.store.runs import parse_partition_file
from tests.clusters import running_cluster

N = 12
OPEN = "gate-open"


def part(i, directory):
    """Note the call; from half of them on, wait until the gate is open."""
    Path(directory, f"call-{i}-{os.urandom(8).hex()}").touch()
    turn = next_turn(directory)
    while turn >= N // 2 and not Path(directory, OPEN).exists():
        time.sleep(0.01)
    return pd.DataFrame({"i": np.full(1000, i), "r": np.random.default_rng(i).random(1000)})


def next_turn(directory):
    """Count the calls of all processes, from 0; no two have the same number."""
    turn = 0
    while True:
        try:
            Path(directory, f"turn-{turn}").touch(exist_ok=False)
        except FileExistsError:
            turn += 1
        else:
            return turn


def source(directory):
    return dd.from_map(part, range(N), directory=str(directory), meta={"i": int, "r": float})


def save(address, directory, root):
    """What the process that is killed does."""
    with Client(address) as client:
        cs.persist_to_disk(source(directory), name="x", root=root, client=client)


def save_on_own_cluster(directory, root):
    """The same, with a cluster that is killed too."""
    with running_cluster(2) as client:
        save(client.scheduler.address, directory, root)


def calls(directory):
    """How often each partition was made."""
    made = [int(f.split("-")[1]) for f in os.listdir(directory) if f.startswith("call-")]
    return {i: made.count(i) for i in set(made)}


def part_files(root):
    return [os.path.join(d, f) for d, _, fs in os.walk(root) for f in fs if f.endswith(".part")]


def wait_for(condition, timeout=60):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


def start_saver(address, notes, root):
    code = "import sys; from tests.test_resume import save; save(*sys.argv[1:])"
    return subprocess.Popen([sys.executable, "-c", code, address, str(notes), root])


def kill_half_way(address, notes, root):
    """Start saving in another process and kill it as soon as the first half is on disk."""
    saver = start_saver(address, notes, root)
    try:
        wait_for(lambda: len(part_files(root)) >= N // 2)
    finally:
        saver.send_signal(signal.SIGKILL)
        saver.wait()
    return {parse_partition_file(os.path.basename(f)) for f in part_files(root)}


def test_client_killed(cluster, notes, root):
    """After kill -9 of the client the same call computes only what was not on disk."""
    client = cluster()
    done = kill_half_way(client.scheduler.address, notes, root)
    assert cs.list_checkpoints(root) == []
    before = calls(notes)
    (notes / OPEN).touch()
    m = cs.persist_to_disk(source(notes), name="x", root=root)
    after = calls(notes)
    assert len(done) >= N // 2
    assert all(before[i] == after[i] == 1 for i in done)
    assert set(after) == set(range(N))
    m.verify()
    assert len(part_files(root)) == N
    pd.testing.assert_frame_equal(cs.rehydrate(m).compute(), source(notes).compute())


def test_everything_killed(notes, root):
    """After kill -9 of all processes a new cluster of another size goes on; damaged leftovers are made again."""
    code = "import sys; from tests.test_resume import save_on_own_cluster as f; f(*sys.argv[1:])"
    saver = subprocess.Popen([sys.executable, "-c", code, str(notes), root], start_new_session=True)
    try:
        wait_for(lambda: len(part_files(root)) >= N // 2)
    finally:
        os.killpg(saver.pid, signal.SIGKILL)
        saver.wait()
    files = part_files(root)
    done = {parse_partition_file(os.path.basename(f)) for f in files}
    with open(files[0], "r+b") as f:
        f.seek(os.path.getsize(files[0]) // 2)
        f.write(b"\xaa\x55\xaa\x55")
    damaged = parse_partition_file(os.path.basename(files[0]))
    before = calls(notes)
    (notes / OPEN).touch()
    with running_cluster(3):
        m = cs.persist_to_disk(source(notes), name="x", root=root)
        m.verify()
    after = calls(notes)
    assert all(before[i] == after[i] for i in done - {damaged})
    assert after[damaged] == before[damaged] + 1


def test_worker_killed(cluster, notes, root):
    """A worker killed in the middle of it costs nothing that is on disk; no half file is trusted."""
    client = cluster()
    result = []
    saver = threading.Thread(
        target=lambda: result.append(cs.persist_to_disk(source(notes), name="x", root=root, client=client))
    )
    saver.start()
    wait_for(lambda: len(part_files(root)) >= 3)
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
    (notes / OPEN).touch()
    saver.join()
    (m,) = result
    m.verify()
    assert len(part_files(root)) == N
    assert not [f for d, _, fs in os.walk(root) for f in fs if f.startswith("tmp-")]


def test_two_at_once(cluster, notes, root):
    """Two processes that save the same content at once both end with the one checkpoint."""
    client = cluster()
    (notes / OPEN).touch()
    savers = [start_saver(client.scheduler.address, notes, root) for _ in range(2)]
    assert [s.wait() for s in savers] == [0, 0]
    (m,) = cs.list_checkpoints(root)
    m.verify()
    assert len(part_files(root)) == N


def test_interrupted(notes, root):
    """Ctrl-C leaves whole partitions, and the next call goes on with them."""

    def interrupted(i, directory):
        if i == N - 1 and not Path(directory, OPEN).exists():
            raise KeyboardInterrupt
        Path(directory, f"call-{i}-{os.urandom(8).hex()}").touch()
        return pd.DataFrame({"i": [i], "r": [0.5]})

    ddf = dd.from_map(interrupted, range(N), directory=str(notes), meta={"i": int, "r": float})
    with pytest.raises(KeyboardInterrupt), dask.config.set(scheduler="synchronous"):
        cs.persist_to_disk(ddf, name="x", token="t", root=root)
    on_disk = len(part_files(root))
    assert on_disk > 0
    made = sum(calls(notes).values())
    (notes / OPEN).touch()
    m = cs.persist_to_disk(ddf, name="x", token="t", root=root)
    assert sum(calls(notes).values()) - made == N - on_disk
    m.verify()


def test_leftovers_of_other_content_are_not_taken(cluster, notes, root):
    """What a killed run of other content left is not taken over, and goes when something is committed."""
    client = cluster()
    kill_half_way(client.scheduler.address, notes, root)
    (notes / OPEN).touch()
    m = cs.persist_to_disk(source(notes) + 1, name="x", root=root)
    assert len(part_files(root)) == N
    pd.testing.assert_frame_equal(cs.rehydrate(m).compute(), (source(notes) + 1).compute())


def test_every_file_names_its_partition(notes, root):
    """Each partition file says whose it is."""
    (notes / OPEN).touch()
    m = cs.persist_to_disk(source(notes), name="x", root=root)
    for path in part_files(root):
        verify(path, Identity("x", m.run.generation, parse_partition_file(os.path.basename(path))), None)
