"""The store: identity, publishing, runs; and the checks of a root."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import threading

import numpy as np
import pytest

import ckpt_spill as cs
from ckpt_spill.store import marker
from ckpt_spill.store import partition as partition_files
from ckpt_spill.store.files import TEMPORARY, locked, make_directory, write_atomic, write_errors
from ckpt_spill.store.layout import MARKER
from ckpt_spill.store.partition import Identity
from ckpt_spill.store.preflight import check_root, file_system, too_full
from ckpt_spill.store.runs import Run, parse_partition_file, partition_file, slug
from ckpt_spill.store.store import Store, find_store

RUN = Run("name", 1, "0" * 16, "0" * 8)
MANIFEST = json.dumps({"body": {"generation": 1, "identity": RUN.identity, "run": RUN.run}}).encode()


@pytest.fixture
def store(tmp_path):
    return Store.create(str(tmp_path / "root"))


def publish(store, run, number, value):
    identity = Identity(run.checkpoint, run.generation, number)
    return store.publish(run, number, lambda fd: partition_files.write(fd, value, identity), needed=100)


def files_below(path):
    return sorted(os.path.join(d, f) for d, _, fs in os.walk(path) for f in fs)


class TestTake:
    """A partition file from elsewhere becomes one of a run."""

    @pytest.fixture
    def file(self, tmp_path):
        """Path and digest of a partition file that is in no store, and the value in it."""
        path, value = str(tmp_path / "file"), np.arange(10_000)
        with open(path, "xb") as f:
            return path, partition_files.write(f.fileno(), value, Identity("spill", 0, 0)).digest, value

    def is_whole(self, store, value, digest):
        found = partition_files.read(store.partition_path(RUN, 3, digest), Identity("any", 0, 0), digest)
        return (found == value).all()

    def test_by_link(self, store, file):
        path, digest, value = file
        written = store.take(RUN, 3, path, digest, durable=True)
        taken = store.partition_path(RUN, 3, digest)
        assert os.path.samefile(taken, path)
        assert (written.nbytes, written.stored_nbytes) == (value.nbytes, os.path.getsize(path))
        assert self.is_whole(store, value, digest)

    @pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
    def test_by_copy_where_it_cannot_be_linked(self, store, file, monkeypatch, number):
        """On another file system, on one without hard links, and where a file has as many names as it may have."""
        path, digest, value = file
        monkeypatch.setattr(os, "link", failing(number))
        store.take(RUN, 3, path, digest, durable=True)
        taken = store.partition_path(RUN, 3, digest)
        assert not os.path.samefile(taken, path)
        assert stat.S_IMODE(os.stat(taken).st_mode) == 0o600
        assert files_below(store.run_path(RUN)) == [taken]
        assert self.is_whole(store, value, digest)

    def test_by_copy_on_a_full_disk(self, store, file, monkeypatch):
        """Nothing of it stays, and the error is one that says what to do."""
        path, digest, _ = file
        monkeypatch.setattr(os, "link", failing(errno.EXDEV))
        monkeypatch.setattr("shutil.copyfileobj", failing(errno.ENOSPC))
        with pytest.raises(cs.DiskFullError):
            store.take(RUN, 3, path, digest, durable=True)
        assert files_below(store.run_path(RUN)) == []

    def test_again(self, store, file):
        """What is there already is taken for what it is."""
        path, digest, value = file
        for _ in range(2):
            store.take(RUN, 3, path, digest, durable=False)
        assert self.is_whole(store, value, digest)

    def test_gone(self, store, file):
        path, digest, _ = file
        os.unlink(path)
        with pytest.raises(FileNotFoundError):
            store.take(RUN, 3, path, digest, durable=True)
        assert files_below(store.root) == [os.path.join(store.root, MARKER)]

    @pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:-9] + b"x" * 9])
    def test_another_file_is_not_taken(self, store, file, damage):
        path, digest, _ = file
        with open(path, "rb") as f:
            data = f.read()
        with open(path, "wb") as f:
            f.write(damage(data))
        with pytest.raises(cs.CorruptPartitionError):
            store.take(RUN, 3, path, digest, durable=True)
        assert files_below(store.run_path(RUN)) == []


def failing(number):
    """A function that fails as the system says with this number."""

    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number), *args[:1])

    return fail


class TestIdentity:
    def test_created_once(self, tmp_path):
        """Whoever comes first makes the store; all others open the same one."""
        barrier, ids = threading.Barrier(8), []

        def create():
            barrier.wait()
            ids.append(Store.create(str(tmp_path / "root")).id)

        threads = [threading.Thread(target=create) for _ in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(ids) == 8
        assert len(set(ids)) == 1
        assert os.listdir(tmp_path / "root") == [MARKER]

    def test_follows_the_directory(self, store, tmp_path):
        """The id is the directory's: it moves with it, and a new directory has another."""
        os.rename(store.root, tmp_path / "moved")
        assert Store.open(store.root) is None
        assert Store.create(store.root).id != store.id
        assert find_store(store.id, [store.root, str(tmp_path / "moved")]).root == str(tmp_path / "moved")

    @pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\x80\x05.", b'{"store"', b"null"])
    def test_damaged_marker(self, tmp_path, content):
        """A marker that is none is no store, and is not replaced."""
        (tmp_path / MARKER).write_bytes(content)
        assert Store.open(str(tmp_path)) is None
        with pytest.raises(cs.ConflictError, match="not a marker"):
            Store.create(str(tmp_path))
        assert (tmp_path / MARKER).read_bytes() == content

    def test_marker_is_no_link(self, store, tmp_path):
        """A link in the marker's place is not followed."""
        other = tmp_path / "other"
        other.mkdir()
        os.symlink(os.path.join(store.root, MARKER), other / MARKER)
        assert Store.open(str(other)) is None


class TestPublish:
    def test_all_or_nothing(self, store):
        """A file has its name only when it is whole; a failure leaves nothing."""

        def broken(fd):
            os.write(fd, b"half")
            raise RuntimeError("in the middle")

        with pytest.raises(RuntimeError):
            store.publish(RUN, 0, broken, needed=1)
        assert files_below(store.run_path(RUN)) == []
        publish(store, RUN, 0, np.arange(3))
        assert [parse_partition_file(os.path.basename(f)) for f in files_below(store.run_path(RUN))] == [0]

    def test_a_directory_in_its_place(self, store, caplog):
        """What is in the way of a partition file, and stays when its run is removed, is named with its path."""
        path = store.partition_path(RUN, 0, publish(store, RUN, 0, np.arange(3)).digest)
        os.unlink(path)
        os.mkdir(path)
        with pytest.raises(cs.WriteError, match=f"{path} failed: Is a directory") as e:
            publish(store, RUN, 0, np.arange(3))
        assert e.value.path == path
        store.remove(RUN)
        assert os.path.isdir(path)
        assert f"{path} is left" in caplog.text

    def test_attempts_do_not_collide(self, store):
        """Two attempts with other content are two files, each whole."""
        one, two = publish(store, RUN, 0, np.arange(3)), publish(store, RUN, 0, np.arange(4))
        identity = Identity("name", 1, 0)
        for attempt, length in ((one, 3), (two, 4)):
            path = store.partition_path(RUN, 0, attempt.digest)
            assert len(partition_files.read(path, identity, attempt.digest, threads=1)) == length

    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
    def test_modes(self, tmp_path, umask):
        """Directories are 0700 and files 0600 whatever the umask."""
        before = os.umask(umask)
        try:
            store = Store.create(str(tmp_path / "a" / "root"))
            store.begin(RUN, b"{}")
            publish(store, RUN, 0, np.arange(3))
            store.commit(RUN, b"{}", {}, durable=True)
        finally:
            os.umask(before)
        for directory, _, files in os.walk(tmp_path / "a"):
            assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
            for f in files:
                assert stat.S_IMODE(os.stat(os.path.join(directory, f)).st_mode) == 0o600


class TestLinks:
    @pytest.mark.parametrize("depth", [0, 1, 2])
    def test_directories_are_no_links(self, store, tmp_path, depth):
        """Nothing is read, written or removed through a link anywhere below the root."""
        written = publish(store, RUN, 0, np.arange(3))
        store.commit(RUN, MANIFEST, {}, durable=False)
        inner = os.path.join(store.root, *["checkpoints", RUN.slug, RUN.directory][: depth + 1])
        os.rename(inner, tmp_path / "elsewhere")
        os.symlink(tmp_path / "elsewhere", inner)
        for attempt in (
            lambda: store.partition_path(RUN, 0, written.digest),
            lambda: publish(store, RUN, 1, np.arange(3)),
            lambda: store.present(RUN),
            lambda: store.remove(RUN),
        ):
            with pytest.raises(cs.RootError, match="is a link"):
                attempt()
        assert [content for _, content in store.manifests.read()] == ([MANIFEST] if depth == 2 else [])
        assert len(files_below(tmp_path / "elsewhere")) == (1 if depth == 2 else 2)

    def test_manifests_are_no_links(self, store, tmp_path):
        """A link in a manifest's place is no manifest."""
        store.begin(RUN, b"{}")
        (tmp_path / "m").write_bytes(b"planted")
        os.symlink(tmp_path / "m", os.path.join(os.path.dirname(store.run_path(RUN)), "g00000001.json"))
        assert list(store.manifests.read()) == []


class TestRuns:
    def test_names_are_safe(self):
        """Directory names are short, readable, unique and made of harmless characters."""
        names = ["a", "A", "../../etc", "a/b", "a b", "é" * 400, "x" * 400, ".", "-rf", "a\0b", "\ud800", "a\n"]
        slugs = [slug(n) for n in names]
        assert len(set(slugs)) == len({s.lower() for s in slugs}) == len(names)
        for s in slugs:
            assert len(s) <= 64
            assert s.isascii()
            assert not set(s) & set("/\\ \n\0")
            assert s[0] not in ".-"

    def test_names_are_read_back(self):
        """What a name says is what it was made of; other names say nothing."""
        assert Run.parse("name", RUN.directory) == RUN
        assert parse_partition_file(partition_file(123456789, bytes(32))) == 123456789
        for name in ("", "x", "g1-0-0", RUN.directory + "x", "part.99.bin", "00000001-xyz.part", "tmp-0000"):
            assert Run.parse("name", name) is None
            assert parse_partition_file(name) is None

    def test_adopt_takes_only_sound_files_of_the_same_content(self, store):
        """A resume links what verifies; damaged, foreign and other runs' files are left."""
        for n in range(3):
            written = publish(store, RUN, n, np.arange(n + 3000))
        path = store.partition_path(RUN, 2, written.digest)
        with open(path, "r+b") as f:
            f.seek(40)
            f.write(b"\xff\xff\xff")
        publish(store, Run("name", 1, "f" * 16, "1" * 8), 5, np.arange(3))
        publish(store, Run("name", 2, "0" * 16, "2" * 8), 6, np.arange(3))
        os.symlink(path, os.path.join(store.run_path(RUN), partition_file(7, bytes(32))))
        mine = Run("name", 1, "0" * 16, "3" * 8)
        store.begin(mine, b"{}")
        adopted = dict(store.adopt(mine, threads=1, durable=True))
        assert sorted(adopted) == [0, 1]
        for n, written in adopted.items():
            identity = Identity("name", 1, n)
            assert (
                len(partition_files.read(store.partition_path(mine, n, written.digest), identity, written.digest))
                == n + 3000
            )
        store.remove(RUN)
        assert sorted(store.present(mine)) == sorted(partition_file(n, w.digest) for n, w in adopted.items())

    def test_seal_keeps_what_counts(self, store):
        """Leftovers of lost attempts and half files go, the result stays; what is missing is told, nothing removed."""
        kept, lost = publish(store, RUN, 0, np.arange(3)), publish(store, RUN, 0, np.arange(4))
        half = os.path.join(store.run_path(RUN), TEMPORARY + "1234")
        open(half, "w").close()
        name = partition_file(0, kept.digest)
        assert store.seal(RUN, {name: 1}, durable=True) == [name]
        assert os.path.exists(half)
        assert store.seal(RUN, {name: kept.stored_nbytes}, durable=True) == []
        assert files_below(store.run_path(RUN)) == [store.partition_path(RUN, 0, kept.digest)]
        assert lost.digest != kept.digest

    def test_remove(self, store, tmp_path):
        """Removing the last run removes the store, twice without error; what is not ours stays."""
        foreign = os.path.join(store.root, "precious.txt")
        open(foreign, "w").close()
        other = Run("other", 1, "0" * 16, "0" * 8)
        publish(store, RUN, 0, np.arange(3))
        publish(store, other, 0, np.arange(3))
        store.commit(RUN, MANIFEST, {}, durable=False)
        store.remove(RUN)
        store.remove(RUN)
        assert store.runs("name") == []
        assert store.runs("other") == [other]
        assert Store.open(store.root) == store
        store.remove(other)
        assert files_below(store.root) == [foreign]


class TestCommit:
    def write(self, store, run):
        written = publish(store, run, 0, np.arange(3))
        return {partition_file(0, written.digest): written.stored_nbytes}

    def manifest(self, run):
        return json.dumps({"body": {"generation": run.generation, "identity": run.identity, "run": run.run}}).encode()

    def test_one_run_has_the_generation(self, store):
        """The second of two runs of a generation is told, and the first one's manifest stays."""
        other = Run("name", 1, "0" * 16, "1" * 8)
        expected, others = self.write(store, RUN), self.write(store, other)
        assert store.commit(RUN, self.manifest(RUN), expected, durable=True) == [other]
        assert store.commit(other, self.manifest(other), others, durable=True) is None
        assert store.manifests.is_committed(RUN)
        assert not store.manifests.is_committed(other)

    def test_late_commits_are_refused(self, store):
        """A run whose generation has come and gone meanwhile does not commit, nor one whose files are gone."""
        expected = self.write(store, RUN)
        newer = Run("name", 2, "0" * 16, "1" * 8)
        store.commit(newer, self.manifest(newer), self.write(store, newer), durable=False)
        assert store.commit(RUN, self.manifest(RUN), expected, durable=False) is None
        store.remove(newer)
        assert store.commit(RUN, self.manifest(RUN), expected | {"00000009-gone.part": 1}, durable=False) is None
        assert list(store.manifests.read()) == []

    def test_manifests_without_files_are_swept(self, store):
        """What a commit makes useless includes manifests whose directory is gone."""
        store.commit(RUN, self.manifest(RUN), self.write(store, RUN), durable=False)
        subprocess.run(["rm", "-r", store.run_path(RUN)], check=True)
        newer = Run("name", 2, "0" * 16, "1" * 8)
        assert store.commit(newer, self.manifest(newer), self.write(store, newer), durable=False) == [RUN]
        store.remove(RUN)
        assert [json.loads(content)["body"]["generation"] for _, content in store.manifests.read()] == [2]

    def test_odd_entries(self, store):
        """Directories in the place of manifests and files in that of runs are passed over."""
        store.begin(RUN, b"{}")
        directory = os.path.dirname(store.run_path(RUN))
        os.mkdir(os.path.join(directory, "g00000007.json"))
        other = Run("name", 3, "0" * 16, "1" * 8)
        open(os.path.join(directory, other.directory), "w").close()
        assert list(store.manifests.read()) == []
        assert store.present(other) == {}
        store.remove(other)
        store.remove(RUN)


class TestOwners:
    def test_others_stores_are_passed_over(self, store, monkeypatch):
        """A store that another user could have made is none: what is in it may be pickles."""
        logged = []
        monkeypatch.setattr(marker.logger, "warning", lambda text, *args: logged.append(text % args))
        assert Store.open(store.root) == store
        for path in (store.root, os.path.join(store.root, MARKER)):
            os.chown(path, 12345, -1)
            assert Store.open(store.root) is None
            os.chown(path, os.geteuid(), -1)
        store.begin(RUN, b"{}")
        os.chown(os.path.join(store.root, "checkpoints"), 12345, -1)
        assert Store.open(store.root) is None
        os.chown(os.path.join(store.root, "checkpoints"), 0, -1)
        os.chmod(store.root, 0o777)
        assert Store.open(store.root) is None
        os.chmod(store.root, 0o700)
        assert Store.open(store.root) == store
        assert all("others than user" in text for text in logged)
        assert len(logged) == 4

    def test_newer_stores_are_passed_over(self, store):
        """A store of a format that is not known is neither read nor written to."""
        with open(os.path.join(store.root, MARKER), "w") as f:
            json.dump({"format": 2, "store": store.id}, f)
        assert Store.open(store.root) is None
        with pytest.raises(cs.ConflictError, match="not a marker of ours"):
            Store.create(store.root)


class TestFiles:
    @pytest.mark.parametrize(
        ("error", "kind"), [(FileNotFoundError, cs.ConflictError), (PermissionError, cs.WriteError)]
    )
    def test_system_errors_are_typed(self, tmp_path, error, kind):
        """Whatever the system says while writing becomes an error of ours."""
        with pytest.raises(kind, match=str(tmp_path)), write_errors(str(tmp_path), 1):
            raise error(1, "no", str(tmp_path / "f"))

    def test_locks(self, tmp_path):
        """An exclusive lock is not had while a shared one is held; a file that is gone cannot be locked."""
        path = str(tmp_path / "f")
        with locked(path, exclusive=False) as held:
            assert not held
        open(path, "w").close()
        with locked(path, exclusive=False) as held:
            assert held
            with locked(path, exclusive=True) as also:
                assert not also
        with locked(path, exclusive=True) as held:
            assert held

    def test_write_atomic_replaces(self, tmp_path):
        """The new content is there or the old one, and no temporary file."""
        path = str(tmp_path / "f")
        write_atomic(path, b"one", durable=True)
        write_atomic(path, b"two", durable=False)
        assert (tmp_path / "f").read_bytes() == b"two"
        assert os.listdir(tmp_path) == ["f"]

    def test_full_disk_is_explained(self, tmp_path):
        """No space becomes an error that says where, how much was wanted and what is free; other errors pass."""
        message = r"no room in .* 12,345 bytes .* bytes are free"
        with pytest.raises(cs.DiskFullError, match=message) as e, write_errors(str(tmp_path), 12345):
            raise OSError(28, "No space left on device")
        assert (e.value.path, e.value.needed) == (str(tmp_path), 12345)


class TestPreflight:
    def check(self, root, **options):
        return check_root(str(root), **{"scratch": []} | options)

    def test_good(self, tmp_path):
        """A directory of ours, or one that can be made, is a root."""
        store, problems, warnings = self.check(tmp_path / "new" / "root")
        assert (problems, warnings) == ([], [])
        assert store == Store.open(str(tmp_path / "new" / "root"))

    def test_world_writable(self, tmp_path):
        """A directory everybody may write in is refused, with the way out."""
        tmp_path.chmod(0o1777)
        store, problems, _ = self.check(tmp_path)
        assert store is None
        assert "everybody may write" in problems[0]
        assert str(tmp_path / "ckpt") in problems[0]

    def test_not_ours(self, tmp_path):
        """A directory of another user is refused by its owner's number."""
        os.chown(tmp_path, 12345, -1)
        _, problems, _ = self.check(tmp_path)
        assert "belongs to user 12345" in problems[0]

    def test_not_a_directory(self, tmp_path):
        """A file is no root."""
        (tmp_path / "f").touch()
        _, problems, _ = self.check(tmp_path / "f")
        assert len(problems) == 1

    def test_cannot_be_written(self):
        """A place where nothing can be made is refused."""
        _, problems, _ = self.check("/proc/nope")
        assert "cannot be written" in problems[0]

    def test_inside_scratch(self, tmp_path):
        """Dask's scratch space is refused, also through a link, before anything is made there."""
        (tmp_path / "scratch").mkdir()
        os.symlink(tmp_path / "scratch", tmp_path / "link")
        for root in (tmp_path / "scratch" / "x", tmp_path / "link" / "x"):
            _, problems, _ = self.check(root, scratch=[str(tmp_path / "scratch")])
            assert "scratch space" in problems[0]
        assert os.listdir(tmp_path / "scratch") == []

    def test_too_little_space(self, tmp_path):
        """Less than min-free is told with both numbers."""
        assert too_full(str(tmp_path), 0) == []
        assert "1,152,921,504,606,846,976" in too_full(str(tmp_path), 1 << 60)[0]

    def test_parent_that_lets_others_rename(self, tmp_path):
        """A root in a directory where everybody may rename it is refused; with the sticky bit it is fine."""
        parent = tmp_path / "shared"
        parent.mkdir()
        parent.chmod(0o777)
        _, problems, _ = self.check(parent / "root")
        assert "everybody may rename it" in problems[0]
        parent.chmod(0o1777)
        _, problems, _ = self.check(parent / "root")
        assert problems == []

    def test_memory_backed(self, tmp_path):
        """A tmpfs works, with a warning."""
        if file_system("/dev/shm") != "tmpfs":
            pytest.skip("/dev/shm is no tmpfs here")
        root = f"/dev/shm/ckpt-spill-test-{os.getpid()}"
        try:
            store, problems, warnings = self.check(root)
            assert store
            assert problems == []
            assert "tmpfs" in warnings[0]
        finally:
            subprocess.run(["rm", "-rf", root], check=True)

    def test_file_system(self, tmp_path):
        """The type is that of the mount nearest to the path."""
        assert file_system("/proc/self/fd") == "proc"
        assert file_system(str(tmp_path / "not" / "there")) == file_system(str(tmp_path))


def test_make_directory_keeps_what_is_there(tmp_path):
    """A directory that exists keeps its mode."""
    tmp_path.chmod(0o755)
    make_directory(str(tmp_path / "a" / "b"))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
