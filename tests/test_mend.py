"""Checkpoints that have lost partitions: what is made again, refused, skipped; and several who mend at once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import threading
from collections import Counter
from pathlib import Path

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from blake3 import blake3
from dask import delayed

import ckpt_spill as cs
from ckpt_spill import copying, upkeep
from ckpt_spill.hosts import LocalHost
from ckpt_spill.jobs import Record, StoreRef
from ckpt_spill.store.runs import Run
from ckpt_spill.store.store import Store
from ckpt_spill.table import collect
from tests.notes import made, note
from tests.test_conflicts import between, files_below, manifest_files
from tests.test_copying import flip

N = 10


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


@pytest.fixture(autouse=True)
def in_this_process():
    """No cluster, unless a test has one; and little time for what does not come back."""
    with dask.config.set({"scheduler": "synchronous", "ckpt-spill.patience": "100ms"}):
        yield


def part(i, notes):
    note(notes, i)
    return pd.DataFrame({"i": [i, i], "r": np.random.default_rng(i).random(2)})


def source(notes):
    return dd.from_map(part, range(N), notes=notes, meta={"i": int, "r": float})


def part_files(root):
    return sorted(files_below(root, ".part"), key=os.path.basename)


def lose(root, *numbers):
    for path in part_files(root):
        if int(os.path.basename(path).split("-")[0]) in numbers:
            os.unlink(path)


def expected(notes):
    frame = source(notes).compute()
    made(notes)
    return frame


class TestSavingAgain:
    def test_only_what_is_lost(self, root, notes):
        """The same call computes what is lost and no more; the run is the same, its manifest a later revision."""
        m = cs.persist_to_disk(source(notes), name="x", root=root)
        assert (made(notes), m.revision, m.replicas) == (list(range(N)), 0, 1)
        lose(root, 3, 7)
        with open(part_files(root)[0], "r+b") as f:
            f.truncate(50)
        again = cs.persist_to_disk(source(notes), name="x", root=root)
        assert made(notes) == [0, 3, 7]
        assert (again.run, again.revision, again.created) == (m.run, 1, m.created)
        again.verify()
        assert cs.list_checkpoints(root) == [again]
        assert cs.persist_to_disk(source(notes), name="x", root=root) == again
        assert made(notes) == []
        pd.testing.assert_frame_equal(cs.rehydrate("x", root=root).compute(), expected(notes))

    def test_checkpoint_mends(self, root, notes):
        """checkpoint() does, too."""
        cs.checkpoint(source(notes), "x", root=root)
        made(notes)
        lose(root, 5)
        back = cs.checkpoint(source(notes), "x", root=root)
        assert made(notes) == [5]
        pd.testing.assert_frame_equal(back.compute(), expected(notes))

    def test_everything_lost(self, root, notes):
        """With no file left all are made again, under the same run."""
        m = cs.persist_to_disk(source(notes), name="x", root=root)
        lose(root, *range(N))
        made(notes)
        again = cs.persist_to_disk(source(notes), name="x", root=root)
        assert (made(notes), again.run, again.revision) == (list(range(N)), m.run, 1)
        again.verify()

    def test_a_drive_is_lost(self, tmp_path, notes):
        """What was on a lost drive is made again on those that are left, and on the new one in its place."""
        roots = [str(tmp_path / "a"), str(tmp_path / "b")]
        m = cs.persist_to_disk(source(notes), name="x", root=roots)
        made(notes)
        shutil.rmtree(roots[1])
        again = cs.persist_to_disk(source(notes), name="x", root=roots)
        assert len(made(notes)) == N // 2
        assert len({s.id for s in again.stores} - {s.id for s in m.stores}) == 1
        again.verify()
        assert len(manifest_files(tmp_path)) == 2
        again.delete()
        assert files_below(tmp_path) == [] or not part_files(tmp_path)

    def test_a_drive_comes_back(self, tmp_path, notes):
        """A store that was away has an old revision, and files that nobody needs: both are harmless."""
        roots = [str(tmp_path / "a"), str(tmp_path / "b")]
        cs.persist_to_disk(source(notes), name="x", root=roots)
        os.rename(roots[1], tmp_path / "away")
        mended = cs.persist_to_disk(source(notes), name="x", root=roots[0])
        shutil.rmtree(roots[1], ignore_errors=True)
        os.rename(tmp_path / "away", roots[1])
        made(notes)
        for order in (roots, roots[::-1]):
            assert cs.list_checkpoints(order) == [mended]
            assert cs.persist_to_disk(source(notes), name="x", root=order) == mended
        assert made(notes) == []
        mended.verify()
        old = cs.list_checkpoints(roots[1])
        assert [(o.run, o.revision) for o in old] == [(mended.run, 0)]
        replaced = cs.persist_to_disk(source(notes) + 1, name="x", root=roots, overwrite=True)
        assert len(part_files(tmp_path)) == N
        replaced.delete()
        assert part_files(tmp_path) == []

    def test_old_manifest_finds_the_later_revision(self, root, notes):
        """A manifest that somebody kept from before it was mended leads to the mended one."""
        kept = cs.persist_to_disk(random_again(notes), name="x", token="t", root=root)
        lose(root, 2)
        cs.persist_to_disk(random_again(notes), name="x", token="t", root=root)
        back = cs.rehydrate(kept)
        assert back.compute().shape == (N,)

    def test_needs_what_saving_needs(self, root, notes):
        """Mending writes, so problems of the roots are problems again."""
        cs.persist_to_disk(source(notes), name="x", root=root)
        lose(root, 2)
        with dask.config.set({"ckpt-spill.min-free": str(1 << 60)}), pytest.raises(cs.RootError):
            cs.persist_to_disk(source(notes), name="x", root=root)

    def test_flushed_afterwards(self, root, notes, monkeypatch):
        """Mending with durable=True also flushes what was written without."""
        cs.persist_to_disk(source(notes), name="x", root=root, durable=False)
        lose(root, 2)
        flushed = set()
        real = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", lambda fd: flushed.add(os.readlink(f"/proc/self/fd/{fd}")) or real(fd))
        cs.persist_to_disk(source(notes), name="x", root=root)
        assert set(part_files(root)) <= flushed

    def test_crash_while_mending(self, root, notes, monkeypatch):
        """An attempt that ends half-way leaves the old manifest, and files that the next one takes over."""
        m = cs.persist_to_disk(random_again(notes), name="x", token="t", root=root)
        lose(root, 3, 4)
        made(notes)

        def crash():
            raise KeyboardInterrupt

        between(monkeypatch, "commit", crash)
        with pytest.raises(KeyboardInterrupt):
            cs.persist_to_disk(random_again(notes), name="x", token="t", root=root)
        assert (made(notes), len(part_files(root)), cs.list_checkpoints(root)) == ([3, 4], N, [m])
        mended = cs.persist_to_disk(random_again(notes), name="x", token="t", root=root)
        assert (made(notes), mended.revision) == ([], 1)
        mended.verify()

    def test_damaged_leftovers_are_not_taken(self, root, notes, monkeypatch):
        """What such an attempt left is verified."""
        cs.persist_to_disk(random_again(notes), name="x", token="t", root=root)
        before = set(part_files(root))
        lose(root, 3, 4)
        between(monkeypatch, "commit", lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            cs.persist_to_disk(random_again(notes), name="x", token="t", root=root)
        left = sorted(set(part_files(root)) - before)
        with open(left[0], "r+b") as f:
            f.seek(30)
            f.write(b"\xff\x00\xff")
        made(notes)
        cs.persist_to_disk(random_again(notes), name="x", token="t", root=root).verify()
        assert made(notes) == [3]

    def test_failure_while_mending_can_be_repeated(self, client, root, notes, tmp_path):
        """A task that fails while a checkpoint is mended fails the call; the next one goes on, on the same workers."""
        with dask.config.set(scheduler=None):
            cs.persist_to_disk(fragile(notes, tmp_path), name="x", token="t", root=root)
            lose(root, 3, 4)
            (tmp_path / "fail").touch()
            with pytest.raises(ZeroDivisionError):
                cs.persist_to_disk(fragile(notes, tmp_path), name="x", token="t", root=root)
            (tmp_path / "fail").unlink()
            cs.persist_to_disk(fragile(notes, tmp_path), name="x", token="t", root=root).verify()


def random_again(notes):
    """A collection whose partitions differ each time they are made, so that their files have other names."""

    def block(block_id):
        part(block_id[0], notes)
        return np.random.default_rng().random(1)

    return da.map_blocks(block, chunks=((1,) * N,), dtype=float, meta=np.empty(0), name=f"random-{os.urandom(4).hex()}")


def fragile(notes, directory):
    def block(block_id):
        part(block_id[0], notes)
        if (directory / "fail").exists() and block_id[0] == 4:
            raise ZeroDivisionError
        return np.random.default_rng().random(1)

    return da.map_blocks(
        block, chunks=((1,) * N,), dtype=float, meta=np.empty(0), name=f"fragile-{os.urandom(4).hex()}"
    )


class TestOthersMeanwhile:
    @pytest.mark.parametrize("moment", ["salvage", "seal", "commit"])
    def test_two_mend(self, root, notes, monkeypatch, moment):
        """Of two who mend at once both end with the checkpoint of the faster one, whole."""
        cs.persist_to_disk(random_again(notes), name="x", token="t", root=root)
        lose(root, 3)
        theirs = []

        def mend():
            theirs.append(cs.persist_to_disk(random_again(notes), name="x", token="t", root=root))

        between(monkeypatch, moment, mend)
        ours = cs.persist_to_disk(random_again(notes), name="x", token="t", root=root)
        (found,) = cs.list_checkpoints(root)
        assert found == ours
        for m in (*theirs, ours):
            m.verify()
        assert found.revision == 1

    def test_many_mend(self, root, notes):
        """Whatever comes between what, everybody has a whole checkpoint, and the last one that counts is whole."""
        first = cs.persist_to_disk(random_again(notes), name="x", token="t", root=root)
        lose(root, 1, 5, 6)
        results = []

        def mend():
            with dask.config.set(scheduler="synchronous"):
                results.append(cs.persist_to_disk(random_again(notes), name="x", token="t", root=root))

        threads = [threading.Thread(target=mend) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(results) == 4
        for m in (*results, *cs.list_checkpoints(root)):
            m.verify()
            assert m.run == first.run

    @pytest.mark.parametrize("moment", ["salvage", "seal", "commit"])
    def test_deleted(self, root, notes, monkeypatch, moment):
        """A checkpoint that is deleted while somebody mends it does not come back by half."""
        cs.persist_to_disk(da.ones(3), name="keeps the store", root=root)
        cs.persist_to_disk(source(notes), name="x", root=root)
        lose(root, 3)
        between(monkeypatch, moment, cs.list_checkpoints(root)[1].delete)
        with pytest.raises(cs.ConflictError, match="Call again"):
            cs.persist_to_disk(source(notes), name="x", root=root)
        assert [m.name for m in cs.list_checkpoints(root)] == ["keeps the store"]
        assert len(part_files(root)) == 1
        cs.persist_to_disk(source(notes), name="x", root=root).verify()

    @pytest.mark.parametrize("moment", ["salvage", "seal", "commit"])
    def test_replaced(self, root, notes, monkeypatch, moment):
        """A checkpoint that is replaced while somebody mends it stays replaced."""
        cs.persist_to_disk(source(notes), name="x", root=root)
        lose(root, 3)
        between(monkeypatch, moment, lambda: cs.persist_to_disk(da.ones(3), name="x", root=root, overwrite=True))
        with pytest.raises(cs.ConflictError, match="Call again"):
            cs.persist_to_disk(source(notes), name="x", root=root)
        assert cs.rehydrate("x", root=root).sum().compute() == 3

    def test_store_goes_away_at_the_commit(self, tmp_path, notes, monkeypatch):
        """A drive that is lost while a checkpoint is mended costs what was on it; the revision rises once more."""
        roots = [str(tmp_path / "a"), str(tmp_path / "b")]
        cs.persist_to_disk(source(notes), name="x", root=roots)
        lose(roots[0], *range(0, N, 4))
        between(monkeypatch, "commit", lambda: shutil.rmtree(roots[1]))
        m = cs.persist_to_disk(source(notes), name="x", root=roots)
        assert m.revision == 2
        m.verify()


class Apart(LocalHost):
    """Two hosts in this process, of which each has copies in a root of its own.

    Parameters
    ----------
    roots : sequence of str
    name : str
    n : int
        What is done once, before the call n of an errand of this name.
    do : callable
    """

    def __init__(self, roots, name, n, do):
        super().__init__(dask.get)
        self.roots, self.moment, self.do = roots, (name, n), do
        self.calls = Counter()

    def each(self, function, *args):
        answers = {}
        for root in self.roots:
            with dask.config.set({"ckpt-spill.domain": root}):
                if function is copying.sites:
                    answers[root] = function((root,), [ref for ref in args[1] if ref.root == root])
                else:
                    answers[root] = function(*args)
        return answers

    def at(self, function, calls):
        return [self._one(function, args) for _, args in calls]

    def _one(self, function, args):
        name = function.__name__
        if (name, self.calls[name]) == self.moment:
            self.do()
        self.calls[name] += 1
        return function(*args)

    attempt = at


class TestDeletedWhileCopiesAreMade:
    @pytest.mark.parametrize("moment", ["fetch 0", "seal 0", "seal 1", "commit 0", "commit 1", "committed 2"])
    @pytest.mark.parametrize("kept", [True, False])
    def test_replicate(self, tmp_path, notes, moment, kept):
        """A checkpoint that is deleted meanwhile stays deleted, also where its store went with it; no file is left."""
        roots = [str(tmp_path / "a"), str(tmp_path / "b")]
        with dask.config.set({"ckpt-spill.root": roots}):
            for root in roots if kept else ():
                cs.persist_to_disk(da.ones(3), name=f"keeps {root}", root=root)
            m = cs.persist_to_disk(source(notes), name="x", root=roots[0])
            name, n = moment.split()
            hosts = Apart(roots, name, int(n), m.delete)
            with pytest.raises(cs.ConflictError):
                upkeep.replicate(hosts, m, 2)
            assert [found.name for found in cs.list_checkpoints()] == [f"keeps {root}" for root in roots if kept]
            assert len(part_files(tmp_path)) == 2 * kept
            again = cs.persist_to_disk(source(notes), name="x", root=roots[0])
            upkeep.replicate(Apart(roots, "", 0, None), again, 2)
            assert cs.list_checkpoints()[-1].replicas == 2
            cs.list_checkpoints()[-1].verify()

    def test_replaced(self, tmp_path, notes):
        """Of one that is replaced meanwhile nothing is left either."""
        roots = [str(tmp_path / "a"), str(tmp_path / "b")]
        with dask.config.set({"ckpt-spill.root": roots}):
            m = cs.persist_to_disk(source(notes), name="x", root=roots[0])

            def replace():
                cs.persist_to_disk(da.ones(3), name="x", root=roots[0], overwrite=True)

            with pytest.raises(cs.ConflictError):
                upkeep.replicate(Apart(roots, "commit", 0, replace), m, 2)
            assert cs.rehydrate("x").sum().compute() == 3
            assert len(part_files(tmp_path)) == 1

    def test_one_store_lost_its_manifest(self, tmp_path, notes):
        """A store that was emptied, not deleted from, gets what it lacks."""
        roots = [str(tmp_path / "a"), str(tmp_path / "b")]
        with dask.config.set({"ckpt-spill.root": roots}):
            m = cs.persist_to_disk(source(notes), name="x", root=roots[0])
            m = upkeep.replicate(Apart(roots, "", 0, None), m, 2)
            for root in roots:
                shutil.rmtree(Path(root, "checkpoints"))
                m = upkeep.repair(Apart(roots, "", 0, None), m)
                m.verify()
                assert len(part_files(root)) == N


class TestStoreOperation:
    RUN = Run("x", 5, "0" * 16, "0" * 8)

    def manifest(self, run, revision):
        ref = StoreRef("0" * 32, "", "")
        refs, table = collect([Record(run.run, 0, ref.id, "", "", 1, 1, b"d" * 32)], 1, [ref])
        data = cs.Manifest("x", "t", run, "bag", {}, "", durable=True, stores=refs, partitions=table, revision=revision)
        return data.to_json()

    def test_amend(self, root):
        """A later revision of the same run replaces; nothing else does."""
        store = Store.create(root)
        store.begin(self.RUN, b"{}")
        other = dataclasses.replace(self.RUN, run="1" * 8)
        later = dataclasses.replace(other, generation=6)
        assert store.manifests.put(self.RUN, self.manifest(self.RUN, 0), {}, durable=True)
        assert not store.manifests.put(self.RUN, self.manifest(self.RUN, 0), {}, durable=True)
        assert store.manifests.put(self.RUN, self.manifest(self.RUN, 2), {}, durable=True)
        assert not store.manifests.put(self.RUN, self.manifest(self.RUN, 1), {}, durable=True)
        assert not store.manifests.put(other, self.manifest(other, 9), {}, durable=True)
        assert not store.manifests.put(self.RUN, self.manifest(self.RUN, 3), {"gone": 1}, durable=True)
        ((path, content),) = store.manifests.read("x")
        assert content == self.manifest(self.RUN, 2)
        assert os.path.basename(path) == "g00000005.json"
        store.manifests.remove(self.RUN, 1)
        assert store.manifests.is_committed(self.RUN)
        assert store.commit(later, self.manifest(later, 0), {}, durable=True) == [self.RUN]
        assert not store.manifests.put(self.RUN, self.manifest(self.RUN, 3), {}, durable=True)
        store.manifests.remove(self.RUN, 2)
        assert not store.manifests.is_committed(self.RUN)
        assert not files_below(root, "tmp-")

    def test_nothing_to_amend(self, root):
        """Where a run was deleted no later revision of it is written; one that is there is amended."""
        store = Store.create(root)
        store.begin(self.RUN, b"{}")
        assert not store.manifests.put(self.RUN, self.manifest(self.RUN, 1), {}, durable=True, amend=True)
        assert manifest_files(root) == []
        assert store.manifests.put(self.RUN, self.manifest(self.RUN, 0), {}, durable=True)
        assert store.manifests.put(self.RUN, self.manifest(self.RUN, 1), {}, durable=True, amend=True)

    def test_many_amend(self, root):
        """Of many who amend at once the latest revision stays, and each was told the truth."""
        store = Store.create(root)
        store.begin(self.RUN, b"{}")
        store.commit(self.RUN, self.manifest(self.RUN, 0), {}, durable=True)
        told = {}

        def amend(n, revision):
            told[n] = revision, store.manifests.put(self.RUN, self.manifest(self.RUN, revision), {}, durable=False)

        threads = [threading.Thread(target=amend, args=(n, n // 4)) for n in range(4, 40)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        ((_, content),) = store.manifests.read("x")
        assert content == self.manifest(self.RUN, 9)
        won = [revision for revision, true in told.values() if true]
        assert len(won) == len(set(won))
        assert 9 in won

    def test_deleted_while_it_is_amended(self, root):
        """When a run is removed and amended at the same time, no manifest is left without its files."""
        for n in range(30):
            store, run = Store.create(root), dataclasses.replace(self.RUN, generation=n + 1)
            store.begin(run, b"{}")
            name = "00000000-" + "0" * 16 + ".part"
            Path(store.run_path(run), name).write_bytes(b"1")
            assert store.manifests.put(run, self.manifest(run, 0), {name: 1}, durable=False)
            start = threading.Barrier(2)

            def remove(store=store, run=run, start=start):
                start.wait()
                store.remove(run)

            thread = threading.Thread(target=remove)
            thread.start()
            start.wait()
            with contextlib.suppress(cs.ConflictError):  # the store was empty, and went with it
                store.manifests.put(run, self.manifest(run, 1), {name: 1}, durable=False)
            thread.join()
            assert manifest_files(root) == []


class TestCollect:
    REFS = [StoreRef(s * 32, f"/{s}", s) for s in "abc"]

    def record(self, partition, store, digest=b"0"):
        return Record("r", partition, store * 32, f"/{store}", store, 10, 5, digest * 32)

    def test_holders(self):
        """Equal files of one partition are its holders, each store once, whether it was known before or not."""
        records = [self.record(0, "b"), self.record(1, "a"), self.record(0, "c"), self.record(0, "b")]
        refs, table = collect(records, 2, self.REFS[:2])
        assert [r.id[0] for r in refs] == ["a", "b", "c"]
        assert table.holders == ((1, 2), (0,))

    def test_attempts_differ(self):
        """Of different files of one partition those with the most copies count, then those that came first."""
        records = [self.record(0, "a", b"0"), self.record(0, "b", b"1"), self.record(1, "a", b"2")]
        records += [self.record(1, "b", b"3"), self.record(1, "c", b"3")]
        _, table = collect(records, 2, self.REFS)
        assert table.digests == b"0" * 32 + b"3" * 32
        assert table.holders == ((0,), (1, 2))


class TestRehydrate:
    def test_error_says_all(self, root, notes):
        """The error names partitions, store, path and host, tells what is there and what to do."""
        m = cs.persist_to_disk(source(notes), name="x", root=root)
        lose(root, 1, 2, 3, 7)
        with pytest.raises(cs.MissingPartitionError) as e:
            cs.rehydrate(m)
        (ref,) = m.stores
        for said in ("6 of 10 partitions present", "1-3, 7", ref.id, ref.root, ref.host, 'missing="recompute"'):
            assert said in str(e.value)
        assert (e.value.partitions, e.value.stores) == ([1, 2, 3, 7], [ref.id])

    @pytest.mark.parametrize("given", ["manifest", "name"])
    def test_recompute(self, root, notes, given):
        """missing="recompute" computes what is lost, saves it, and gives the collection."""
        m = cs.persist_to_disk(source(notes), name="x", root=root)
        lose(root, 1, 2)
        made(notes)
        back = cs.rehydrate(
            m if given == "manifest" else "x",
            missing="recompute",
            source=source(notes),
            root=None if given == "manifest" else root,
        )
        assert made(notes) == [1, 2]
        pd.testing.assert_frame_equal(back.compute(), expected(notes))
        (mended,) = cs.list_checkpoints(root)
        assert (mended.run, mended.revision) == (m.run, 1)
        assert files_below(dask.config.get("ckpt-spill.root")) == []

    def test_recompute_nothing(self, root, notes):
        """Where nothing is lost nothing is computed."""
        m = cs.persist_to_disk(source(notes), name="x", root=root)
        made(notes)
        assert cs.rehydrate(m, missing="recompute", source=source(notes), columns=["i"]).i.sum().compute() == 90
        assert made(notes) == []

    def test_recompute_from_a_saved_manifest(self, root, notes, tmp_path):
        """With every store gone the manifest that was saved elsewhere still knows what to make."""
        m = cs.persist_to_disk(source(notes), name="x", root=root, manifest=tmp_path / "m.json")
        shutil.rmtree(root)
        back = cs.rehydrate(tmp_path / "m.json", missing="recompute", source=source(notes))
        pd.testing.assert_frame_equal(back.compute(), expected(notes))
        assert cs.list_checkpoints(root)[0].run.generation > m.run.generation

    def test_wrong_source(self, root, notes):
        """A source of another token is refused with both tokens and the way out, which works."""
        m = cs.persist_to_disk(source(notes), name="x", root=root)
        lose(root, 1)
        for lost in (True, False):
            with pytest.raises(cs.RefusedError) as e:
                cs.rehydrate(m, missing="recompute", source=source(notes) + 1)
            for said in (m.token, "persist_to_disk(source, name='x', token="):
                assert said in str(e.value)
            if lost:
                cs.persist_to_disk(source(notes), name=m.name, token=m.token, root=root)

    @pytest.mark.parametrize("way", ["persist", "recompute"])
    def test_a_damaged_last_copy(self, root, notes, way):
        """The way out that the error names makes just the damaged partition again."""
        m = cs.persist_to_disk(source(notes), name="x", root=root)
        made(notes)
        flip(part_files(root)[3], 30)
        with pytest.raises(cs.CorruptPartitionError, match=r"partition 3 .*repair\(\) removes .*makes just that again"):
            cs.rehydrate(m).compute()
        with pytest.raises(cs.CorruptPartitionError, match="partitions 3 have no sound copy"):
            m.repair()
        if way == "persist":
            cs.persist_to_disk(source(notes), name="x", root=root)
            back = cs.rehydrate("x", root=root)
        else:
            back = cs.rehydrate("x", root=root, missing="recompute", source=source(notes))
        assert made(notes) == [3]
        pd.testing.assert_frame_equal(back.compute(), expected(notes))

    def test_source_of_another_kind(self, root, notes):
        """A source that is another kind of collection is refused, and what is none."""
        m = cs.persist_to_disk(source(notes), name="x", root=root)
        for thing in (source(notes).i, da.ones(3)):
            with pytest.raises(cs.RefusedError, match="another collection than source"):
                cs.rehydrate(m, missing="recompute", source=thing)
        with pytest.raises(cs.UnsupportedCollectionError):
            cs.rehydrate(m, missing="recompute", source=5)

    def test_source_partitioned_otherwise(self, root):
        """A source of the same token but other partitions is refused."""
        other = da.ones(9, chunks=9)
        m = cs.persist_to_disk(da.ones(9, chunks=3), name="x", token=dask.base.tokenize(other), root=root)
        lose(root, 1)
        with pytest.raises(cs.RefusedError, match="partitioned in another way: 1 partitions"):
            cs.rehydrate(m, missing="recompute", source=other)

    @pytest.mark.parametrize(
        "options", [{"missing": "ignore"}, {"missing": "recompute"}, {"source": 1}, {"missing": "skip", "source": 1}]
    )
    def test_bad_options(self, root, options):
        """missing is one of three, and source goes with one of them."""
        m = cs.persist_to_disk(da.ones(3), name="x", root=root)
        with pytest.raises(cs.RefusedError):
            cs.rehydrate(m, **options)


class TestSkip:
    def test_frame(self, root, notes):
        """A frame of unknown divisions comes without what is lost, with a warning that names it."""
        frame = source(notes)
        m = cs.persist_to_disk(frame, name="x", root=root)
        whole = cs.rehydrate(m)
        lose(root, 0, 4, 5)
        with pytest.warns(UserWarning, match="3 of 10 partitions are skipped.*: 0, 4-5"):
            back = cs.rehydrate(m, missing="skip")
        full = expected(notes)
        assert (back.npartitions, back.known_divisions) == (7, False)
        rest = full[~full.i.isin([0, 4, 5])]
        pd.testing.assert_frame_equal(back.compute(), rest)
        pd.testing.assert_series_equal(back.i.compute(), rest.i)
        pd.testing.assert_frame_equal(back.partitions[[0, 6]].compute(), rest[rest.i.isin([1, 9])])
        assert set(map(str, back.__dask_keys__())).isdisjoint(map(str, whole.__dask_keys__()))
        with pytest.warns(UserWarning, match="skipped"):
            assert list(cs.rehydrate(m, missing="skip", columns=["r"]).compute().columns) == ["r"]

    def test_names_cover_the_selection(self, root, notes):
        """What is made of another selection has other keys, what is made of the same has the same."""
        m = cs.persist_to_disk(source(notes), name="x", root=root)

        def name():
            with pytest.warns(UserWarning, match="skipped"):
                return cs.rehydrate(m, missing="skip").expr._name

        lose(root, 3)
        first = name()
        assert first == name()
        lose(root, 8)
        assert first != name()

    def test_series_and_index(self, root, notes):
        """So do series and indexes."""
        for n, thing in enumerate([source(notes).r, source(notes).index]):
            m = cs.persist_to_disk(thing, name=f"x{n}", root=root)
            os.unlink(part_files(root)[-1])
            with pytest.warns(UserWarning, match="skipped"):
                back = cs.rehydrate(m, missing="skip")
            assert len(back.compute()) == 2 * (N - 1)
            m.delete()

    def test_bag(self, root):
        """A bag comes without what is lost."""
        m = cs.persist_to_disk(db.from_sequence(range(10), npartitions=5), name="x", root=root)
        lose(root, 1, 3)
        with pytest.warns(UserWarning, match="2 of 5 partitions are skipped"):
            back = cs.rehydrate(m, missing="skip")
        assert back.npartitions == 3
        assert list(back) == [0, 1, 4, 5, 8, 9]
        assert back.map(lambda v: v + 1).sum().compute() == 33

    @pytest.mark.parametrize(
        ("make", "reason"),
        [
            (lambda: dd.from_pandas(pd.DataFrame({"a": range(9)}), npartitions=3), "known divisions"),
            (lambda: dd.from_pandas(pd.DataFrame({"a": range(9)}), npartitions=3).a, "known divisions"),
            (lambda: dd.from_pandas(pd.DataFrame({"a": range(9)}), npartitions=3).index, "known divisions"),
            (lambda: da.arange(9, chunks=3), "holes"),
        ],
    )
    def test_refused(self, root, make, reason):
        """Where something says what should be there nothing is skipped."""
        m = cs.persist_to_disk(make(), name="x", root=root)
        lose(root, 1)
        with pytest.raises(cs.RefusedError, match=f"{reason}.*only 2 are present"):
            cs.rehydrate(m, missing="skip")

    def test_nothing_left(self, root):
        """Nor is everything."""
        for make in (lambda: db.range(4, npartitions=2), lambda: delayed(5)):
            m = cs.persist_to_disk(make(), name="x", root=root)
            lose(root, 0, 1)
            with pytest.raises(cs.RefusedError, match=r"0 of . partitions present"):
                cs.rehydrate(m, missing="skip")
            m.delete()

    def test_nothing_lost(self, root, notes):
        """Where nothing is lost it is the collection as always."""
        m = cs.persist_to_disk(source(notes), name="x", root=root)
        assert cs.rehydrate(m, missing="skip").expr._name == cs.rehydrate(m).expr._name


def test_manifests_of_before(root):
    """A manifest that does not say replicas and revision has one copy, and is the first; wrong ones are refused."""
    m = cs.persist_to_disk(da.ones(3), name="x", root=root)

    def forged(remove=(), **changes):
        body = {k: v for k, v in json.loads(m.to_json())["body"].items() if k not in remove} | changes
        text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        return b'{"ckpt-spill-manifest":1,"blake3":"%s","body":%s}' % (blake3(text).hexdigest().encode(), text)

    assert cs.Manifest.from_json(forged(["replicas", "revision"]), "it") == m
    changed = cs.Manifest.from_json(forged(replicas=2, revision=3), "it")
    assert (changed.replicas, changed.revision) == (2, 3)
    assert changed != m
    for changes in ({"replicas": 0}, {"revision": -1}, {"replicas": True}, {"revision": "1"}):
        with pytest.raises(cs.ManifestError):
            cs.Manifest.from_json(forged(**changes), "it")
