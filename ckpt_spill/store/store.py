"""A store: one directory on one disk, with an identity of its own, holding runs of checkpoints.

::

    ROOT/ckpt-spill.json                                 the marker: the store's id
    ROOT/checkpoints/<checkpoint>/<generation>.json      the manifest: there is one, so the generation is committed
                                 /<run>/run.json         what is being written, for people and repair
                                       /<partition>.part

A generation may have been tried by several runs; one of them has its manifest. Only what has a name of this form is
ever read or removed; other files in ROOT are somebody else's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import secrets
import stat
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from ckpt_spill.errors import ConflictError, ReadError, RootError
from ckpt_spill.store.files import (
    TEMPORARY,
    held,
    locked,
    make_directory,
    sync_ancestors,
    sync_file,
    temporary,
    write_atomic,
    write_errors,
    write_once,
)
from ckpt_spill.store.partition import Identity, Written, verify
from ckpt_spill.store.runs import (
    Run,
    manifest_file,
    parse_manifest_file,
    parse_partition_file,
    partition_file,
    slug,
)

MARKER = "ckpt-spill.json"
INTENT = "run.json"
_CHECKPOINTS = "checkpoints"

logger = logging.getLogger("ckpt_spill")


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

    # ------------------------------------------------------------------------------------------------- identity
    @classmethod
    def open(cls, root: str) -> Store | None:
        """Open the store in ``root``; None where there is none, or one that others could have put there."""
        try:
            fd = os.open(os.path.join(root, MARKER), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(fd, "rb") as file:
                owners = {os.fstat(file.fileno()).st_uid}
                marker = json.loads(file.read(4096))
            if marker["format"] != 1:
                logger.warning("passed over %s: a store of format %r; install a newer release", root, marker["format"])
                return None
            directory = os.stat(root)
            owners.add(directory.st_uid)
            with contextlib.suppress(FileNotFoundError):
                owners.add(os.lstat(os.path.join(root, _CHECKPOINTS)).st_uid)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        # Pickles are in there: whoever could have written them could run code here.
        if not owners <= {os.geteuid(), 0} or directory.st_mode & stat.S_IWOTH:
            logger.warning("passed over the store in %s: others than user %d may write there", root, os.geteuid())
            return None
        return cls(root, str(marker["store"]))

    @classmethod
    def create(cls, root: str) -> Store:
        """Open the store in ``root``, made if there is none; of several processes doing so at once, one makes it."""
        make_directory(root)
        while (store := cls.open(root)) is None:
            marker = json.dumps({"format": 1, "store": secrets.token_hex(16)}).encode()
            if not write_once(os.path.join(root, MARKER), marker, durable=True) and cls.open(root) is None:
                raise ConflictError(
                    f"{os.path.join(root, MARKER)} is not a marker of ours; give another root", path=root
                )
        return store

    # ------------------------------------------------------------------------------------------------- writing
    def begin(self, run: Run, intent: bytes) -> None:
        """Make a run's directory and note in it what is to be written."""
        with write_errors(self.root, len(intent)), self._kept():
            make_directory(self.run_path(run))
            write_atomic(os.path.join(self.run_path(run), INTENT), intent, durable=False)

    def publish(self, run: Run, partition: int, write: Callable[[int], Written], *, needed: int) -> Written:
        """Let ``write`` fill a new file, then give it its name. On any failure nothing of it stays."""
        directory = self.run_path(run)
        with write_errors(directory, needed):
            make_directory(directory)
            with temporary(directory) as (fd, name):
                written = write(fd)
                os.rename(name, os.path.join(directory, partition_file(partition, written.digest)))
        return written

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
        present = self._listing(run)
        missing = _missing(expected, present)
        if not missing:
            if tidy and not self.is_committed(run):
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
            sync_file(self._manifest_path(run))
            sync_ancestors(directory, self.root)

    def commit(self, run: Run, manifest: bytes, expected: Mapping[str, int], *, durable: bool) -> list[Run] | None:
        """Write the manifest: from now on this run is the generation.

        Returns
        -------
        list of Run or None
            The runs that this one makes useless; None where ``amend`` refuses.
        """
        if not self.amend(run, manifest, expected, durable=durable):
            return None
        return [other for other in self.runs(run.checkpoint) if other != run and other.generation <= run.generation]

    def amend(self, run: Run, manifest: bytes, expected: Mapping[str, int], *, durable: bool) -> bool:
        """Write the manifest where the generation has none, or replace an earlier revision of the same run.

        Returns
        -------
        bool
            False where the generation is another run's, where a later one, or a revision that is no earlier, is there,
            and where files that are expected are gone.
        """
        path = self._manifest_path(run)
        with self._kept():
            make_directory(os.path.dirname(path))
            while True:
                # Who removes a run removes its manifest first: while that is held, the files that are there stay.
                with held(path) as before:
                    if before is not None:
                        ours = _run_of(run.checkpoint, before) == run and _revision_of(before) < _revision_of(manifest)
                        if not ours or not self._is_whole(run, expected):
                            return False
                        write_atomic(path, manifest, durable=durable)
                        return True
                if self.latest(run.checkpoint) > run.generation:
                    return False
                if write_once(path, manifest, durable=durable):
                    break
        # While nobody had the generation, one who had it may have come and gone and removed what is ours.
        if self._is_whole(run, expected):
            return True
        self.uncommit(run, _revision_of(manifest))
        return False

    def _is_whole(self, run: Run, expected: Mapping[str, int]) -> bool:
        """Tell whether a run has its files and no later generation is there."""
        return self.latest(run.checkpoint) <= run.generation and not _missing(expected, self._listing(run))

    # ------------------------------------------------------------------------------------------------- looking
    def runs(self, checkpoint: str) -> list[Run]:
        """All runs of a checkpoint here, committed or not, oldest generation first.

        A manifest without a directory counts for the run it names.
        """
        names = set(_names(self._checkpoint_path(checkpoint)))
        found = {run for name in names if (run := Run.parse(checkpoint, name))}
        for _, content in self.manifests(checkpoint):
            if run := _run_of(checkpoint, content):
                found.add(run)
        return sorted(found, key=lambda r: (r.generation, r.run))

    def manifests(self, checkpoint: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Paths and contents of the manifests of the committed generations of one checkpoint, or of all."""
        top = os.path.join(self.root, _CHECKPOINTS)
        for directory in [slug(checkpoint)] if checkpoint is not None else sorted(_names(top)):
            yield from _manifests_in(os.path.join(top, directory))

    def latest(self, checkpoint: str) -> int:
        """Give the highest generation that has a manifest here, sound or not; 0 for none."""
        names = _names(self._checkpoint_path(checkpoint))
        return max((n for name in names if (n := parse_manifest_file(name)) is not None), default=0)

    def is_committed(self, run: Run) -> bool:
        """Tell whether the manifest of the run's generation is the run's."""
        return any(_run_of(run.checkpoint, content) == run for _, content in self.manifests(run.checkpoint))

    def partition_path(self, run: Run, partition: int, digest: bytes) -> str:
        """Path of a partition file."""
        return os.path.join(self.run_path(run), partition_file(partition, digest))

    def present(self, run: Run) -> dict[str, int]:
        """Partition files of a run and their sizes in bytes; opens none of them."""
        return {name: size for name, size in self._listing(run).items() if parse_partition_file(name) is not None}

    # ------------------------------------------------------------------------------------------------- removing
    def remove(self, run: Run) -> None:
        """Remove a run, its manifest first, and the directories that are empty then. Twice is fine."""
        self.uncommit(run)
        directory = self.run_path(run)
        for name in _names(directory):
            _unlink_ours(directory, name)
        self.uncommit(run)  # who mends it may have put one there before the files were gone; afterwards nobody does
        with contextlib.suppress(OSError):  # what is left in it is not ours
            os.rmdir(directory)
        self._remove_empty(os.path.dirname(directory))

    def uncommit(self, run: Run, revision: int | None = None) -> None:
        """Remove the manifest of a generation if it is this run's, and of this revision where one is given."""
        path = self._manifest_path(run)
        with held(path) as content:
            if content is None or _run_of(run.checkpoint, content) != run:
                return
            if revision in (None, _revision_of(content)):
                os.unlink(path)

    def discard(self, run: Run, digests: Mapping[int, bytes]) -> None:
        """Remove some partition files of a run."""
        for partition, digest in digests.items():
            _unlink_ours(self.run_path(run), partition_file(partition, digest))

    def remove_damaged(self, run: Run) -> None:
        """Remove the manifests of earlier generations that nobody can read."""
        for path, content in self.manifests(run.checkpoint):
            generation = parse_manifest_file(os.path.basename(path))
            if generation is not None and generation < run.generation and _run_of(run.checkpoint, content) is None:
                os.unlink(path)

    def _remove_empty(self, checkpoint_directory: str) -> None:
        """Remove a checkpoint's directory when nothing is in it, and the store when no checkpoint is.

        The lock keeps out runs that begin: they would write into a store that has lost its identity.
        """
        with contextlib.suppress(OSError):
            os.rmdir(checkpoint_directory)
            with locked(os.path.join(self.root, MARKER), exclusive=True) as ours:
                if ours:
                    os.rmdir(os.path.dirname(checkpoint_directory))
                    os.unlink(os.path.join(self.root, MARKER))

    # ------------------------------------------------------------------------------------------------- inside
    def run_path(self, run: Run) -> str:
        """Path of a run's directory, below which nothing is a link."""
        path = self.root
        for name in (_CHECKPOINTS, run.slug, run.directory):
            path = os.path.join(path, name)
            if os.path.islink(path):
                raise RootError(
                    f"{path} is a link; nothing is read or written through links below {self.root}", path=path
                )
        return path

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Keep the store from being removed as empty while something is put into it."""
        with locked(os.path.join(self.root, MARKER), exclusive=False) as ours:
            if not ours:
                raise ConflictError(f"the store in {self.root} was removed just now; call again", path=self.root)
            yield

    def _link(self, source: str, target: str) -> None:
        """Give a file of another run, which may still be alive and keeps its own name for it, a second name."""
        with write_errors(os.path.dirname(target), 0), contextlib.suppress(FileExistsError):
            os.link(source, target)

    def _checkpoint_path(self, checkpoint: str) -> str:
        return os.path.join(self.root, _CHECKPOINTS, slug(checkpoint))

    def _manifest_path(self, run: Run) -> str:
        return os.path.join(os.path.dirname(self.run_path(run)), manifest_file(run.generation))

    def _listing(self, run: Run) -> dict[str, int]:
        """Regular files of a run's directory and their sizes; links do not count."""
        sizes = {}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.run_path(run)) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # a temporary one, that was renamed
                    if entry.is_file(follow_symlinks=False):
                        sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
        return sizes


def find_store(store: str, roots: Iterable[str]) -> Store | None:
    """Open the first of several directories that is the store of this id."""
    candidates = filter(None, map(Store.open, dict.fromkeys(roots)))
    return next((s for s in candidates if s.id == store), None)


def read_small(path: str) -> bytes:
    """Read a whole file that is no link."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        return file.read()


def _unlink_ours(directory: str, name: str) -> None:
    """Remove a file that has a name of our making; others, whoever put them there, stay."""
    if name == INTENT or name.startswith(TEMPORARY) or parse_partition_file(name) is not None:
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(os.path.join(directory, name))


def _missing(expected: Mapping[str, int], present: Mapping[str, int]) -> list[str]:
    return [name for name, size in expected.items() if present.get(name) != size]


def _manifests_in(directory: str) -> list[tuple[str, bytes]]:
    """Read the manifests in a checkpoint's directory; when one is replaced meanwhile, look again."""
    while True:
        paths = [os.path.join(directory, n) for n in sorted(_names(directory)) if parse_manifest_file(n) is not None]
        try:
            return [(path, read_small(path)) for path in paths if stat.S_ISREG(os.lstat(path).st_mode)]
        except FileNotFoundError:
            continue


def _run_of(checkpoint: str, manifest: bytes) -> Run | None:
    """Give the run that a manifest belongs to; None for a damaged one."""
    try:
        body = json.loads(manifest)["body"]
        return Run(checkpoint, int(body["generation"]), str(body["identity"]), str(body["run"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _revision_of(manifest: bytes) -> int:
    """Give the revision that a manifest of a known run is."""
    return int(json.loads(manifest)["body"].get("revision", 0))


def _names(path: str) -> list[str]:
    try:
        return [] if os.path.islink(path) else os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
