"""The harness of nodes itself: they have what real ones have of their own, and can be lost as real ones are."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys

import dask
import psutil
import pytest

from tests import nodes as harness
from tests.lasting import Lasting

pytestmark = pytest.mark.slow


def put(root, name):
    (root / name).write_text(socket.gethostname())


def files(root):
    return sorted(path.name for path in root.iterdir())


def on(nodes, i, function, *args):
    """Run a function on a node, as a task."""
    return nodes.client.submit(function, *args, workers=nodes.addresses(i), pure=False).result(timeout=60)


def test_disks_and_names_are_apart(nodes):
    """Each node has a disk of its own, at the path where the others have theirs, and a host name of its own."""
    nodes = nodes(2)
    for i in range(2):
        on(nodes, i, put, nodes.root, f"from-{i}")
    for i in range(2):
        assert on(nodes, i, files, nodes.root) == files(nodes.disk(i)) == [f"from-{i}"]
        assert on(nodes, i, socket.gethostname) == (nodes.disk(i) / f"from-{i}").read_text() == f"node{i}"
        assert on(nodes, i, dask.config.get, "ckpt-spill.root") == str(nodes.root)
    assert dask.config.get("ckpt-spill.root") == str(nodes.root)
    assert files(nodes.root) == []
    assert nodes.client.run_on_scheduler(socket.gethostname) == "scheduler"
    assert nodes.client.run_on_scheduler(files, nodes.root) == []


def test_a_killed_worker_is_replaced(nodes):
    """The nanny of a worker that was killed starts another, with the same disk."""
    nodes = nodes(2)
    on(nodes, 0, put, nodes.root, "file")
    [before] = nodes.addresses(0)
    nodes.kill_worker(0)
    nodes.wait_for(2)
    assert nodes.addresses(0) != [before]
    assert on(nodes, 0, files, nodes.root) == ["file"]
    assert on(nodes, 0, socket.gethostname) == "node0"


def test_a_lost_node_comes_back(nodes):
    """A node that was killed has its disk when it is there again; one that was wiped has an empty one."""
    nodes = nodes(3)
    for i in range(3):
        on(nodes, i, put, nodes.root, "file")
    nodes.kill_node(0)
    nodes.kill_node(1, wipe=True)
    nodes.wait_for(1)
    assert nodes.addresses(0) == nodes.addresses(1) == []
    assert [files(nodes.disk(i)) for i in range(3)] == [["file"], [], ["file"]]
    nodes.add(0)
    nodes.add(1)
    nodes.wait_for(3)
    assert [on(nodes, i, files, nodes.root) for i in range(3)] == [["file"], [], ["file"]]


def write_until(root, stop):
    """Write files until told to stop, making the directory again that they are in when it is gone."""
    written = 0
    while not (root / stop).exists():
        with contextlib.suppress(OSError):  # it is being wiped
            (root / "directory").mkdir(exist_ok=True)
            (root / "directory" / str(written)).touch()
            written += 1
    return written


def test_a_disk_is_wiped_while_it_is_written(nodes):
    """What a running node has written is gone from its disk, and what it writes later is there."""
    nodes = nodes(1)
    (nodes.disk(0) / "a-file").touch()
    writing = nodes.client.submit(write_until, nodes.root, "stop")
    for _ in range(5):
        nodes.wait_until((nodes.disk(0) / "directory").exists, "the writer")
        nodes.wipe(0)
    (nodes.disk(0) / "stop").touch()
    assert writing.result(timeout=60) > 0
    assert set(files(nodes.disk(0))) <= {"directory", "stop"}


def test_a_stopped_worker_stands_still(nodes):
    """A worker that is stopped computes nothing until it is continued, and is not lost."""
    nodes = nodes(2)
    before = nodes.addresses(0)
    nodes.stop_worker(0)
    waiting = nodes.client.submit(socket.gethostname, workers=before, pure=False)
    assert on(nodes, 1, socket.gethostname) == "node1"
    assert waiting.status == "pending"
    nodes.continue_worker(0)
    assert waiting.result(timeout=60) == "node0"
    assert nodes.addresses(0) == before


def test_a_node_joins(nodes):
    """A node can be added, with an empty disk and the next number, or none to begin with."""
    nodes = nodes(0)
    assert [nodes.add(), nodes.add()] == [0, 1]
    nodes.wait_for(2)
    on(nodes, 0, put, nodes.root, "file")
    assert on(nodes, 1, files, nodes.root) == []


def test_workers_of_one_node_share_its_disk(nodes):
    """Several workers of a node are processes of their own, with their threads, and see one disk."""
    nodes = nodes(2, workers_per_node=2, nthreads=3)
    assert set(nodes.client.nthreads().values()) == {3}
    first, second = nodes.addresses(1)
    assert nodes.client.run(os.getpid, workers=[first]) != nodes.client.run(os.getpid, workers=[second])
    nodes.client.run(put, nodes.root, "file", workers=[first])
    assert nodes.client.run(files, nodes.root, workers=[second]) == {second: ["file"]}
    nodes.kill_worker(1, 1)
    nodes.wait_for(4)
    assert len({first, second} & set(nodes.addresses(1))) == 1


def test_a_later_cluster_has_the_disks(nodes):
    """When everything is gone, other nodes can be started over the same disks."""
    with nodes(3) as first:
        for i in range(3):
            on(first, i, put, first.root, f"from-{i}")
    second = nodes(disks=[0, 2, 3])
    assert second.root == first.root
    assert [on(second, i, files, second.root) for i in (0, 2, 3)] == [["from-0"], ["from-2"], []]
    assert second.add() == 4


def test_a_shared_disk(nodes):
    """All nodes may see one directory; the scheduler does not."""
    nodes = nodes(2, shared=True)
    on(nodes, 0, put, nodes.root, "file")
    assert on(nodes, 1, files, nodes.root) == files(nodes.disk(0)) == files(nodes.disk(1)) == ["file"]
    assert nodes.client.run_on_scheduler(files, nodes.root) == []


def settings(dask_scheduler=None, dask_worker=None):
    keys = ["scheduler.validate", "worker.validate", "worker.memory.spill"]
    keys = [*(f"distributed.{key}" for key in keys), "ckpt-spill.patience"]
    return [dask.config.get(key, None) for key in keys], os.environ.get("OF_THE_TEST")


def test_settings(nodes):
    """State is checked all the time, unless that is switched off; configuration and environment reach all processes."""
    with nodes(1) as checked:
        assert checked.client.run_on_scheduler(settings)[0][:2] == [True, True]
    config = {"distributed.worker.memory.spill": False, "ckpt-spill.patience": "3s"}
    nodes = nodes(1, validate=False, config=config, env={"OF_THE_TEST": "yes"})
    expected = [False, False, False, "3s"], "yes"
    assert nodes.client.run_on_scheduler(settings) == expected
    assert list(nodes.client.run(settings).values()) == [expected]
    assert "Start worker at" in nodes.log(0)
    assert "Scheduler at" in nodes.log("scheduler")


def test_a_failed_start_says_why(nodes):
    """Nodes that cannot start are an error with what they logged, and nothing of them stays."""
    with pytest.raises(RuntimeError, match=r"(?s)waiting for .*'node0'.* ended.*is not a valid integer"):
        nodes(1, nthreads="many")


def test_nodes_end_with_their_process(nodes, tmp_path):
    """When the process that started nodes is killed, so are they."""
    code = f"""if True:
        from tests.nodes import Nodes
        with Nodes(1, directory={str(tmp_path / "others")!r}):
            print("started", flush=True)
            input()
    """
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"started\n"
        started = psutil.Process(process.pid).children(recursive=True)
        assert any("dask" in part for child in started for part in child.cmdline())
        os.kill(process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(started, timeout=60)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def fail():
    raise ZeroDivisionError


def test_nodes_that_are_lent_again(tmp_path):
    """Whatever was done to them, the next one finds all at work, with empty disks and no tasks."""
    with Lasting(2, tmp_path) as lasting:
        with lasting.lent() as nodes:
            for i in range(2):
                on(nodes, i, put, nodes.root, "file")
            [kept] = nodes.addresses(1)
            with pytest.raises(ZeroDivisionError):
                nodes.client.submit(fail, workers=[kept]).result(timeout=60)
            nodes.kill_node(0)
        with lasting.lent() as nodes:
            assert nodes.client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) == 0
            assert nodes.addresses(1) == [kept]
            assert [on(nodes, i, files, nodes.root) for i in range(2)] == [[], []]


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_where_there_can_be_none(monkeypatch, ci, outcome):
    """Without namespaces tests of nodes are skipped, with the reason, but never in continuous integration."""
    monkeypatch.setattr(harness, "NODE", ["unshare", "--no-such-option"])
    harness.obstacle.cache_clear()
    monkeypatch.setenv("CI", ci)
    try:
        with pytest.raises(outcome, match=r"does not allow: .*no-such-option"):
            harness.require_nodes()
    finally:
        harness.obstacle.cache_clear()
