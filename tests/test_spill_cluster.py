"""Real clusters whose workers' memory is on top of the store: pressure, clean eviction, checkpoints by link."""

from __future__ import annotations

import os
import shutil
import signal
import time

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
from distributed import Client, LocalCluster, futures_of

import ckpt_spill as cs
from tests.spilling import (
    LIMIT,
    MiB,
    array_of,
    files,
    frame,
    held,
    keep,
    links,
    noise,
    spill_all,
    spilled_files,
    written,
)
from tests.strict import diff

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


@pytest.fixture
def spilling(cluster, root):
    """A cluster of workers that spill at 12 MiB each."""
    return lambda n=1, **options: cluster(n, data=cs.host_spill(root, memory_limit=LIMIT), **options)


# ------------------------------------------------------------------------------------------------------- pressure
def test_more_than_memory(spilling, root):
    """Five times as much as the workers may hold is held, and right; nothing is left when they end."""
    client = spilling(2)
    x = keep(client, noise(100))
    assert len(spilled_files(root)) > 80
    expected = noise(100).sum().compute(scheduler="threads")
    assert x.sum().compute() == expected
    assert (x[::-1][: 4 * MiB].compute() == noise(100)[::-1][: 4 * MiB].compute(scheduler="threads")).all()
    assert all(0 < weight <= 12 * MiB for weight in held(client))
    totals = client.run(lambda dask_worker: dask_worker.data.spilled_total)
    assert sum(total.disk for total in totals.values()) == sum(map(os.path.getsize, spilled_files(root)))
    del x
    client.cluster.close()
    assert os.listdir(os.path.join(root, "spill")) == []


def test_files_of_what_is_released(spilling, root):
    """What nobody wants any more is gone from the disk."""
    client = spilling()
    x = keep(client, noise())
    assert spilled_files(root)
    del x
    end = time.monotonic() + 20
    while spilled_files(root) and time.monotonic() < end:
        time.sleep(0.05)
    assert spilled_files(root) == []


def test_restart(spilling, root):
    """Workers that are killed leave files, which are gone when their nannies have started others."""
    client = spilling(2)
    x = keep(client, noise(20))
    before = spilled_files(root)
    assert before
    del x
    client.restart()
    y = keep(client, noise(20, seed=1))
    assert not set(before) & set(spilled_files(root))
    assert len(os.listdir(os.path.join(root, "spill"))) == 2
    assert (y[:10].compute() == noise(20, seed=1)[:10].compute(scheduler="threads")).all()


def test_killed(spilling, root):
    """A worker that is killed loses no key, and what it left on the disk is gone when its nanny has started another."""
    client = spilling()
    x = keep(client, noise(20))
    [pid] = client.run(os.getpid).values()
    before = spilled_files(root)
    assert before
    os.kill(pid, signal.SIGKILL)
    assert (x.compute() == noise(20).compute(scheduler="threads")).all()
    assert pid not in client.run(os.getpid).values()
    assert spilled_files(root)
    assert not set(before) & set(spilled_files(root))
    assert len(os.listdir(os.path.join(root, "spill"))) == 1


def test_workers_of_this_process(root):
    """Their files go with them, though the process goes on, and still has the collection and the workers."""
    options = {"processes": False, "dashboard_address": ":0", "n_workers": 2, "threads_per_worker": 1}
    with (
        LocalCluster(data=cs.host_spill(root, memory_limit=LIMIT), **options) as made,
        Client(made) as client,
    ):
        workers = list(made.workers.values())
        x = keep(client, noise(20))
        assert len(spilled_files(root)) > 5
        assert (x.compute() == noise(20).compute(scheduler="threads")).all()
    assert all(worker.status.name == "closed" for worker in workers)
    assert os.listdir(os.path.join(root, "spill")) == []
    del x


def test_dask_limits(cluster, root):
    """Without a limit of its own the memory takes that of the worker."""
    client = cluster(1, data=cs.host_spill(root), memory_limit="500 MB")
    client.submit(int).result()
    assert list(client.run(lambda dask_worker: dask_worker.data.n).values()) == [300_000_000]


def test_memory_of_the_process(cluster, root):
    """What the whole process takes counts, too, where it is more than what is known of its values."""
    thresholds = {"target": False, "spill": 0.7, "pause": False, "terminate": False}
    with dask.config.set({f"distributed.worker.memory.{name}": value for name, value in thresholds.items()}):
        client = cluster(1, data=cs.host_spill(root), memory_limit="400 MB")
        x = keep(client, noise(300))
        end = time.monotonic() + 20
        while len(spilled_files(root)) < 150 and time.monotonic() < end:
            time.sleep(0.05)
        assert len(spilled_files(root)) >= 150
        assert x.sum().compute() == noise(300).sum().compute(scheduler="threads")


def test_preload(cluster, root):
    """A worker that preloads the module has that memory."""
    preload = {
        "distributed.worker.preload": ["ckpt_spill.spill.host"],
        "ckpt-spill.root": root,
    }
    with dask.config.set(preload):
        client = cluster(1, memory_limit="500 MB")
        x = keep(client, noise())
        kinds = client.run(lambda dask_worker: (type(dask_worker.data).__name__, dask_worker.data.n))
        assert list(kinds.values()) == [("HostSpill", 300_000_000)]
        spill_all(client)
        assert len(spilled_files(root)) == 10
        assert (x.compute() == noise().compute(scheduler="threads")).all()


# -------------------------------------------------------------------------------------------------- clean eviction
@pytest.mark.parametrize("deleted", [False, True])
def test_clean(spilling, root, deleted):
    """A rehydrated collection is scanned again and again without a byte written, also when its checkpoint goes."""
    client = spilling()
    m = cs.persist_to_disk(noise(18), name="x", root=root)
    x = keep(client, cs.rehydrate(m))
    expected = noise(18).astype("u8").sum().compute(scheduler="threads")
    for _ in range(3):
        assert x.astype("u8").sum().compute() == expected
        if deleted:
            spill_all(client)
            m.delete()
    assert written(client) < (4 << 10 if deleted else 1)  # what is evicted by hand has the sums in it
    assert len(spilled_files(root)) > 10
    if not deleted:
        assert max(links(m, root)) == 2
    assert (x.compute() == noise(18).compute(scheduler="threads")).all()


@pytest.mark.parametrize("scheduler", ["threads", "sync"])
def test_a_read_inside_of_another_task(spilling, root, scheduler):
    """Also in threads of its own, which run no task: it is read, and the task's value is not taken for it."""
    m = cs.persist_to_disk(noise(4), name="x", root=root)
    client = spilling()

    def inside(m):
        return cs.rehydrate(m, root=root).compute(scheduler=scheduler) + 1

    result = client.submit(inside, m)
    assert (result.result() == noise(4).compute(scheduler="threads") + 1).all()
    spill_all(client)
    assert written(client) > 4 * 2 * 1000**2
    assert (client.submit(lambda x: x, result).result() == noise(4).compute(scheduler="threads") + 1).all()


def test_clean_is_lost(spilling, root):
    """Where the checkpoint is lost before anything is evicted, that is spilled as anything else."""
    client = spilling()
    m = cs.persist_to_disk(noise(4), name="x", root=root)
    x = keep(client, cs.rehydrate(m))
    assert not spilled_files(root)
    m.delete()
    spill_all(client)
    assert written(client) > 8 * MiB
    assert (x.compute() == noise(4).compute(scheduler="threads")).all()


def test_clean_is_replaced(spilling, root):
    """A checkpoint that is overwritten under its name leaves what was read from the one before as it is."""
    client = spilling()
    x = keep(client, cs.rehydrate(cs.persist_to_disk(noise(4), name="x", root=root)))
    evicted = keep(client, cs.rehydrate("x", root=root) + 0)
    spill_all(client)
    new = cs.persist_to_disk(noise(4, seed=1), name="x", root=root, overwrite=True)
    y = keep(client, cs.rehydrate(new))
    for _ in range(2):
        for kept, seed in ((x, 0), (evicted, 0), (y, 1)):
            assert (kept.compute() == noise(4, seed=seed).compute(scheduler="threads")).all()
        spill_all(client)
    old = cs.persist_to_disk(x, name="old", root=root)
    old.verify()
    assert (array_of(old) == noise(4).compute(scheduler="threads")).all()


def test_changed_in_place(spilling, root):
    """What a task does to a value that it was given does not get into a checkpoint."""

    def spoil(block):
        block[:] = 0
        return block[:1]

    client = spilling()
    x = keep(client, cs.rehydrate(cs.persist_to_disk(noise(4), name="x", root=root)))
    x.map_blocks(spoil, chunks=((1,) * 4,), dtype="u1").compute()
    spill_all(client)
    copy = cs.persist_to_disk(x, name="y", root=root)
    assert (array_of(copy) == noise(4).compute(scheduler="threads")).all()


# --------------------------------------------------------------------------------------------------------- by link
def test_link(spilling, root):
    """What is on disk is linked, and is the checkpoint's then: through the end of the worker and of the cluster."""
    sources = {
        "array": noise(4),
        "frame": frame(4),
        "series": frame(4)["a"],
        "bag": db.from_sequence(range(4000), npartitions=4).map(lambda n: {"n": n}),
    }
    client = spilling()
    kept = {kind: keep(client, source) for kind, source in sources.items()}
    spill_all(client)
    before = written(client)
    saved = {kind: cs.persist_to_disk(collection, name=kind, root=root) for kind, collection in kept.items()}
    assert written(client) == before
    expected = {kind: source.compute(scheduler="threads") for kind, source in sources.items()}
    for kind, m in saved.items():
        assert links(m, root) == [2] * 4
        m.verify()
        assert diff(expected[kind], cs.rehydrate(m).compute()) == []
    kept.clear()
    client.restart()
    for kind, m in saved.items():
        assert links(m, root) == [1] * 4
        assert diff(expected[kind], cs.rehydrate(m).compute()) == []
    client.cluster.close()
    assert all(links(m, root) == [1] * 4 for m in saved.values())


def test_link_of_some(spilling, root):
    """What is in memory is written, what is on disk linked; saving again what is there already does neither."""
    client = spilling()
    kept = keep(client, noise(12))
    n = len(spilled_files(root))
    assert 5 < n < 12
    m = cs.persist_to_disk(kept, name="x", root=root)
    assert sorted(links(m, root)) == [1] * (12 - n) + [2] * n
    again = cs.persist_to_disk(kept, name="x", root=root)
    assert again == m
    assert (array_of(m) == noise(12).compute(scheduler="threads")).all()


def test_link_of_clean(spilling, root):
    """A checkpoint of what was read from another one, and evicted, is links to that one's files."""
    client = spilling()
    m = cs.persist_to_disk(frame(4), name="x", root=root)
    kept = keep(client, cs.rehydrate(m))
    spill_all(client)
    other = cs.persist_to_disk(kept, name="y", root=root)
    assert links(other, root) == [3] * 4
    m.delete()
    del kept
    other.verify()
    assert diff(frame(4).compute(scheduler="threads"), cs.rehydrate(other).compute()) == []


def test_columns_are_no_link(spilling, root):
    """A file of which only some columns were read does not become a partition of these columns."""
    client = spilling()
    m = cs.persist_to_disk(frame(4), name="x", root=root)
    by_list = cs.rehydrate(m, columns=["a"])
    by_projection = cs.rehydrate(m)[["b"]]
    series = cs.rehydrate(m)["b"]
    for n, narrow in enumerate((by_list, by_projection, series)):
        kept = keep(client, narrow)
        spill_all(client)
        narrower = cs.persist_to_disk(kept, name=f"y{n}", root=root)
        narrower.verify()
        label = "a" if n == 0 else "b"
        expected = frame(4)[label if n == 2 else [label]].compute(scheduler="threads")
        assert diff(expected, kept.compute()) == []
        assert diff(expected, cs.rehydrate(narrower).compute()) == []


def test_work_on_what_is_held(spilling, root):
    """A checkpoint of what is made of a spilled collection has that, not the collection."""
    client = spilling()
    kept = keep(client, noise(4))
    spill_all(client)
    cases = {"more": kept + 1, "less": kept[: 3 * MiB], "same": kept.map_blocks(lambda x: x), "order": kept[::-1]}
    for name, made in cases.items():
        m = cs.persist_to_disk(made, name=name, root=root)
        plain = {
            "more": lambda x: x + 1,
            "less": lambda x: x[: 3 * MiB],
            "same": lambda x: x,
            "order": lambda x: x[::-1],
        }
        expected = plain[name](noise(4).compute(scheduler="threads"))
        assert (array_of(m) == expected).all()


def test_codec_is_kept(spilling, root):
    """Who asks for a codec gets it, and no link."""
    client = spilling()
    kept = keep(client, noise(4))
    spill_all(client)
    m = cs.persist_to_disk(kept, name="x", root=root, codec="none")
    assert links(m, root) == [1] * 4
    assert (array_of(m) == noise(4).compute(scheduler="threads")).all()


def test_other_root(spilling, root, tmp_path):
    """Where the checkpoint is to be in another root, it is, and does not need the first one."""
    client = spilling()
    kept = keep(client, noise(4))
    spill_all(client)
    other = str(tmp_path / "other")
    m = cs.persist_to_disk(kept, name="x", root=other)
    m.verify()
    assert len(files(m, other)) == 4
    del kept
    client.restart()
    shutil.rmtree(root)
    assert (cs.rehydrate(m, root=other).compute() == noise(4).compute(scheduler="threads")).all()


def test_only_dask_can_serialise(spilling, root):
    """What was spilled as dask serialises it is no partition: such a checkpoint fails as without a spill."""
    from tests.spill_contract import OnlyDask

    client = spilling()
    kept = keep(client, db.from_delayed([dask.delayed(lambda: [OnlyDask(b"x" * MiB)])()]))
    spill_all(client)
    with pytest.raises(cs.UnserializableError):
        cs.persist_to_disk(kept, name="x", root=root)


def test_fetched_from_a_peer(spilling, root):
    """What a worker got from another one is its own: spilled, linked and right."""
    client = spilling(2)
    m = cs.persist_to_disk(noise(6), name="x", root=root)
    kept = keep(client, cs.rehydrate(m))
    client.replicate(futures_of(kept), n=2)
    spill_all(client)
    assert len(spilled_files(root)) == 12
    copy = cs.persist_to_disk(kept, name="y", root=root)
    copy.verify()
    assert (array_of(copy) == noise(6).compute(scheduler="threads")).all()


def test_recomputed(spilling, root):
    """What was lost and made again, otherwise than before, is what is read, spilled and linked then."""
    client = spilling()
    seed = os.path.join(root, "..", "seed")

    def block(block_info=None):
        with open(seed) as f:
            return np.full(MiB, int(f.read()), "u1")

    def set_seed(n):
        with open(seed, "w") as f:
            f.write(str(n))

    set_seed(1)
    source = da.map_blocks(block, chunks=((MiB,) * 4,), dtype="u1")
    m = cs.persist_to_disk(source, name="x", root=root)
    old = keep(client, cs.rehydrate(m))
    spill_all(client)
    lost = sorted(files(m, root))[1]
    os.unlink(lost)
    set_seed(2)
    new = keep(client, cs.rehydrate(m, missing="recompute", source=source))
    spill_all(client)
    expected = np.repeat(np.array([1, 2, 1, 1], "u1"), MiB)
    for name, kept, values in (("old", old, np.full(4 * MiB, 1, "u1")), ("new", new, expected)):
        assert (kept.compute() == values).all()
        copy = cs.persist_to_disk(kept, name=name, root=root)
        assert (array_of(copy) == values).all()


def test_everything_at_once(spilling, root):
    """Pressure, scheduling, reading and saving at the same time: all ends, and is right."""
    client = spilling(2, threads_per_worker=2)
    m = cs.persist_to_disk(noise(20), name="x", root=root)
    kept = keep(client, cs.rehydrate(m))
    later = client.compute((kept[: 30 * MiB] + 1).astype("u8").sum())
    other = client.persist(noise(20, seed=1))
    saved = [cs.persist_to_disk(kept, name="a", root=root), cs.persist_to_disk(other, name="b", root=root)]
    for manifest, seed in zip(saved, (0, 1), strict=True):
        manifest.verify()
        assert (array_of(manifest) == noise(20, seed=seed).compute(scheduler="threads")).all()
    later.result(timeout=60)
