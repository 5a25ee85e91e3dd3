"""What runs where the disks are: on workers, or in this process when there is no cluster.

The two tasks of graphs, ``write_partition`` and ``read_partition``, and the errands that a client sends to workers.
Arguments and results are small and picklable.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
import socket
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from distributed import get_worker
from distributed.sizeof import safe_sizeof

from ckpt_spill.config import Settings
from ckpt_spill.errors import CkptSpillError, DiskFullError, MissingPartitionError, ReadError, RootError, WriteError
from ckpt_spill.store import partition as partition_files
from ckpt_spill.store.partition import CodecName, Identity, Written
from ckpt_spill.store.preflight import check_root
from ckpt_spill.store.runs import Run, parse_partition_file
from ckpt_spill.store.store import Store, find_store

errand_of: contextvars.ContextVar[Any] = contextvars.ContextVar("errand_of", default=None)
"""The worker that runs an errand; dask tells only tasks where they run."""


class Record(NamedTuple):
    """What a client needs to know of a partition that is on disk. A few hundred bytes, whatever the partition."""

    run: str
    partition: int
    store: str
    root: str
    host: str
    nbytes: int
    stored_nbytes: int
    digest: bytes


@dataclasses.dataclass(frozen=True)
class WriteJob:
    """What all write tasks of a collection share."""

    run: Run
    kind: str
    roots: tuple[str, ...] | None
    codec: CodecName
    durable: bool


@dataclasses.dataclass(frozen=True)
class StoreRef:
    """A store as a manifest names it: the id is what counts, path and host are where it was last seen."""

    id: str
    root: str
    host: str


@dataclasses.dataclass(frozen=True)
class ReadJob:
    """What all read tasks of a collection share.

    Parameters
    ----------
    run : Run
    stores : tuple of StoreRef
        Stores that hold partitions.
    roots : tuple of str or None
        More directories to look for those stores in.
    columns : tuple or None
        Labels of the columns to read; None for everything.
    """

    run: Run
    stores: tuple[StoreRef, ...]
    roots: tuple[str, ...] | None
    columns: tuple[Hashable, ...] | None


# ---------------------------------------------------------------------------------------------------- graph tasks
def write_partition(value: Any, partition: int, job: WriteJob) -> Record:
    """Write one partition into the first root that has room, starting with another root for each partition."""
    settings = _settings(job.roots)
    if job.kind == "bag" and not hasattr(value, "__len__"):
        value = list(value)  # an iterator can be read once, and has no other representation
    first = partition % len(settings.roots)
    *others, last = settings.roots[first:] + settings.roots[:first]
    with _naming(partition, job):
        for root in others:
            with contextlib.suppress(DiskFullError):
                return _write_to(root, value, partition, job, settings)
        return _write_to(last, value, partition, job, settings)


def _write_to(root: str, value: Any, partition: int, job: WriteJob, settings: Settings) -> Record:
    store = Store.open(root) or _checked_store(root, settings)
    identity = Identity(job.run.checkpoint, job.run.generation, partition)
    write = functools.partial(
        partition_files.write,
        value=value,
        identity=identity,
        codec=job.codec,
        threads=settings.threads,
        durable=job.durable,
    )
    written = store.publish(job.run, partition, write, needed=safe_sizeof(value))
    return _record(job.run, partition, store, written)


def _checked_store(root: str, settings: Settings) -> Store:
    """Check and make a root that no preflight has seen, as this worker joined later."""
    store, problems, _ = check_root(root, min_free=settings.min_free, scratch=_scratch())
    if store is None:
        raise RootError(f"cannot write checkpoints in {root} on {_worker_name()}: {problems}", problems=problems)
    return store


@contextlib.contextmanager
def _naming(partition: int, job: WriteJob) -> Iterator[None]:
    """Say in an error which partition and worker it is about."""
    try:
        yield
    except WriteError as e:
        worker = _worker_name()
        details = {**e.details, "partition": partition, "worker": worker}
        raise type(e)(f"partition {partition} of checkpoint {job.run.checkpoint!r}, {worker}: {e}", **details) from e


def read_partition(job: ReadJob, partition: int, digest: bytes, holders: Sequence[int]) -> Any:
    """Read one partition, or some columns of it, from the first store in reach that has a sound copy."""
    settings = _settings(job.roots)
    identity = Identity(job.run.checkpoint, job.run.generation, partition)
    failures: list[ReadError | OSError] = []
    for ref in (job.stores[h] for h in holders):
        store = find_store(ref.id, (*settings.roots, ref.root))
        if store is None:
            continue
        try:
            return partition_files.read(
                store.partition_path(job.run, partition, digest),
                identity,
                digest,
                columns=job.columns,
                threads=settings.threads,
            )
        except (ReadError, OSError) as e:
            failures.append(e)
    for failure in failures:
        if isinstance(failure, ReadError):
            raise type(failure)(
                f"partition {partition} of checkpoint {job.run.checkpoint!r}, read by {_worker_name()} on host "
                f"{socket.gethostname()}: {failure}",
                **{**failure.details, "partition": partition},
            ) from failure
    raise _missing(job, partition, [job.stores[h] for h in holders], settings, failures)


def _record(run: Run, partition: int, store: Store, written: Written) -> Record:
    sizes = written.nbytes, written.stored_nbytes, written.digest
    return Record(run.run, partition, store.id, store.root, socket.gethostname(), *sizes)


def _missing(
    job: ReadJob, partition: int, refs: Sequence[StoreRef], settings: Settings, failures: Sequence[Exception]
) -> MissingPartitionError:
    """Say where a partition should be, and what else of the checkpoint is still there."""
    places = "; ".join(f"store {ref.id} ({ref.root} on host {ref.host})" for ref in refs)
    reason = "; ".join(map(str, failures)) or "none of these stores can be seen from here"
    here = set()
    for ref in job.stores:
        if store := find_store(ref.id, (*settings.roots, ref.root)):
            here |= {parse_partition_file(name) for name in store.present(job.run)}
    return MissingPartitionError(
        f"partition {partition} of checkpoint {job.run.checkpoint!r} (generation {job.run.generation}) cannot be read "
        f"by {_worker_name()} on host {socket.gethostname()}. It should be in {places}: {reason}. {len(here)} "
        "other partition files of it are in reach here. If the disk is mounted elsewhere now, say where with "
        "rehydrate(..., root=...); if the files are gone, make the checkpoint again from its source",
        partitions=[partition],
        stores=[ref.id for ref in refs],
    )


# -------------------------------------------------------------------------------------------------------- errands
class Survey(NamedTuple):
    """A worker's answer to a preflight."""

    stores: dict[str, str]
    problems: list[str]
    warnings: list[str]


def survey(roots: tuple[str, ...] | None) -> Survey:
    """Make and check every root of this worker; give the stores in them by id."""
    try:
        settings = _settings(roots)
    except CkptSpillError as e:
        return Survey({}, [str(e)], [])
    result = Survey({}, [], [])
    for root in settings.roots:
        store, problems, warnings = check_root(root, min_free=settings.min_free, scratch=_scratch())
        result.problems.extend(f"{root}: {p}" for p in problems)
        result.warnings.extend(warnings)
        if store is not None:
            result.stores[store.id] = root
    return result


def discover(roots: tuple[str, ...] | None, named: Sequence[str] = ()) -> dict[str, str]:
    """Find the stores within reach, by id: in this worker's roots, in ``roots`` and in those that a manifest names."""
    found: dict[str, str] = {}
    for root in dict.fromkeys((*_settings(roots).roots, *_settings(None).roots, *named)):
        if store := Store.open(root):
            found.setdefault(store.id, root)
    return found


def manifests(roots: Sequence[str], checkpoint: str | None) -> list[bytes]:
    """Read the committed manifests of one checkpoint, or of all, in some stores."""
    return [m for root in roots if (store := Store.open(root)) for m in store.manifests(checkpoint)]


def begin(root: str, run: Run, intent: bytes) -> list[Record]:
    """Start a run in a store; give what it takes over from earlier runs of the same content that did not finish."""
    store, settings = Store.create(root), _settings(None)
    records = [_record(run, n, store, written) for n, written in store.adopt(run, threads=settings.threads)]
    store.begin(run, intent)
    return records


def seal(root: str, run: Run, expected: Mapping[str, int], durable: bool) -> list[str]:  # noqa: FBT001
    """Make a run's partition files in one store durable; give the names that are missing."""
    return Store.create(root).seal(run, expected, durable=durable)


def commit(root: str, run: Run, manifest: bytes, durable: bool) -> bool:  # noqa: FBT001
    """Write the manifest into one store; False if another run has committed this generation."""
    return Store.create(root).commit(run, manifest, durable=durable)


def sweep(root: str, run: Run) -> None:
    """Remove what a committed run makes useless: earlier generations, unfinished runs, its own directory if empty."""
    if store := Store.open(root):
        for other in store.runs(run.checkpoint):
            if other.generation <= run.generation and (other != run or not store.present(run)):
                store.remove(other)


def present(root: str, run: Run) -> dict[str, int]:
    """Names and sizes in bytes of a run's partition files in one store."""
    store = Store.open(root)
    return store.present(run) if store else {}


def remove(root: str, run: Run) -> None:
    """Remove a run from one store."""
    if store := Store.open(root):
        store.remove(run)


def discard_if_empty(root: str, run: Run) -> None:
    """Remove a run that failed before it had written anything; partitions that are there are kept for a resume."""
    store = Store.open(root)
    if store and not store.present(run):
        store.remove(run)


def verify(root: str, run: Run, digests: Mapping[int, bytes]) -> list[CkptSpillError]:
    """Read every byte of some partition files in one store; give what is wrong with them."""
    settings, problems = _settings(None), list[CkptSpillError]()
    store = Store.open(root)
    for partition, digest in digests.items():
        path = (store or Store(root, "")).partition_path(run, partition, digest)
        try:
            identity = Identity(run.checkpoint, run.generation, partition)
            partition_files.verify(path, identity, digest, threads=settings.threads)
        except CkptSpillError as e:
            problems.append(e)
        except OSError as e:
            problems.append(MissingPartitionError(f"{path}: {e.strerror or e}", partitions=[partition], path=path))
    return problems


# ----------------------------------------------------------------------------------------------------- this place
def _worker() -> Any:
    """Give the dask worker this code runs in; None in a process that is none."""
    if worker := errand_of.get():
        return worker
    try:
        return get_worker()  # of the task that this thread runs
    except ValueError:
        return None


def _worker_name() -> str:
    worker = _worker()
    return f"worker {worker.address}" if worker else f"process {os.getpid()}"


def _settings(roots: tuple[str, ...] | None) -> Settings:
    worker = _worker()
    return Settings.here(roots, nthreads=worker.state.nthreads if worker else None)


def _scratch() -> list[str]:
    """Directories that dask removes when a worker or a machine's next worker starts."""
    worker = _worker()
    return [os.path.dirname(worker.local_directory)] if worker else []
