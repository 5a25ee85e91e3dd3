"""Reading back: laziness, keys, projection, other clients and none, damage."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask import delayed
from dask.core import flatten
from distributed import Client

import ckpt_spill as cs
from ckpt_spill.store import descriptors
from tests.clusters import running_cluster


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


@pytest.fixture
def frame():
    text = pd.array([f"row {i}" for i in range(40)], pd.StringDtype("pyarrow"))  # as dask would make it
    return pd.DataFrame({"a": range(40), "b": np.linspace(0, 1, 40), "c": text})


def part_files(root):
    found = [os.path.join(d, f) for d, _, fs in os.walk(root) for f in fs if f.endswith(".part")]
    return sorted(found, key=os.path.basename)


def graph_of(collection):
    (optimized,) = dask.optimize(collection, traverse=False)
    return dict(optimized.__dask_graph__())


class TestLazy:
    def test_nothing_of_the_past(self, root):
        """The collection is one layer of reads whose size does not grow with the history of the one saved."""
        x = da.ones(100, chunks=10)
        for _ in range(60):
            x = x + 1
        back = cs.rehydrate(cs.persist_to_disk(x, name="x", root=root))
        assert len(back.dask.layers) == 1
        assert len(back.dask) == len(graph_of(back)) == 10
        assert back.sum().compute() == 6100

    def test_keys_name_the_content(self, root):
        """The same checkpoint gives the same keys, another one, another generation and other columns give others."""
        m = cs.persist_to_disk(da.ones(9, chunks=3), name="x", root=root)
        first, second = cs.rehydrate(m), cs.rehydrate("x", root=root)
        assert dask.base.tokenize(cs.rehydrate(m)) == dask.base.tokenize(cs.rehydrate(m))
        assert first.name == cs.rehydrate(m).name
        other = cs.persist_to_disk(da.ones(9, chunks=3), name="y", root=root)
        newer = cs.persist_to_disk(da.zeros(9, chunks=3), name="x", root=root, overwrite=True)
        names = {first.name, cs.rehydrate(other).name, cs.rehydrate(newer).name}
        assert len(names) == 3
        assert second.chunks == first.chunks

    @pytest.mark.parametrize(
        "make", [lambda: da.ones(9, chunks=3), lambda: db.range(9, npartitions=3), lambda: delayed(5)]
    )
    def test_reads_are_not_fused(self, root, make):
        """Reads stay tasks of their own when the graph is optimised, so that a scheduler can tell them."""
        back = cs.rehydrate(cs.persist_to_disk(make(), name="x", root=root))
        keys = set(flatten(back.__dask_keys__()))
        follow = back.map(lambda v: v) if isinstance(back, db.Bag) else back + 1
        assert keys <= graph_of(follow).keys()

    def test_frame_reads_are_not_fused(self, root, frame):
        """Nor are those of frames."""
        back = cs.rehydrate(cs.persist_to_disk(dd.from_pandas(frame, npartitions=3), name="x", root=root))
        graph = dict((back + back).optimize().__dask_graph__())
        assert set(back.__dask_keys__()) <= graph.keys()

    def test_nothing_is_read(self, root):
        """Rehydrating opens no partition file: they may be unreadable until something is computed."""
        m = cs.persist_to_disk(da.arange(9, chunks=3), name="x", root=root)
        for f in part_files(root):
            os.truncate(f, os.path.getsize(f))  # unchanged size, which is all that is looked at
            with open(f, "r+b") as file:
                file.write(b"\0" * os.path.getsize(f))
        back = cs.rehydrate(m)
        with pytest.raises(cs.CorruptPartitionError):
            back.compute()

    def test_a_layer_pickles_small(self, root):
        """A graph is pickled as the manifest, not as its tasks, and culling survives it."""
        back = cs.rehydrate(cs.persist_to_disk(da.arange(3000, chunks=1), name="x", root=root))
        assert len(pickle.dumps(back.dask)) / 3000 < 300
        part = pickle.loads(pickle.dumps(back[7:9]))
        assert part.compute().tolist() == [7, 8]


class TestProjection:
    def test_only_those_columns_are_read(self, root, frame, monkeypatch):
        """Selecting columns, before or after other work, reads the bytes of no other."""
        wide = pd.DataFrame({c: np.random.default_rng(0).random(50_000) for c in "abcdefgh"})
        ddf = dd.from_pandas(wide, npartitions=2)
        m = cs.persist_to_disk(ddf, name="x", root=root, codec="none")
        read = []
        real = os.preadv
        monkeypatch.setattr(os, "preadv", lambda fd, buffers, *rest: read.append(n := real(fd, buffers, *rest)) or n)
        assert descriptors.os is os
        for narrow in (
            cs.rehydrate(m)[["c"]].sum(),
            cs.rehydrate(m)["c"].sum(),
            cs.rehydrate(m, columns=["c"]).sum(),
            (cs.rehydrate(m).c + 1).sum(),
        ):
            read.clear()
            with dask.config.set(scheduler="synchronous"):
                narrow.compute()
            assert 800_000 // 2 <= sum(read) < 500_000

    def test_columns(self, root, frame):
        """columns= selects in the order given; an unknown one is a KeyError at once; other kinds have none."""
        m = cs.persist_to_disk(dd.from_pandas(frame, npartitions=3), name="x", root=root)
        pd.testing.assert_frame_equal(cs.rehydrate(m, columns=["c", "a"]).compute(), frame[["c", "a"]])
        with pytest.raises(KeyError, match="nope"):
            cs.rehydrate(m, columns=["nope"])
        x = cs.persist_to_disk(da.ones(3), name="y", root=root)
        with pytest.raises(cs.RefusedError, match="no columns"):
            cs.rehydrate(x, columns=["a"])

    @pytest.mark.parametrize(
        "columns",
        [
            ["q", "q", "r"],
            [1, "a", None],
            [(1, 2), "x", 3.5],
            pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)]),
            pd.to_datetime(["2030", "2031", "2032"]),
        ],
    )
    def test_odd_labels(self, root, columns):
        """Whatever the labels, a projection gives what it gives on the original."""
        frame = pd.DataFrame(np.arange(30.0).reshape(10, 3), columns=columns)
        ddf = dd.from_pandas(frame, npartitions=2)
        back = cs.rehydrate(cs.persist_to_disk(ddf, name="x", root=root))
        pd.testing.assert_frame_equal(back.compute(), frame)
        label = frame.columns[0]
        expected = frame[[label]]
        pd.testing.assert_frame_equal(back[[label]].compute(), expected)

    def test_index_and_length(self, root, frame):
        """The index alone, lengths and two-sided use of a frame are right after projection."""
        back = cs.rehydrate(cs.persist_to_disk(dd.from_pandas(frame, npartitions=3), name="x", root=root))
        assert len(back) == 40
        pd.testing.assert_index_equal(back.index.compute(), frame.index)
        assert back.index.size.compute() == 40
        got = back[back.b > 0.5].merge(back[["a", "c"]], on="a").compute()
        expected = frame[frame.b > 0.5].merge(frame[["a", "c"]], on="a")
        pd.testing.assert_frame_equal(got.sort_values("a").reset_index(drop=True), expected)

    def test_partitions(self, root, frame):
        """Some partitions can be picked, and only those are read."""
        m = cs.persist_to_disk(dd.from_pandas(frame, npartitions=4), name="x", root=root)
        back = cs.rehydrate(m)
        for f in part_files(root)[2:]:
            os.unlink(f)
        pd.testing.assert_frame_equal(back.partitions[[0, 1]].compute(), frame[:20])
        pd.testing.assert_series_equal(back.partitions[1].a.compute(), frame.a[10:20])


class TestElsewhere:
    def test_survives_restart(self, root, frame):
        """It works after a restart, in a second client, and pickled, in another process."""
        with running_cluster() as client:
            m = cs.persist_to_disk(dd.from_pandas(frame, npartitions=4), name="x", root=root)
            back = cs.rehydrate(m)
            client.restart()
            pd.testing.assert_frame_equal(back.compute(), frame)
            with Client(client.scheduler.address) as second:
                pd.testing.assert_frame_equal(second.compute(back).result(), frame)
            there = pickle.dumps(back)
        pd.testing.assert_frame_equal(pickle.loads(there).compute(scheduler="threads"), frame)
        code = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).a.sum().compute())"
        out = subprocess.run([sys.executable, "-c", code], input=there, capture_output=True, check=True)
        assert out.stdout.strip() == b"780"

    def test_moved_store(self, root, frame, tmp_path):
        """A store that is mounted elsewhere is found by its id where root= says."""
        m = cs.persist_to_disk(dd.from_pandas(frame, npartitions=4), name="x", root=root)
        os.rename(root, tmp_path / "moved")
        with pytest.raises(cs.MissingPartitionError, match="root="):
            cs.rehydrate(m)
        pd.testing.assert_frame_equal(cs.rehydrate(m, root=tmp_path / "moved").compute(), frame)

    def test_another_store_in_its_place(self, root, frame, tmp_path):
        """Another store at the same path is not taken for the one that is gone."""
        m = cs.persist_to_disk(dd.from_pandas(frame, npartitions=2), name="x", root=root)
        os.rename(root, tmp_path / "moved")
        cs.persist_to_disk(dd.from_pandas(frame, npartitions=2), name="x", root=root)
        with pytest.raises(cs.MissingPartitionError):
            cs.rehydrate(m)

    @pytest.mark.parametrize("how", [str, os.fspath, lambda p: "file://" + str(p), lambda p: p])
    def test_manifest_addresses(self, root, tmp_path, how):
        """A manifest is found by path, by URL, by name in the stores."""
        m = cs.persist_to_disk(da.arange(6, chunks=2), name="x", root=root, manifest=tmp_path / "m.json")
        assert cs.rehydrate(how(tmp_path / "m.json")).sum().compute() == 15
        assert cs.Manifest.load(how(tmp_path / "m.json")) == m

    def test_memory_url(self, root):
        """Manifests go through fsspec."""
        m = cs.persist_to_disk(da.arange(6, chunks=2), name="x", root=root)
        m.save("memory://somewhere/m.json")
        assert cs.rehydrate("memory://somewhere/m.json").sum().compute() == 15

    def test_unknown(self, root):
        """An unknown name says what there is; an unknown file says so."""
        cs.persist_to_disk(da.ones(3), name="there", root=root)
        with pytest.raises(cs.CheckpointNotFoundError, match="'there'"):
            cs.rehydrate("not there", root=root)
        with pytest.raises(cs.CheckpointNotFoundError):
            cs.rehydrate("memory://no/such")

    def test_list(self, client, tmp_path):
        """All checkpoints in reach are listed by name, also those of several roots."""
        roots = [str(tmp_path / "a"), str(tmp_path / "b")]
        ms = [cs.persist_to_disk(da.ones(3), name=n, root=r) for n, r in zip("yx", roots, strict=True)]
        assert cs.list_checkpoints(roots) == ms[::-1]
        assert cs.list_checkpoints(tmp_path / "none") == []


class TestDamage:
    def test_missing_are_all_named(self, root):
        """Missing partitions are listed before anything is computed, with what is still there."""
        m = cs.persist_to_disk(da.arange(20, chunks=2), name="x", root=root)
        for n in (3, 7):
            os.unlink(part_files(root)[n - (n > 3)])
        with pytest.raises(cs.MissingPartitionError, match=r"8 of 10 partitions present.*: 3, 7,.*" + root) as e:
            cs.rehydrate(m)
        assert e.value.partitions == [3, 7]

    def test_lost_after_rehydrating(self, root):
        """A file lost later is named by the read, with what is left."""
        back = cs.rehydrate(cs.persist_to_disk(da.arange(20, chunks=2), name="x", root=root))
        os.unlink(part_files(root)[3])
        with pytest.raises(cs.MissingPartitionError, match=r"partition 3 of checkpoint 'x'.*9 other partition"):
            back.compute(scheduler="synchronous")

    def test_verify(self, client, root):
        """verify() names every damaged and missing file, and passes on a sound checkpoint."""
        m = cs.persist_to_disk(da.arange(20, chunks=2), name="x", root=root)
        m.verify()
        files = part_files(root)
        with open(files[2], "r+b") as f:
            f.seek(20)
            f.write(b"\xff")
        os.unlink(files[5])
        with pytest.raises(cs.CorruptPartitionError, match="1 files are damaged and 1 missing") as e:
            m.verify()
        assert len(e.value.problems) == 2
        os.unlink(files[2])
        with pytest.raises(cs.MissingPartitionError) as e:
            m.verify()
        assert e.value.partitions == [2, 5]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (pickle.dumps([1]), "not a manifest"),
            (b"", "not a manifest"),
            (b"[]", "not a manifest"),
            (b"[" * 100_000, "not a manifest"),
            (b'{"ckpt-spill-manifest": 2}', "version 2"),
            (b'{"ckpt-spill-manifest": 1}', "not a whole"),
            (b'{"ckpt-spill-manifest": 1, "blake3": "", "body": {}}', "damaged"),
        ],
    )
    def test_bad_manifests(self, tmp_path, content, message):
        """What is no manifest, a damaged one or a newer one is refused by name."""
        (tmp_path / "m.json").write_bytes(content)
        with pytest.raises(cs.ManifestError, match=message) as e:
            cs.Manifest.load(tmp_path / "m.json")
        assert "m.json" in str(e.value)

    def test_every_change_of_a_manifest_is_found(self, root, tmp_path):
        """No single changed byte of a manifest gives another manifest."""
        m = cs.persist_to_disk(da.arange(4, chunks=2), name="x", root=root)
        good = m.to_json()
        for position in range(0, len(good), 7):
            bad = bytearray(good)
            bad[position] ^= 1
            try:
                assert cs.Manifest.from_json(bytes(bad), "it") == m
            except cs.ManifestError:
                continue

    def test_hash_of_its_own_does_not_help(self, root, tmp_path):
        """A manifest whose own hash was made to fit still has to be whole."""
        m = cs.persist_to_disk(da.arange(4, chunks=2), name="x", root=root)
        body = json.loads(m.to_json())["body"]
        from blake3 import blake3

        def forged(**changes):
            text = json.dumps(body | changes, sort_keys=True, separators=(",", ":")).encode()
            return b'{"ckpt-spill-manifest":1,"blake3":"%s","body":%s}' % (blake3(text).hexdigest().encode(), text)

        assert cs.Manifest.from_json(forged(), "it") == m
        for changes in (
            {"partitions": {}},
            {"partitions": body["partitions"] | {"nbytes": [1]}},
            {"partitions": body["partitions"] | {"holders": [[5], [0]]}},
            {"partitions": body["partitions"] | {"digests": "AAAA"}},
            {"partitions": body["partitions"] | {"digests": "?"}},
            {"stores": [{}]},
            {"surplus": 1},
            {"generation": "x" * 3, "stores": 7},
        ):
            with pytest.raises(cs.ManifestError):
                cs.Manifest.from_json(forged(**changes), "it")


class TestCheckpoint:
    def test_second_time_reads(self, client, root, tmp_path):
        """The first call computes and saves, the next one only reads."""
        (tmp_path / "calls").mkdir()

        def part(i):
            (tmp_path / "calls" / os.urandom(8).hex()).touch()
            return pd.DataFrame({"i": [i]})

        for _ in range(2):
            ddf = dd.from_map(part, range(3), meta={"i": int})
            back = cs.checkpoint(ddf, "stage-1", root=root)
            assert back.i.sum().compute() == 3
        assert len(os.listdir(tmp_path / "calls")) == 3

    def test_changed_source_is_refused(self, client, root):
        """A collection that is not the one that was saved is refused, and replaced when asked."""
        cs.checkpoint(da.ones(3), "x", root=root)
        with pytest.raises(cs.CheckpointExistsError):
            cs.checkpoint(da.zeros(3), "x", root=root)
        assert cs.checkpoint(da.zeros(3), "x", root=root, overwrite=True).sum().compute() == 0
