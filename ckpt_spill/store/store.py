"""A store: one directory on one disk, with an identity of its own, holding runs of checkpoints.

Only what has a name of the form that ``layout`` and ``runs`` give it is ever read or removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import shutil
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from ckpt_spill.errors import ConflictError, ReadError
from ckpt_spill.store import marker
from ckpt_spill.store.files import (
    TEMPORARY,
    make_directory,
    sync_ancestors,
    sync_file,
    temporary,
    write_atomic,
    write_errors,
)
from ckpt_spill.store.layout import INTENT, checkpoint_path, manifest_path, names_in, run_path, sizes_in
from ckpt_spill.store.manifests import Manifests
from ckpt_spill.store.partition import Identity, Written, read_footer, verify
from ckpt_spill.store.runs import Run, parse_partition_file, partition_file

logger = logging.getLogger("ckpt_spill")
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP}


@dataclasses.dataclass(frozen=True)
class Store:
    """A directory that is a store.

    Parameters
    ----------
    root : str
        Absolute path, as this process sees it.
    id : str
        32 hex digits from the marker file. Workers, hosts and paths change; this does not.
    """

    root: str
    id: str

    @classmethod
    def open(cls, root: str) -> Store | None:
        """Open the store in ``root``; None where there is none, or one that others could have put there."""
        store = marker.read(root)
        return None if store is None else cls(root, store)

    @classmethod
    def create(cls, root: str) -> Store:
        """Open the store in ``root``, made if there is none; of several processes doing so at once, one makes it."""
        return cls(root, marker.make(root))

    @property
    def manifests(self) -> Manifests:
        """The manifests here, which say which runs count."""
        return Manifests(self.root)

    # ------------------------------------------------------------------------------------------------- writing
    def begin(self, run: Run, intent: bytes) -> None:
        """Make a run's directory and note in it what is to be written."""
        with write_errors(self.root, len(intent)), marker.kept(self.root):
            make_directory(self.run_path(run))
            write_atomic(os.path.join(self.run_path(run), INTENT), intent, durable=False)

    def publish(self, run: Run, partition: int, write: Callable[[int], Written], *, needed: int) -> Written:
        """Let ``write`` fill a new file, then give it its name. On any failure nothing of it stays."""
        directory = self.run_path(run)
        with write_errors(directory, needed), marker.kept(self.root):
            make_directory(directory)
            with temporary(directory) as (fd, name):
                written = write(fd)
                os.rename(name, os.path.join(directory, partition_file(partition, written.digest)))
        return written

    def take(self, run: Run, partition: int, path: str, digest: bytes, *, durable: bool) -> Written:
        """Give a partition file that lies elsewhere a name in a run, by a hard link, or copy it where that cannot be.

        Parameters
        ----------
        run : Run
        partition : int
        path : str
            Who has the file may remove it at any time, but not change it.
        digest : bytes
            Of its footer.
        durable : bool
            Whether its data has to be on the disk when this returns.

        Raises
        ------
        ReadError
            It is not the file that the digest says.
        OSError, WriteError
            It is gone, or could not be copied. Nothing of it stays.
        """
        directory, target = self.run_path(run), self.partition_path(run, partition, digest)
        with write_errors(directory, os.stat(path).st_size), marker.kept(self.root):
            make_directory(directory)
            _link_or_copy(path, target)
            if durable:
                sync_file(target)
        try:
            nbytes = read_footer(target, None, digest).nbytes
        except ReadError:
            _unlink_ours(directory, os.path.basename(target))
            raise
        return Written(nbytes, os.stat(target).st_size, digest)

    def adopt(self, run: Run, *, threads: int, durable: bool) -> Iterator[tuple[int, Written]]:
        """Take over the verified partitions of unfinished runs of the same content, by hard link.

        A run that is still alive keeps its own names, so the worst that two at once can do is work twice.
        """
        seen: set[str] = set()
        for other in self.runs(run.checkpoint):
            if other == run or (other.generation, other.identity) != (run.generation, run.identity):
                continue
            for name in self.present(other).keys() - seen:
                seen.add(name)
                path = os.path.join(self.run_path(other), name)
                with contextlib.suppress(ReadError, FileNotFoundError, ConflictError):
                    partition, written = self._verified(other, name, threads=threads, durable=durable)
                    self._link(path, os.path.join(self.run_path(run), partition_file(partition, written.digest)))
                    yield partition, written

    def salvage(
        self, run: Run, partitions: Container[int], *, threads: int, durable: bool
    ) -> Iterator[tuple[int, Written]]:
        """Give the verified ones among a run's files of some partitions: an attempt to mend it may have left them."""
        for name in self.present(run):
            if parse_partition_file(name) in partitions:
                with contextlib.suppress(ReadError, FileNotFoundError):
                    yield self._verified(run, name, threads=threads, durable=durable)

    def _verified(self, run: Run, name: str, *, threads: int, durable: bool) -> tuple[int, Written]:
        partition = int(name.partition("-")[0])
        path = os.path.join(self.run_path(run), name)
        written = verify(path, Identity(run.checkpoint, run.generation, partition), None, threads=threads)
        if durable:
            sync_file(path)  # who wrote it may not have been asked to
        return partition, written

    def _link(self, source: str, target: str) -> None:
        """Give a file of another run, which may still be alive and keeps its own name for it, a second name."""
        with write_errors(os.path.dirname(target), 0), contextlib.suppress(FileExistsError):
            os.link(source, target)

    def seal(self, run: Run, expected: Mapping[str, int], *, durable: bool, tidy: bool = True) -> list[str]:
        """Make the names of a run's files durable; give those that are missing.

        Parameters
        ----------
        run : Run
        expected : mapping of str to int
            Names of the partition files and their sizes in bytes.
        durable : bool
            Whether the names have to survive a power cut.
        tidy : bool
            Whether to remove what is not part of the result. Of a committed run nothing is removed: others may be
            mending it.
        """
        directory = self.run_path(run)
        present = sizes_in(directory)
        missing = [name for name, size in expected.items() if present.get(name) != size]
        if not missing:
            if tidy and not self.manifests.is_committed(run):
                for name in present.keys() - expected.keys() - {INTENT}:
                    _unlink_ours(directory, name)
            if durable:
                with write_errors(directory, 0):
                    sync_ancestors(directory, self.root)
        return missing

    def flush(self, run: Run, names: Iterable[str]) -> None:
        """Make files durable that were written without."""
        directory = self.run_path(run)
        with write_errors(directory, 0):
            for name in names:
                sync_file(os.path.join(directory, name))
            sync_file(manifest_path(self.root, run))
            sync_ancestors(directory, self.root)

    def commit(
        self, run: Run, manifest: bytes, expected: Mapping[str, int], *, durable: bool, amend: bool = False
    ) -> list[Run] | None:
        """Write the manifest, as ``Manifests.put`` does: from now on this run is the generation.

        Returns
        -------
        list of Run or None
            The runs that this one makes useless; None where ``Manifests.put`` refuses.
        """
        done = self.manifests.put(run, manifest, expected, durable=durable, amend=amend)
        return self.superseded(run) if done else None

    # ------------------------------------------------------------------------------------------------- looking
    def runs(self, checkpoint: str) -> list[Run]:
        """All runs of a checkpoint here, committed or not, oldest generation first.

        A manifest without a directory counts for the run it names.
        """
        names = names_in(checkpoint_path(self.root, checkpoint))
        begun = {run for name in names if (run := Run.parse(checkpoint, name))}
        return sorted(begun | self.manifests.runs(checkpoint), key=lambda r: (r.generation, r.run))

    def superseded(self, run: Run) -> list[Run]:
        """Give the runs that a committed one makes useless."""
        return [other for other in self.runs(run.checkpoint) if other != run and other.generation <= run.generation]

    def run_path(self, run: Run) -> str:
        """Path of a run's directory, below which nothing is a link."""
        return run_path(self.root, run)

    def partition_path(self, run: Run, partition: int, digest: bytes) -> str:
        """Path of a partition file."""
        return os.path.join(self.run_path(run), partition_file(partition, digest))

    def present(self, run: Run) -> dict[str, int]:
        """Partition files of a run and their sizes in bytes; opens none of them."""
        sizes = sizes_in(self.run_path(run))
        return {name: size for name, size in sizes.items() if parse_partition_file(name) is not None}

    # ------------------------------------------------------------------------------------------------- removing
    def remove(self, run: Run) -> None:
        """Remove a run, its manifest first, and the directories that are empty then. Twice is fine."""
        self.manifests.remove(run)
        directory = self.run_path(run)
        for name in names_in(directory):
            _unlink_ours(directory, name)
        self.manifests.remove(run)  # who mends it may have put one there before the files were gone; nobody does after
        with contextlib.suppress(OSError):  # what is left in it is not ours
            os.rmdir(directory)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(directory))
            marker.remove_empty(self.root)

    def discard(self, run: Run, digests: Mapping[int, bytes]) -> None:
        """Remove some partition files of a run."""
        for partition, digest in digests.items():
            _unlink_ours(self.run_path(run), partition_file(partition, digest))


def find_store(store: str, roots: Iterable[str]) -> Store | None:
    """Open the first of several directories that is the store of this id."""
    candidates = filter(None, map(Store.open, dict.fromkeys(roots)))
    return next((s for s in candidates if s.id == store), None)


def _link_or_copy(source: str, target: str) -> None:
    """Give a file a second name, or what is in it, where it cannot have another name."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError as e:
        if e.errno not in _NO_LINK:
            raise
    else:
        return
    with open(source, "rb") as file, temporary(os.path.dirname(target)) as (fd, name):
        with os.fdopen(os.dup(fd), "wb") as out:
            shutil.copyfileobj(file, out, 1 << 20)
        os.rename(name, target)


def _unlink_ours(directory: str, name: str) -> None:
    """Remove a file that has a name of our making; others, whoever put them there, stay."""
    if name == INTENT or name.startswith(TEMPORARY) or parse_partition_file(name) is not None:
        path = os.path.join(directory, name)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            logger.warning("%s is left: it is a directory in the place of a file of ours; remove it by hand", path)
