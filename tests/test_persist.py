"""Saving: what is written, refused, shared, overwritten; what is true after a failure."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask import delayed
from distributed import Client, LocalCluster

import ckpt_spill as cs
from ckpt_spill.jobs import WriteJob
from ckpt_spill.store.runs import Run
from ckpt_spill.tasks import write_partition


def tally(directory, what):
    """Note on disk, from whatever process, that something ran."""
    Path(directory, f"{what}-{os.urandom(8).hex()}").touch()


def count(directory, what=""):
    return len([f for f in os.listdir(directory) if f.startswith(what)])


@pytest.fixture
def calls(tmp_path):
    directory = tmp_path / "calls"
    directory.mkdir()
    return str(directory)


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


def set_variable(name, value):
    os.environ[name] = value


def counted_frame(calls, n=4, scale=1, fail_at=None):
    """A frame that tells how often its partitions were made."""

    def part(i):
        tally(calls, f"part{i}")
        if i == fail_at:
            raise RuntimeError(f"partition {i} fails")
        return pd.DataFrame({"a": np.arange(5) * scale + i, "b": [f"row {i}"] * 5})

    meta = pd.DataFrame({"a": np.arange(0), "b": pd.Series([], dtype="str")})
    return dd.from_map(part, range(n), meta=meta)


def files_below(path):
    return [os.path.join(d, f) for d, _, fs in os.walk(path) for f in fs]


class TestResult:
    def test_manifest_tells_what_was_saved(self, client, root):
        """Id, kind, partitions, sizes and place are in the manifest and its repr."""
        x = da.ones((100, 1000), chunks=(25, 1000)).map_blocks(np.copy)
        m = cs.persist_to_disk(x, name="ones", root=root)
        assert (m.id, m.name, m.kind, m.npartitions, m.nbytes) == ("ones", "ones", "array", 4, 800_000)
        assert 0 < m.stored_nbytes < 100_000
        assert m.stored_nbytes == sum(os.path.getsize(f) for f in files_below(root) if f.endswith(".part"))
        for part in ("'ones'", "array", "4 partitions", "781.25 kiB", root):
            assert part in repr(m)

    def test_name_from_token(self, client, root):
        """Without a name the collection's token is the name, so the same call finds the same checkpoint."""
        x = da.arange(10, chunks=5)
        m = cs.persist_to_disk(x, root=root)
        assert dask.base.tokenize(x) in m.id
        assert cs.persist_to_disk(da.arange(10, chunks=5), root=root) == m

    def test_no_client(self, root, calls):
        """Without a client the local scheduler writes."""
        ddf = counted_frame(calls)
        m = cs.persist_to_disk(ddf, name="x", root=root)
        pd.testing.assert_frame_equal(cs.rehydrate(m).compute(), ddf.compute())

    @pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
    def test_local_schedulers(self, root, scheduler):
        """Any of dask's local schedulers can write and read."""
        x = da.arange(100, chunks=30)
        with dask.config.set(scheduler=scheduler):
            m = cs.persist_to_disk(x, name="x", root=root)
            assert cs.rehydrate(m).sum().compute() == 4950

    def test_manifest_is_saved_where_asked(self, client, root, tmp_path):
        """manifest= gets the manifest, readable by its owner only."""
        m = cs.persist_to_disk(da.ones(3), name="x", root=root, manifest=tmp_path / "x.json")
        assert cs.Manifest.load(tmp_path / "x.json") == m
        assert (tmp_path / "x.json").stat().st_mode & 0o777 == 0o600

    def test_several_drives(self, client, tmp_path):
        """With several roots partitions are spread over all of them."""
        roots = [str(tmp_path / "nvme0"), str(tmp_path / "nvme1")]
        m = cs.persist_to_disk(da.arange(80, chunks=10), name="x", root=roots)
        assert sorted(s.root for s in m.stores) == roots
        assert [len([f for f in files_below(r) if f.endswith(".part")]) for r in roots] == [4, 4]
        assert cs.rehydrate(m).sum().compute() == 3160

    def test_environment_in_root(self, client, tmp_path):
        """Variables are expanded on the workers, not on the client."""
        client.run(set_variable, "MY_SCRATCH", str(tmp_path / "there"))
        m = cs.persist_to_disk(da.ones(3), name="x", root="$MY_SCRATCH/ckpt")
        assert m.stores[0].root == str(tmp_path / "there" / "ckpt")

    @pytest.mark.parametrize("codec", ["auto", "zstd", "lz4", "none"])
    def test_codecs(self, client, root, codec):
        """Every codec gives the same values."""
        x = da.arange(300_000, chunks=100_000)
        m = cs.persist_to_disk(x, name=codec, root=root, codec=codec, durable=False)
        assert (m.stored_nbytes < m.nbytes / 2) == (codec != "none")
        np.testing.assert_array_equal(cs.rehydrate(m).compute(), np.arange(300_000))

    def test_progress(self, client, root, capsys):
        """A progress bar is drawn on standard error when asked for, and not where nobody looks."""
        cs.persist_to_disk(da.ones(4, chunks=2), name="x", root=root)
        assert capsys.readouterr().err == ""
        cs.persist_to_disk(da.ones(4, chunks=2), name="y", root=root, progress=True)
        assert "2/2 partitions" in capsys.readouterr().err

    def test_persisted_collections(self, client, root):
        """A collection that is in the cluster's memory is saved from there."""
        ddf = dd.from_pandas(pd.DataFrame({"a": range(10)}), npartitions=3).persist()
        x = da.random.default_rng().random(10, chunks=3).persist()
        bag = db.from_sequence(range(7), npartitions=2).persist()
        value = delayed(sum)([1, 2]).persist()
        manifests = cs.persist_to_disk(ddf, x, bag, value, name=["d", "x", "b", "v"], root=root)
        back = [cs.rehydrate(m) for m in manifests]
        expected = [c.compute() for c in (ddf, x, bag, value)]
        got = [b.compute() for b in back]
        pd.testing.assert_frame_equal(got[0], expected[0])
        np.testing.assert_array_equal(got[1], expected[1])
        assert got[2:] == list(expected[2:])


class TestSharedWork:
    def test_frames(self, client, root, calls):
        """Frames that come from the same reads are computed together, each read once."""
        ddf = counted_frame(calls)
        total, first = ddf.assign(c=ddf.a * 2), ddf[["a"]] + 1
        manifests = cs.persist_to_disk(total, first, name=["t", "f"], root=root)
        assert count(calls) == 4
        pd.testing.assert_frame_equal(cs.rehydrate(manifests[0]).compute(), total.compute())
        pd.testing.assert_frame_equal(cs.rehydrate(manifests[1]).compute(), first.compute())

    def test_mixed_kinds(self, client, root, calls):
        """An array, a bag and a delayed value made from one delayed value run it once."""

        @delayed
        def costly():
            tally(calls, "costly")
            return np.arange(4)

        value = costly()
        x = da.from_delayed(value, shape=(4,), dtype=int) + 1
        bag = db.from_delayed([delayed(list)(value)])
        ddf = dd.from_delayed([delayed(lambda v: pd.DataFrame({"v": v}))(value)], meta={"v": int})
        manifests = cs.persist_to_disk(value, x, bag, ddf, name=list("vxbd"), root=root)
        assert count(calls) == 1
        got = [cs.rehydrate(m).compute() for m in manifests]
        np.testing.assert_array_equal(got[0], np.arange(4))
        np.testing.assert_array_equal(got[1], np.arange(4) + 1)
        assert list(got[2]) == [0, 1, 2, 3]
        assert list(got[3].v) == [0, 1, 2, 3]

    def test_same_twice(self, client, root):
        """The same collection twice needs two names."""
        x = da.ones(3)
        with pytest.raises(cs.RefusedError, match="a name of its own"):
            cs.persist_to_disk(x, x, root=root)
        manifests = cs.persist_to_disk(x, x, name=["a", "b"], root=root)
        assert [m.name for m in manifests] == ["a", "b"]


class TestExisting:
    def test_identical_is_returned(self, client, root, calls):
        """The same content under the same name is not computed again."""
        m = cs.persist_to_disk(counted_frame(calls), name="x", root=root)
        assert cs.persist_to_disk(counted_frame(calls), name="x", root=root) == m
        assert count(calls) == 4

    def test_different_is_refused(self, client, root, calls):
        """Other content under the same name is refused before anything is computed, and nothing changes."""
        m = cs.persist_to_disk(counted_frame(calls), name="x", root=root)
        with pytest.raises(cs.CheckpointExistsError, match="overwrite=True"):
            cs.persist_to_disk(counted_frame(calls, scale=2), name="x", root=root)
        assert count(calls) == 4
        m.verify()

    def test_overwrite(self, client, root, calls):
        """overwrite=True replaces: the next generation is found, the files of the one before are gone."""
        old = cs.persist_to_disk(counted_frame(calls), name="x", root=root)
        ddf = counted_frame(calls, scale=2)
        new = cs.persist_to_disk(ddf, name="x", root=root, overwrite=True)
        assert new.run.generation > old.run.generation
        assert cs.list_checkpoints(root) == [new]
        pd.testing.assert_frame_equal(cs.rehydrate("x", root=root).compute(), ddf.compute())
        with pytest.raises(cs.MissingPartitionError, match="0 of 4 partitions"):
            cs.rehydrate(old)

    def test_overwrite_by_what_was_made_of_it(self, client, root):
        """A checkpoint can be replaced by a collection that reads it."""
        cs.persist_to_disk(da.arange(10, chunks=3), name="x", root=root)
        cs.persist_to_disk(cs.rehydrate("x", root=root) + 1, name="x", root=root, overwrite=True)
        assert cs.rehydrate("x", root=root).sum().compute() == 55

    def test_failure_keeps_the_previous(self, client, root, calls):
        """When the new one fails, the old one is whole, found, and the only one."""
        old = cs.persist_to_disk(counted_frame(calls), name="x", root=root)
        with pytest.raises(RuntimeError, match="partition 2 fails"):
            cs.persist_to_disk(counted_frame(calls, scale=3, fail_at=2), name="x", root=root, overwrite=True)
        assert cs.list_checkpoints(root) == [old]
        old.verify()

    def test_token_given(self, client, root):
        """With token= a collection whose own token is random is recognised, and without it refused."""

        def noisy():
            return da.from_delayed(delayed(np.random.default_rng().random, pure=False)(3), shape=(3,), dtype=float)

        m = cs.persist_to_disk(noisy(), name="x", token="today", root=root)
        assert cs.persist_to_disk(noisy(), name="x", token="today", root=root) == m
        with pytest.raises(cs.CheckpointExistsError, match="token="):
            cs.persist_to_disk(noisy(), name="x", root=root)
        with pytest.raises(cs.CheckpointExistsError):
            cs.persist_to_disk(noisy(), name="x", token="tomorrow", root=root)


class TestRefused:
    @pytest.mark.parametrize("thing", [pd.DataFrame({"a": [1]}), np.ones(3), [1], None, "x", 5])
    def test_not_a_collection(self, thing):
        """What is no dask collection is refused with the list of what is supported."""
        with pytest.raises(cs.UnsupportedCollectionError, match="DataFrame, Series, Index, Array, Bag and Delayed"):
            cs.persist_to_disk(thing)

    def test_scalars_have_a_way_out(self):
        """Scalars of frames and bags are refused with the way to save them."""
        for thing in (dd.from_dict({"a": [1]}, npartitions=1).a.sum(), db.range(3, npartitions=1).sum()):
            with pytest.raises(cs.UnsupportedCollectionError, match="to_delayed"):
                cs.persist_to_disk(thing)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"name": ""}, "not empty"),
            ({"name": 5}, "string"),
            ({"name": ["a", "b"]}, "one for each"),
            ({"codec": "gzip"}, "'auto', 'zstd', 'lz4', 'none'"),
            ({"root": []}, "empty list"),
            ({"root": 3}, "path or a list of paths"),
            ({"root": [b"/x"]}, "path or a list of paths"),
            ({"root": "/a\0b"}, "path or a list of paths"),
        ],
    )
    def test_bad_options(self, options, message):
        """Bad options are refused with what would be right."""
        with pytest.raises(cs.RefusedError, match=message):
            cs.persist_to_disk(da.ones(3), **options)

    def test_nothing(self):
        """A call without collections is refused."""
        with pytest.raises(cs.RefusedError, match="at least one"):
            cs.persist_to_disk()

    def test_all_problems_at_once(self, client, tmp_path, calls):
        """Every root's problem on every worker is in one error, before anything is computed."""
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        bad = [
            "/proc/nope",
            str(tmp_path / "open"),
            next(iter(client.run(lambda dask_worker: dask_worker.local_directory).values())),
        ]
        with pytest.raises(cs.RootError) as e:
            cs.persist_to_disk(counted_frame(calls), name="x", root=bad)
        assert len(e.value.problems) >= 5
        for part in ("/proc/nope", "everybody may write", "scratch space", *client.scheduler_info()["workers"]):
            assert part in str(e.value)
        assert count(calls) == 0

    @pytest.mark.parametrize("root", ["relative/dir", "$NOT_SET_ANYWHERE/x", "/a/$NOT_SET_ANYWHERE"])
    def test_root_must_be_absolute(self, client, root, calls):
        """A relative root, and one with a variable that is not set, are refused by name."""
        with pytest.raises(cs.RootError, match=root.replace("$", r"\$")):
            cs.persist_to_disk(counted_frame(calls), name="x", root=root)
        assert count(calls) == 0

    def test_memory_backed_root_warns(self, client, tmp_path):
        """A root on a RAM disk works, with one warning."""
        root = f"/dev/shm/ckpt-spill-test-{os.getpid()}"
        with pytest.warns(UserWarning, match="takes memory") as caught:
            m = cs.persist_to_disk(da.ones(3), name="x", root=root)
        m.delete()
        os.rmdir(root)
        assert len(caught) == 1

    def test_asynchronous_client(self, client):
        """An asynchronous client is refused."""

        async def attempt():
            async with Client(client.scheduler.address, asynchronous=True) as c:
                with pytest.raises(cs.RefusedError, match="asynchronous"):
                    cs.persist_to_disk(da.ones(3), client=c)

        asyncio.run(attempt())


class TestFailure:
    def test_failed_run_leaves_no_trace(self, client, root):
        """A run that fails before anything is written leaves an empty root."""
        with pytest.raises(ZeroDivisionError):
            cs.persist_to_disk(delayed(lambda: 1 / 0)(), name="x", root=root)
        assert files_below(root) == []

    def test_no_temporary_files_and_no_manifest(self, client, root, calls):
        """A run that fails leaves whole partitions for the next one, and nothing else that counts."""
        with pytest.raises(RuntimeError, match="partition 3 fails"):
            cs.persist_to_disk(counted_frame(calls, fail_at=3), name="x", root=root)
        assert cs.list_checkpoints(root) == []
        with pytest.raises(cs.CheckpointNotFoundError):
            cs.rehydrate("x", root=root)
        assert not [f for f in files_below(root) if "tmp-" in f or re.search(r"g\d+\.json", f)]

    def test_delete(self, client, root, calls):
        """Deleting removes all files, twice without error, and those of failed runs with them."""
        m = cs.persist_to_disk(counted_frame(calls), name="x", root=root)
        m.delete()
        m.delete()
        assert files_below(root) == []
        assert cs.list_checkpoints(root) == []
        with dask.config.set({"ckpt-spill.patience": "200ms"}), pytest.raises(cs.MissingPartitionError, match="0 of 4"):
            cs.rehydrate(m)


def test_shuffled_frames(client, root):
    """The outputs of task and p2p shuffles are saved as they are."""
    ddf = dask.datasets.timeseries(end="2000-01-05", seed=1)
    for method in ("tasks", "p2p"):
        shuffled = ddf.shuffle("id", shuffle_method=method)
        m = cs.persist_to_disk(shuffled, name=method, root=root)
        back = cs.rehydrate(m)
        assert back.npartitions == shuffled.npartitions
        for n in range(back.npartitions):
            ids = set(back.partitions[n].id.compute())
            for other in range(n):
                assert ids.isdisjoint(back.partitions[other].id.compute())
        pd.testing.assert_series_equal(
            back.compute().sort_values(["id", "x"]).x, ddf.compute().sort_values(["id", "x"]).x
        )


def test_optimised_away_partitions(client, root, tmp_path):
    """The number of partitions after optimisation is the one that counts."""
    (tmp_path / "in").mkdir()
    frame = pd.DataFrame({c: np.arange(100) for c in "abcdefghij"})
    for i in range(6):
        frame.to_parquet(tmp_path / "in" / f"{i}.parquet")
    narrow = dd.read_parquet(tmp_path / "in", filesystem="arrow")[["a"]] + 1
    m = cs.persist_to_disk(narrow, name="x", root=root)
    assert m.npartitions == narrow.optimize().npartitions < narrow.npartitions
    assert len(cs.rehydrate(m)) == 600


def test_adaptive_from_nothing(root):
    """A cluster that has no worker yet, because nothing has asked for one, gets one."""
    with (
        LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster),
    ):
        cluster.adapt(minimum=0, maximum=1, interval="50ms")
        m = cs.persist_to_disk(da.arange(10, chunks=5), name="x", root=root)
        assert cs.rehydrate(m).sum().compute() == 45


def test_root_that_no_preflight_has_seen(client, tmp_path):
    """A worker that joined after the preflight checks its root before it writes."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    job = WriteJob(Run("x", 1, "0" * 16, "0" * 8), "array", (str(tmp_path / "open"),), "auto", durable=True)
    with pytest.raises(cs.RootError, match="everybody may write"):
        client.submit(write_partition, np.ones(3), 0, job).result()
    assert os.listdir(tmp_path / "open") == []
