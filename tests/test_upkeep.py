"""Checkpoints with several copies, on nodes with disks of their own."""

from __future__ import annotations

import os
import subprocess
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed.utils_test import captured_logger

import ckpt_spill as cs
from tests.lasting import Lasting
from tests.notes import made, note
from tests.test_copying import flip

pytestmark = pytest.mark.slow

N = 16
ROWS = 20_000


@pytest.fixture(autouse=True)
def little_patience():
    with dask.config.set({"ckpt-spill.patience": "1s"}):
        yield


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    with Lasting(3, tmp_path_factory.mktemp("lasting")) as lasting:
        yield lasting


@pytest.fixture
def three(lasting):
    with lasting.lent() as nodes:
        yield nodes


def part(i, notes=None):
    if notes:
        note(notes, i)
    return pd.DataFrame({"i": i, "x": np.random.default_rng(i).random(ROWS)})


def source(notes=None):
    return dd.from_map(part, range(N), notes=notes, meta={"i": int, "x": float})


EXPECTED = pd.concat([part(i) for i in range(N)])


def right(manifest):
    frame = cs.rehydrate(manifest).compute()
    pd.testing.assert_frame_equal(frame, EXPECTED)
    return True


def files(nodes, disks):
    """Partition files on the disks of some nodes: paths by disk and partition."""
    found = defaultdict(dict)
    for i in disks:
        for path in nodes.disk(i).rglob("*.part"):
            assert int(path.name.split("-")[0]) not in found[i]
            found[i][int(path.name.split("-")[0])] = path
    return found


def holders(nodes, disks):
    """Disks that have each partition, from what lies there."""
    found = defaultdict(list)
    for i, paths in files(nodes, disks).items():
        for n in paths:
            found[n].append(i)
    return {n: tuple(found[n]) for n in sorted(found)}


def nbytes(nodes, i):
    return sum(path.stat().st_size for path in nodes.disk(i).rglob("*.part"))


def counts(manifest):
    return sorted({len(p.holders) for p in manifest.partitions})


# ------------------------------------------------------------------------------------------------------------ replicas=
@pytest.mark.slow
def test_two_copies(nodes, notes):
    """Each partition is on two of four nodes, none has much more than others, and all is verified."""
    nodes = nodes(4)
    m = cs.persist_to_disk(source(notes), name="x", replicas=2)
    assert made(notes) == list(range(N))
    assert m.replicas == 2
    assert counts(m) == [2]
    assert {len(of) for of in holders(nodes, range(4)).values()} == {2}
    assert holders(nodes, range(4)).keys() == set(range(N))
    sizes = [nbytes(nodes, i) for i in range(4)]
    assert max(sizes) <= 1.5 * sum(sizes) / 4
    m.verify()
    assert right(m)
    assert cs.persist_to_disk(source(notes), name="x", replicas=2) == m
    assert made(notes) == []


@pytest.mark.slow
def test_any_disk_may_be_lost(nodes):
    """Whichever node's disk is wiped, the answer is right, and a line in the log tells of it."""
    with nodes(4) as first:
        m = cs.persist_to_disk(source(), name="x", replicas=2)
    del first
    nodes = nodes(disks=[0, 1, 2, 3])
    lost = nodes.directory / "lost"
    for i in range(4):
        nodes.disk(i).joinpath("checkpoints").rename(lost)
        marker = nodes.disk(i) / "ckpt-spill.json"
        marker.rename(nodes.directory / "marker")
        with captured_logger("ckpt_spill") as log:
            assert right(m)
            assert right("x")
        [store] = [ref.id for ref in m.stores if ref.host == f"node{i}"]
        assert log.getvalue().count(f"store {store}") == 2
        (nodes.directory / "marker").rename(marker)
        lost.rename(nodes.disk(i) / "checkpoints")


def part_after(i, gate, notes):
    while i >= N - 4 and not gate.exists():
        time.sleep(0.01)
    return part(i, notes)


@pytest.mark.slow
def test_a_node_is_lost_meanwhile(nodes, notes):
    """A node that is killed while it and others write costs no copy: the rest have two of everything."""
    nodes = nodes(4)
    gate = nodes.directory / "gate"
    frame = dd.from_map(part_after, range(N), gate=gate, notes=notes, meta={"i": int, "x": float})
    with ThreadPoolExecutor() as pool:
        saving = pool.submit(cs.persist_to_disk, frame, name="x", replicas=2)
        try:
            nodes.wait_until(lambda: len(os.listdir(notes)) >= N // 2, "half of the partitions")
            nodes.kill_node(1, wipe=True)
        finally:
            gate.touch()
        m = saving.result(100)
    assert counts(m) == [2]
    assert {len(of) for of in holders(nodes, [0, 2, 3]).values()} == {2}
    assert right(m)


@pytest.mark.slow
def test_too_few_domains(nodes, notes):
    """More copies than nodes are refused before anything is computed; so are numbers that make no sense."""
    nodes = nodes(2)
    with pytest.raises(cs.RefusedError, match=r"replicas=3 .*have 2: node0, node1\."):
        cs.persist_to_disk(source(notes), name="x", replicas=3)
    for wrong in (0, -1, 1.5, "2", True, None):
        with pytest.raises(cs.RefusedError, match="replicas"):
            cs.persist_to_disk(source(notes), name="x", replicas=wrong)
    assert made(notes) == []
    assert cs.list_checkpoints() == []
    assert not any(files(nodes, range(2)).values())


def label(name):
    dask.config.set({"ckpt-spill.domain": name})


@pytest.mark.slow
def test_labels(nodes):
    """With labels, copies are in different racks, whatever the hosts."""
    nodes = nodes(3)
    for i, rack in enumerate(["one", "one", "two"]):
        nodes.client.run(label, rack, workers=nodes.addresses(i))
    with pytest.raises(cs.RefusedError, match=r"have 2: one, two"):
        cs.persist_to_disk(source(), name="x", replicas=3)
    cs.persist_to_disk(source(), name="x", replicas=2)
    assert set(holders(nodes, range(3)).values()) <= {(0, 2), (1, 2)}
    nodes.kill_node(2, wipe=True)
    nodes.wait_for(2)
    assert right("x")


@pytest.mark.slow
def test_four_copies_read_by_one(nodes):
    """With a copy everywhere any one node is enough."""
    with nodes(4) as first:
        m = cs.persist_to_disk(source(), name="x", replicas=4)
        assert set(holders(first, range(4)).values()) == {(0, 1, 2, 3)}
    nodes = nodes(disks=[3])
    assert right(m)
    assert right("x")


def small_disk(path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=22m,mode=700", "none", path], check=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*takes memory")
def test_a_full_disk(nodes):
    """Copies go around a disk that is full."""
    nodes = nodes(3, config={"ckpt-spill.min-free": "1 MiB"})
    nodes.client.run(small_disk, str(nodes.root), workers=nodes.addresses(2))
    noise = dd.from_map(noisy, range(9), meta={"x": "u1"})
    m = cs.persist_to_disk(noise, name="x", replicas=2)
    assert counts(m) == [2]
    assert len(cs.rehydrate(m)) == 9 * NOISE


NOISE = 4 << 20


def noisy(i):
    return pd.DataFrame({"x": np.random.default_rng(i).integers(0, 256, NOISE, dtype="u1")})


# ------------------------------------------------------------------------------------------------- replicate and repair
@pytest.mark.slow
def test_replicate(three, notes):
    """Copies can be made later, by asking for them or by saving again with more; nothing is computed for that."""
    first = cs.persist_to_disk(source(notes), name="x")
    made(notes)
    assert first.replicas == 1
    second = first.replicate(2)
    assert (second.replicas, second.revision, counts(second)) == (2, 1, [2])
    assert cs.list_checkpoints() == [second]
    assert second.replicate(2) == second
    assert second.replicate(1) == second
    assert first.replicate(2) == second
    third = cs.persist_to_disk(source(notes), name="x", replicas=3)
    assert (third.replicas, counts(third)) == (3, [3])
    assert set(holders(three, range(3)).values()) == {(0, 1, 2)}
    assert cs.persist_to_disk(source(notes), name="x", replicas=2) == third
    with pytest.raises(cs.RefusedError, match="replicas=4"):
        third.replicate(4)
    assert made(notes) == []
    third.verify()
    assert right(third)
    assert right(first)


@pytest.mark.slow
def test_repair_a_lost_disk(three, notes):
    """After a disk was lost, what it had is made again: on the node that has a new one, or on others."""
    m = cs.persist_to_disk(source(notes), name="x", replicas=2)
    made(notes)
    assert m.repair() == m
    three.wipe(1)
    again = m.repair()
    assert (again.revision, again.replicas, counts(again)) == (1, 2, [2])
    assert {len(of) for of in holders(three, range(3)).values()} == {2}
    assert cs.list_checkpoints() == [again]
    three.kill_node(0, wipe=True)
    three.wait_for(2)
    last = m.repair()
    assert (last.revision, counts(last)) == (2, [2])
    assert set(holders(three, [1, 2]).values()) == {(1, 2)}
    last.verify()
    assert right("x")
    assert made(notes) == []


@pytest.mark.slow
def test_repair_damage(three):
    """Damaged copies are made again from sound ones; what has no sound copy is named, after all else was done."""
    m = cs.persist_to_disk(source(), name="x", replicas=2)
    of = holders(three, range(3))
    paths = files(three, range(3))
    flip(paths[of[3][0]][3], 5000)
    os.truncate(paths[of[4][1]][4], 100)
    os.unlink(paths[of[5][0]][5])
    for n, harm in ((7, lambda path: flip(path, -200)), (8, os.unlink), (9, lambda path: os.truncate(path, 100))):
        for i in of[n]:
            harm(paths[i][n])
    with pytest.raises(cs.CorruptPartitionError, match="damaged"):
        m.verify()
    with pytest.raises(cs.CorruptPartitionError, match="partitions 7-9 have no sound copy") as e:
        m.repair()
    assert e.value.partitions == [7, 8, 9]
    named = {ref.host for ref in m.stores if f"store {ref.id} on host {ref.host}" in str(e.value)}
    assert named == {f"node{i}" for i in of[7] + of[9]}
    now = holders(three, range(3))
    assert now.keys() == set(range(N)) - {7, 8, 9}
    assert {len(found) for found in now.values()} == {2}
    with pytest.raises(cs.MissingPartitionError) as e:
        cs.rehydrate("x")
    assert e.value.partitions == [7, 8, 9]
    mended = cs.persist_to_disk(source(), name="x")
    assert (mended.replicas, mended.revision > 0) == (2, True)
    assert [n for n, p in enumerate(mended.partitions) if len(p.holders) == 1] == [7, 8, 9]
    assert counts(m.repair()) == [2]
    assert right("x")
