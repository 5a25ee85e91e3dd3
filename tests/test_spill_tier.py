"""The disk tier when something is wrong with its files or its drives, and what it says of what it did."""

from __future__ import annotations

import errno
import os
import shutil

import numpy as np
import pytest
from distributed.metrics import context_meter

import ckpt_spill as cs
from ckpt_spill.clean import CleanFile
from ckpt_spill.spill import tier as tier_module
from ckpt_spill.spill.area import SpillArea
from ckpt_spill.spill.host import HostSpill
from ckpt_spill.spill.tier import DiskTier
from ckpt_spill.store import partition as partition_files
from ckpt_spill.store.partition import Identity
from ckpt_spill.store.runs import Run
from ckpt_spill.store.store import Store
from tests.spilling import spilled_files
from tests.test_spill_host import disk_tier


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


@pytest.fixture
def memory(root):
    made = HostSpill(disk_tier(root), 10**9)
    yield made
    made.close()


@pytest.fixture
def two_drives(tmp_path):
    areas = [SpillArea(Store.create(str(tmp_path / name))) for name in "ab"]
    made = HostSpill(DiskTier(areas, codec="auto", max_weight=False, threads=1), 10**9)
    yield made, areas
    made.close()


def checkpointed(root):
    """A value, and the partition file of a checkpoint that has it."""
    store, run, value = Store.create(root), Run("x", 1, "0" * 16, "0" * 8), np.random.default_rng(1).random(50_000)
    identity = Identity("x", 1, 0)
    written = store.publish(run, 0, lambda fd: partition_files.write(fd, value, identity), needed=0)
    return value, CleanFile(store, store.partition_path(run, 0, written.digest), identity, written.digest, None)


def unlink_fails(path):
    raise OSError(errno.EROFS, "read-only", path)


class TestWrongFiles:
    @pytest.mark.parametrize("damage", [os.unlink, lambda path: os.truncate(path, 100)])
    def test_an_error_with_a_way_out(self, memory, root, damage):
        """It says which file, of which key, and what to do."""
        memory["some-key"] = np.arange(100_000)
        memory.evict()
        [path] = spilled_files(root)
        damage(path)
        with pytest.raises((cs.MissingPartitionError, cs.CorruptPartitionError), match="compute it again") as e:
            memory["some-key"]
        assert path in str(e.value)
        assert "some-key" in str(e.value)

    @pytest.mark.parametrize("again", [1, np.arange(10)])
    def test_a_file_that_cannot_be_removed(self, memory, monkeypatch, caplog, again):
        """A new value is not lost for it; nor is anything else."""
        memory["x"] = np.arange(1000)
        memory.evict()
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", unlink_fails)
            memory["x"] = again
        assert np.array_equal(memory["x"], again)
        assert "read-only" in caplog.text
        memory.evict()
        assert np.array_equal(memory["x"], again)

    def test_deleting_what_cannot_be_removed(self, memory, monkeypatch):
        memory["x"] = np.arange(1000)
        memory.evict()
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", unlink_fails)
            del memory["x"]
        assert "x" not in memory
        assert memory.spilled_total == (0, 0)


class TestDrives:
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
    def test_one_that_fails_is_passed_over(self, two_drives, monkeypatch, number):
        memory, areas = two_drives
        os_open = os.open

        def failing(path, *args, **kwargs):
            if str(path).startswith(areas[0].directory):
                raise OSError(number, os.strerror(number), path)
            return os_open(path, *args, **kwargs)

        monkeypatch.setattr(os, "open", failing)
        for n in range(6):
            memory[n] = np.arange(1000) + n
            assert memory.evict() > 0
        assert len(os.listdir(areas[1].directory)) == 6

    def test_one_that_is_gone_is_passed_over(self, two_drives):
        memory, areas = two_drives
        shutil.rmtree(areas[0].store.root)
        for n in range(6):
            memory[n] = np.arange(1000) + n
            assert memory.evict() > 0
        assert all((memory[n] == np.arange(1000) + n).all() for n in range(6))


class TestLinks:
    @pytest.mark.parametrize("error", [OSError(errno.EMFILE, "too many"), cs.CorruptPartitionError("bad")])
    def test_one_that_cannot_be_read_is_no_file_left(self, memory, root, monkeypatch, error):
        """The value is written, as any other."""
        value, file = checkpointed(root)
        memory.noted["x"] = file
        memory["x"] = value

        def failing(*args):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(tier_module.partition_files, "read_footer", failing)
            memory.evict()
        assert len(spilled_files(root)) == 1
        assert memory.spilled_total.disk > 0
        assert (memory["x"] == value).all()

    def test_set_again_while_it_is_on_disk(self, memory, root):
        """A clean value that was read back and evicted is let go for nothing when it comes once more."""
        value, file = checkpointed(root)
        for _ in range(3):
            memory.noted["x"] = file
            memory["x"] = value.copy()
            memory.evict()
            assert (memory["x"] == value).all()
            memory.evict()
        assert memory.spilled_total.disk == 0
        assert len(spilled_files(root)) == 1
        memory["x"] = 1
        assert spilled_files(root) == []

    @pytest.mark.parametrize("other", [{"columns": ("a",)}, {"library": "pandas"}])
    def test_set_again_as_another_reading(self, memory, root, other):
        """The file is the same, not what is made of it: the link of the one before is not taken for this one's."""
        value, file = checkpointed(root)
        for reading in (file, file._replace(**other)):
            memory.noted["x"] = reading
            memory["x"] = value
            if reading is file:
                memory.evict()
        assert memory.tier.clean["x"] == reading
        assert spilled_files(root) == []

    def test_a_reading_as_another_library_is_no_file_of_a_checkpoint(self, memory, root):
        """Nor that of an alias: a link of the file would be of the library that it was saved from."""
        value, file = checkpointed(root)
        for library, whole in (("pandas", False), (None, True)):
            memory.noted["x"] = file._replace(library=library)
            memory["x"] = memory["alias"] = value
            memory.learn_alias("alias", "x")
            while memory.evict() != -1:
                pass
            assert memory.spilled_total.disk == 0
            assert [memory.tier.whole_file(key) is not None for key in ("x", "alias")] == [whole, whole]

    def test_an_alias_that_was_written_before_it_was_known(self, memory, root):
        """The link that it gets then is gone with it, too."""
        value, file = checkpointed(root)
        memory.noted["target"] = file
        memory["target"] = value
        memory.evict()
        assert (memory["target"] == value).all()  # whose link is kept
        memory["alias"] = value.copy()
        while memory.evict() != -1:
            pass
        assert memory.learn_alias("alias", "target")
        assert len(spilled_files(root)) == 3
        memory["alias"] = 1
        assert len(spilled_files(root)) == 1
        assert (memory["target"] == value).all()

    def test_learnt_twice(self, memory, root):
        """What is heard a second time of a key does not orphan the link that it has."""
        value, file = checkpointed(root)
        memory["x"] = value
        for _ in range(2):
            memory.learn("x", file)
            memory.evict()
            assert (memory["x"] == value).all()
        del memory["x"]
        assert spilled_files(root) == []


def test_what_is_refused_is_not_counted(root):
    """Beyond the limit nothing stays on disk, and the metrics know nothing of it."""
    memory = HostSpill(disk_tier(root, max_spill=100_000), 10**9)
    counted = []
    with context_meter.add_callback(lambda label, value, unit: counted.append((label, unit, value))):
        memory["small"] = np.random.default_rng(1).bytes(50_000)
        memory.evict()
        memory["large"] = np.random.default_rng(1).bytes(90_000)
        assert memory.evict() == -1
    written = sum(value for label, unit, value in counted if (label, unit) == ("disk-write", "bytes"))
    assert written == memory.spilled_total.disk == sum(map(os.path.getsize, spilled_files(root)))
    memory.close()


class Unproven:
    """Pickles, but its pickle cannot be loaded."""

    def __reduce__(self):
        return _fail, ()


def _fail():
    raise RuntimeError("cannot be loaded")


def test_what_was_not_proven_to_load_is_no_file_of_a_checkpoint(memory):
    """Spilling takes no proof, which needs the memory again; a checkpoint outlives the value, and does."""
    memory["x"] = [Unproven()]
    memory["y"] = [np.arange(3), "known to load"]
    memory.evict()
    memory.evict()
    assert memory.tier.whole_file("x") is None
    assert memory.tier.whole_file("y") is not None


class TestArguments:
    @pytest.mark.parametrize("limit", ["abc", "auto", 0, 0.5, -1, True, "12"])
    @pytest.mark.parametrize("make", [cs.host_spill, cs.device_spill])
    def test_limit(self, make, limit):
        with pytest.raises(cs.RefusedError, match="memory_limit="):
            make(memory_limit=limit)

    @pytest.mark.parametrize("limit", ["4 GB", "100MB", 10**9, "1.5 GiB"])
    def test_good_limit(self, limit):
        assert cs.host_spill(memory_limit=limit)[1]["memory_limit"] >= 10**8

    @pytest.mark.parametrize("make", [cs.host_spill, cs.device_spill])
    def test_codec(self, make):
        with pytest.raises(cs.RefusedError, match=r"'bz2'.*'auto'"):
            make(codec="bz2")
