"""What several callers, moved disks and changed circumstances do to one checkpoint."""

from __future__ import annotations

import json
import os
import re
import shutil
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

import ckpt_spill as cs
from ckpt_spill import commit, errands, saving
from ckpt_spill.collections import token_of
from tests.clusters import running_cluster


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


@pytest.fixture(autouse=True)
def in_this_process():
    """No cluster, unless a test starts one."""
    with dask.config.set(scheduler="synchronous"):
        yield


def numbers(value, n=6):
    return da.full(n, value, chunks=2) + 0


def files_below(path, end=""):
    return sorted(os.path.join(d, f) for d, _, fs in os.walk(path) for f in fs if f.endswith(end))


def manifest_files(root):
    return [f for f in files_below(root, ".json") if re.fullmatch(r"g\d+\.json", os.path.basename(f))]


def between(monkeypatch, name, do):
    """Do something once, when the call under test comes to an errand of that name."""
    real, pending = getattr(errands, name), [do]

    def errand(*args):
        if pending:
            pending.pop()()
        return real(*args)

    errand.__name__ = name
    monkeypatch.setattr(saving.errands, name, errand)


class TestOthersMeanwhile:
    @pytest.mark.parametrize("moment", ["begin", "seal", "commit"])
    def test_same_content(self, root, monkeypatch, moment):
        """When another call saves the same meanwhile, both end with its checkpoint."""
        theirs = []
        between(monkeypatch, moment, lambda: theirs.append(cs.persist_to_disk(numbers(1), name="x", root=root)))
        ours = cs.persist_to_disk(numbers(1), name="x", root=root)
        ours.verify()
        theirs[0].verify()
        assert ours == theirs[0] == cs.list_checkpoints(root)[0]
        assert len(files_below(root, ".part")) == 3

    @pytest.mark.parametrize("moment", ["begin", "seal", "commit"])
    def test_other_content(self, root, monkeypatch, moment):
        """When another call takes the name meanwhile, ours is a conflict and theirs is whole."""
        between(monkeypatch, moment, lambda: cs.persist_to_disk(numbers(2), name="x", root=root))
        with pytest.raises(cs.ConflictError, match="Call again"):
            cs.persist_to_disk(numbers(1), name="x", root=root)
        assert cs.rehydrate("x", root=root).compute().tolist() == [2] * 6
        assert len(cs.list_checkpoints(root)) == 1

    def test_generation_that_came_and_went(self, root, monkeypatch):
        """A run that slept while its generation was made, replaced and swept does not commit."""

        def others():
            cs.persist_to_disk(numbers(2), name="x", root=root)
            cs.persist_to_disk(numbers(3), name="x", root=root, overwrite=True)

        between(monkeypatch, "commit", others)
        with pytest.raises(cs.ConflictError):
            cs.persist_to_disk(numbers(1), name="x", root=root)
        assert cs.rehydrate("x", root=root).compute().tolist() == [3] * 6
        assert len(manifest_files(root)) == 1

    def test_deleted_meanwhile(self, root, monkeypatch):
        """A run that slept while another one came, swept its files and was deleted makes its partitions again."""
        between(monkeypatch, "commit", lambda: cs.persist_to_disk(numbers(2), name="x", root=root).delete())
        with dask.config.set({"ckpt-spill.patience": 0}):
            cs.persist_to_disk(numbers(1), name="x", root=root).verify()
        assert cs.rehydrate("x", root=root).compute().tolist() == [1] * 6

    def test_files_removed_meanwhile(self, root, monkeypatch):
        """A run whose files are gone, while their store is there, does not commit."""
        cs.persist_to_disk(numbers(0), name="keeps the store", root=root)
        between(monkeypatch, "commit", lambda: cs.persist_to_disk(numbers(2), name="x", root=root).delete())
        with pytest.raises(cs.ConflictError):
            cs.persist_to_disk(numbers(1), name="x", root=root)
        assert [m.name for m in cs.list_checkpoints(root)] == ["keeps the store"]

    def test_late_sweep(self, root, monkeypatch):
        """A sweep that comes late removes nothing that began after its commit."""
        cs.persist_to_disk(numbers(1), name="x", root=root)

        def others():
            cs.list_checkpoints(root)[0].delete()
            cs.persist_to_disk(numbers(3), name="x", root=root)

        between(monkeypatch, "sweep", others)
        cs.persist_to_disk(numbers(2), name="x", root=root, overwrite=True)
        cs.rehydrate("x", root=root).compute()
        assert cs.rehydrate("x", root=root).compute().tolist() == [3] * 6

    def test_disjoint_stores(self, tmp_path):
        """Runs that put their partitions on different drives still find out about each other."""
        roots = [str(tmp_path / "a"), str(tmp_path / "b")]
        first = cs.persist_to_disk(da.ones(3), name="x", root=roots)
        with pytest.raises(cs.CheckpointExistsError):
            cs.persist_to_disk(da.zeros(3), name="x", root=roots[::-1])
        first.verify()
        assert {s.root for s in first.stores} == set(roots)
        first.delete()
        assert files_below(tmp_path) == []

    def test_died_before_sweeping(self, root, monkeypatch):
        """What a run did not live to sweep is swept by the next call, and does not come back by a delete."""
        cs.persist_to_disk(numbers(1), name="x", root=root)
        monkeypatch.setattr(saving, "sweep", lambda *_: None)
        new = cs.persist_to_disk(numbers(2), name="x", root=root, overwrite=True)
        monkeypatch.undo()
        assert len(files_below(root, ".part")) == 6
        assert cs.persist_to_disk(numbers(2), name="x", root=root) == new
        assert len(files_below(root, ".part")) == 3
        monkeypatch.setattr(saving, "sweep", lambda *_: None)
        newer = cs.persist_to_disk(numbers(3), name="x", root=root, overwrite=True)
        newer.delete()
        assert cs.list_checkpoints(root) == []

    def test_trouble_in_the_sweep(self, root, monkeypatch):
        """Trouble after the commit is logged; the checkpoint counts."""

        def trouble():
            raise OSError(5, "the disk is tired")

        logged = []
        monkeypatch.setattr(commit.logger, "warning", lambda text, *args: logged.append(text % args))
        cs.persist_to_disk(numbers(1), name="x", root=root)
        between(monkeypatch, "sweep", trouble)
        cs.persist_to_disk(numbers(2), name="x", root=root, overwrite=True).verify()
        assert "the disk is tired" in logged[0]


class TestMovedAndCopied:
    def test_moved(self, root, tmp_path):
        """A store that was moved is still the same to every function that is told where it is."""
        m = cs.persist_to_disk(numbers(1), name="x", root=root)
        os.rename(root, tmp_path / "moved")
        assert cs.persist_to_disk(numbers(1), name="x", root=tmp_path / "moved") == m
        (found,) = cs.list_checkpoints(tmp_path / "moved")
        assert found == m
        found.verify()
        found.delete()
        assert files_below(tmp_path) == []

    def test_copied(self, root, tmp_path):
        """verify() and delete() of a copy's manifest are about the copy."""
        cs.persist_to_disk(numbers(1), name="x", root=root)
        copy = str(tmp_path / "copy")
        shutil.copytree(root, copy)
        os.unlink(files_below(copy, ".part")[0])
        with pytest.raises(cs.MissingPartitionError):
            cs.list_checkpoints(copy)[0].verify()
        cs.list_checkpoints(copy)[0].delete()
        assert cs.list_checkpoints(copy) == []
        cs.rehydrate("x", root=root).compute()

    def test_spelling_of_the_root_does_not_count(self, root, monkeypatch):
        """However the root is spelled, the reads have the same keys, so what is made of them has the same token."""
        cs.persist_to_disk(numbers(1), name="x", root=root)
        monkeypatch.setenv("MY_ROOT", root)
        names = {cs.rehydrate("x", root=r).name for r in (root, root + "/", "$MY_ROOT", [root, root + "2"])}
        assert len(names) == 1

    def test_two_that_do_not_know_of_each_other(self, tmp_path):
        """Of two checkpoints of one name in stores that never met the later one counts."""
        a, b = str(tmp_path / "a"), str(tmp_path / "b")
        cs.persist_to_disk(numbers(1), name="x", root=a)
        cs.persist_to_disk(numbers(2), name="x", root=b)
        assert cs.rehydrate("x", root=[a, b]).compute().tolist() == [2] * 6
        assert cs.rehydrate("x", root=[b, a]).compute().tolist() == [2] * 6
        cs.persist_to_disk(numbers(3), name="x", root=[a, b], overwrite=True)
        assert cs.rehydrate("x", root=[a, b]).compute().tolist() == [3] * 6
        assert len(manifest_files(tmp_path)) == 2

    def test_numbers_do_not_start_again(self, tmp_path):
        """What is left of an older generation on another disk does not count against one made after a delete."""
        a, b = str(tmp_path / "a"), str(tmp_path / "b")
        cs.persist_to_disk(numbers(0), name="keeps the store", root=a)
        cs.persist_to_disk(numbers(1), name="x", root=[b, a])
        cs.persist_to_disk(numbers(2), name="x", root=[b, a], overwrite=True)
        os.rename(b, tmp_path / "away")
        cs.persist_to_disk(numbers(3), name="x", root=a, overwrite=True).delete()
        last = cs.persist_to_disk(numbers(4), name="x", root=a)
        os.rename(tmp_path / "away", b)
        assert cs.rehydrate("x", root=[a, b]).compute().tolist() == [4] * 6
        with pytest.raises(cs.CheckpointExistsError):
            cs.persist_to_disk(numbers(2), name="x", root=[a, b])
        last.verify()

    def test_delete_leaves_nothing_to_come_back(self, tmp_path):
        """Deleting the latest generation also takes earlier ones from stores it was never in."""
        roots = {n: str(tmp_path / n) for n in "abc"}
        with dask.config.set({"ckpt-spill.root": list(roots.values())}):
            cs.persist_to_disk(numbers(1), name="x", root=[roots["a"], roots["b"]])
            os.rename(roots["a"], tmp_path / "away")
            last = cs.persist_to_disk(numbers(2), name="x", root=[roots["b"], roots["c"]], overwrite=True)
            os.rename(tmp_path / "away", roots["a"])
            last.delete()
            assert cs.list_checkpoints() == []
            assert files_below(tmp_path, ".part") == []

    def test_the_replaced_one_is_warned_of(self, tmp_path, monkeypatch):
        """Who replaces a checkpoint is told which stores that have it are out of reach, where it can be found later."""
        roots = [str(tmp_path / "a"), str(tmp_path / "b")]
        old = cs.persist_to_disk(numbers(1), name="x", root=roots)
        logged = []
        monkeypatch.setattr(saving.logger, "warning", lambda text, *args: logged.append(text % args))
        os.rename(roots[1], tmp_path / "away")
        cs.persist_to_disk(numbers(2), name="x", root=roots[0], overwrite=True)
        [away] = [ref for ref in old.stores if ref.root == roots[1]]
        assert [text for text in logged if f"store {away.id} ({away.root} on host {away.host})" in text] == logged[-1:]
        os.rename(tmp_path / "away", roots[1])
        assert cs.rehydrate("x", root=roots[1]).npartitions == 3
        logged.clear()
        cs.persist_to_disk(numbers(3), name="x", root=roots, overwrite=True)
        assert logged == []

    def test_replaced_in_another_root(self, root):
        """A checkpoint in the configured root is replaced by one elsewhere, also for those who look there."""
        cs.persist_to_disk(numbers(1), name="x")
        new = cs.persist_to_disk(numbers(2), name="x", root=root, overwrite=True)
        assert cs.persist_to_disk(numbers(2), name="x", root=root) == new
        assert cs.rehydrate("x", root=root).compute().tolist() == [2] * 6
        with pytest.raises(cs.CheckpointNotFoundError):
            cs.rehydrate("x")


class TestTroubleInOneStore:
    def test_commit_that_fails_in_a_later_store(self, tmp_path, monkeypatch):
        """When a later store cannot take the manifest the call fails, and the previous checkpoint still counts."""
        roots = [str(tmp_path / "a"), str(tmp_path / "b")]
        cs.persist_to_disk(numbers(1), name="x", root=roots)
        commits = []
        real = errands.commit

        def commit(*args):
            commits.append(args)
            if len(commits) == 2:
                raise cs.DiskFullError("no room for the manifest")
            return real(*args)

        monkeypatch.setattr(saving.errands, "commit", commit)
        with pytest.raises(cs.DiskFullError, match="no room for the manifest"):
            cs.persist_to_disk(numbers(2), name="x", root=roots, overwrite=True)
        monkeypatch.undo()
        assert cs.rehydrate("x", root=roots).compute().tolist() == [1] * 6
        cs.persist_to_disk(numbers(2), name="x", root=roots, overwrite=True)
        assert cs.rehydrate("x", root=roots).compute().tolist() == [2] * 6

    def test_winner_has_to_be_whole(self, root, monkeypatch):
        """After a conflict a checkpoint of the same content that has lost files is no success."""
        cs.persist_to_disk(numbers(1), name="x", root=root)
        os.unlink(files_below(root, ".part")[0])

        def gone():
            os.unlink(files_below(root, ".part")[0])
            raise cs.ConflictError("the disk is gone")

        between(monkeypatch, "seal", gone)
        with pytest.raises(cs.ConflictError, match="the disk is gone"):
            cs.persist_to_disk(numbers(1), name="x", root=root)


class TestAlreadyThere:
    def test_needs_no_room(self, root):
        """What is there already is returned though nothing could be written any more."""
        m = cs.persist_to_disk(numbers(1), name="x", root=root)
        with dask.config.set({"ckpt-spill.min-free": str(1 << 60)}):
            assert cs.persist_to_disk(numbers(1), name="x", root=root) == m
            assert cs.checkpoint(numbers(1), "x", root=root).compute().tolist() == [1] * 6
            with pytest.raises(cs.RootError):
                cs.persist_to_disk(numbers(2), name="x", root=root, overwrite=True)

    def test_durable_afterwards(self, root, monkeypatch):
        """What was written without flushing is flushed when the same is asked for with it."""
        cs.persist_to_disk(numbers(1), name="x", root=root, durable=False)
        flushed = []
        real = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", lambda fd: flushed.append(os.readlink(f"/proc/self/fd/{fd}")) or real(fd))
        cs.persist_to_disk(numbers(1), name="x", root=root)
        assert set(files_below(root, ".part")) <= set(flushed)

    def test_damaged_manifest_in_the_store(self, root):
        """A damaged manifest is named with its path; overwrite=True replaces it."""
        cs.persist_to_disk(numbers(1), name="x", root=root)
        (path,) = manifest_files(root)
        with open(path, "w") as f:
            f.write("{")
        for attempt in (
            lambda: cs.rehydrate("x", root=root),
            lambda: cs.persist_to_disk(numbers(1), name="x", root=root),
        ):
            with pytest.raises(cs.ManifestError, match=f"{path}.*overwrite=True"):
                attempt()
        assert cs.list_checkpoints(root) == []
        cs.persist_to_disk(numbers(1), name="x", root=root, overwrite=True)
        assert cs.rehydrate("x", root=root).compute().tolist() == [1] * 6

    def test_manifest_of_another_generation(self, root):
        """A manifest in the place of another generation's is not believed."""
        cs.persist_to_disk(numbers(1), name="x", root=root)
        (path,) = manifest_files(root)
        shutil.copy(path, os.path.join(os.path.dirname(path), "g00000009.json"))
        with pytest.raises(cs.ManifestError, match=r"g00000009.json is the manifest of generation \d+"):
            cs.rehydrate("x", root=root)


class TestTokens:
    def test_read_parquet_is_known_in_another_process(self, tmp_path):
        """The token of what is read from parquet files is the same in every process, until the files change."""
        pd.DataFrame({"a": range(4)}).to_parquet(tmp_path / "0.parquet")
        code = (
            "import sys, dask.dataframe as dd\nfrom ckpt_spill.collections import token_of\n"
            "ddf = dd.read_parquet(sys.argv[1])\nprint(token_of(ddf), token_of(ddf.shuffle('a').a + 1))"
        )
        command = [sys.executable, "-c", code, str(tmp_path)]
        seen = {subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)}
        assert len(seen) == 1
        ddf = dd.read_parquet(tmp_path)
        assert f"{token_of(ddf)} {token_of(ddf.shuffle('a').a + 1)}\n".encode() in seen
        assert token_of(ddf) != token_of(ddf[["a"]] + 1)
        pd.DataFrame({"a": range(5)}).to_parquet(tmp_path / "0.parquet")
        assert token_of(dd.read_parquet(tmp_path)) != token_of(ddf)

    def test_shared_expressions_are_looked_at_once(self, tmp_path):
        """An expression that uses another one over and over has its token at once."""
        pd.DataFrame({"a": range(4), "b": range(4)}).to_parquet(tmp_path / "0.parquet")
        ddf = dd.read_parquet(tmp_path)
        for n in range(40):
            ddf = ddf.assign(**{f"c{n}": ddf.a + ddf.b})
        assert token_of(ddf) == token_of(ddf)

    def test_message_tells_the_token(self, root):
        """The way out that the refusal names works."""
        m = cs.persist_to_disk(da.random.random(4, chunks=2), name="x", root=root)
        with pytest.raises(cs.CheckpointExistsError, match=f"token='{m.token}'"):
            cs.persist_to_disk(da.random.random(4, chunks=2), name="x", root=root)
        assert cs.persist_to_disk(da.random.random(4, chunks=2), name="x", token=m.token, root=root) == m


class TestArguments:
    @pytest.mark.parametrize("columns", ["a", 5, {"a": 1}])
    def test_columns_is_a_list(self, root, columns):
        """A string is not taken for a list of letters."""
        m = cs.persist_to_disk(dd.from_dict({"a": [1], "b": [2]}, npartitions=1), name="x", root=root)
        with pytest.raises(cs.RefusedError, match="list of labels"):
            cs.rehydrate(m, columns=columns)

    def test_columns_are_those_of_frames(self, root):
        """Series and indexes have no columns to choose from."""
        ddf = dd.from_dict({"a": [1], "b": [2]}, npartitions=1)
        for thing in (ddf.a, ddf.index):
            m = cs.persist_to_disk(thing, root=root)
            with pytest.raises(cs.RefusedError, match="no columns"):
                cs.rehydrate(m, columns=["a"])

    def test_place_of_the_manifest_is_checked_first(self, root, tmp_path):
        """A place where no manifest can be saved is refused before anything is computed."""
        with pytest.raises(cs.RefusedError, match="nowhere"):
            cs.persist_to_disk(delayed(lambda: 1 / 0)(), root=root, manifest=tmp_path / "nowhere" / "m.json")

    def test_odd_file_names(self, root, tmp_path):
        """A manifest's file may have characters that mean something in URLs, and may be named after a checkpoint."""
        m = cs.persist_to_disk(numbers(1), name="x", root=root, manifest=tmp_path / "a#b?c.json")
        assert os.listdir(tmp_path).count("a#b?c.json") == 1
        assert cs.Manifest.load(tmp_path / "a#b?c.json") == m

    def test_not_a_manifest(self, root, tmp_path):
        """What is neither a manifest nor a name is refused."""
        for thing in (None, 5, numbers(1)):
            with pytest.raises(cs.RefusedError, match="name of a checkpoint"):
                cs.rehydrate(thing, root=root)
        with pytest.raises(cs.ManifestError, match="is a directory"):
            cs.Manifest.load(tmp_path)

    def test_names_that_look_like_addresses(self, root):
        """A checkpoint may have any name."""
        for name in ("s3://bucket/key", "pyproject.toml", "../x", "a\0b", "\ud800", "x" * 1000):
            cs.persist_to_disk(numbers(1), name=name, root=root)
            assert cs.rehydrate(name, root=root).compute().tolist() == [1] * 6


class TestOddCollections:
    def test_bag_of_iterators_with_another_reader(self, root):
        """A partition that can be read only once is saved whole though something else reads it, too."""
        bag = db.from_sequence(range(6), npartitions=3).map_partitions(iter)
        manifests = cs.persist_to_disk(
            bag, bag.map_partitions(lambda p: [sum(1 for _ in p)]), name=["b", "n"], root=root
        )
        assert [list(cs.rehydrate(m)) for m in manifests] == [list(range(6)), [2, 2, 2]]

    def test_mixed_kinds_without_a_client(self, root):
        """Kinds that prefer different local schedulers can be saved together."""
        with dask.config.set(scheduler=None):
            manifests = cs.persist_to_disk(db.range(4, npartitions=2), numbers(1), name=["b", "a"], root=root)
            assert cs.rehydrate(manifests[0]).sum().compute(scheduler="synchronous") == 6

    def test_no_partitions(self, root):
        """A bag without partitions comes back without."""
        m = cs.persist_to_disk(db.Bag({}, "empty", 0), name="x", root=root)
        assert m.npartitions == 0
        assert cs.rehydrate(m).npartitions == 0

    def test_generators_are_refused(self, root):
        """A value that is a generator cannot be saved, and is named."""
        with pytest.raises(cs.UnserializableError, match=r"partition 0 .*generator"):
            cs.persist_to_disk(delayed(lambda: (i for i in range(3)))(), name="x", root=root)


@pytest.mark.slow
def test_from_inside_a_task(root):
    """A task may save a collection though it holds the only thread."""

    def outer(root):
        return cs.persist_to_disk(da.arange(10, chunks=5), name="x", root=root).npartitions

    with running_cluster(1) as client, dask.config.set(scheduler=None):
        assert client.submit(outer, root).result(timeout=60) == 2
        assert cs.rehydrate("x", root=root).sum().compute() == 45


def test_manifest_says_little(root):
    """Even for tiny partitions the manifest is no larger than they are together, and names no host but in stores."""
    m = cs.persist_to_disk(da.from_array(np.arange(40_000, dtype="i4"), chunks=10_000), root=root)
    assert len(m.to_json()) < 1200
    assert json.loads(m.to_json())["body"]["durable"] is True
