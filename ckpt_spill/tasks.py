"""The two tasks of graphs, ``write_partition`` and ``read_partition``: on workers, or here when there is no cluster."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from distributed import get_worker
from distributed.sizeof import safe_sizeof

from ckpt_spill.config import Settings
from ckpt_spill.errors import DiskFullError, MissingPartitionError, ReadError, RootError, WriteError
from ckpt_spill.jobs import ReadJob, Record, StoreRef, WriteJob
from ckpt_spill.ongoing import writing
from ckpt_spill.store import partition as partition_files
from ckpt_spill.store.partition import Identity, Written
from ckpt_spill.store.preflight import check_root
from ckpt_spill.store.runs import Run, parse_partition_file
from ckpt_spill.store.store import Store, find_store

errand_of: contextvars.ContextVar[Any] = contextvars.ContextVar("errand_of", default=None)
"""The worker that runs an errand; dask tells only tasks where they run."""


# ---------------------------------------------------------------------------------------------------- graph tasks
def write_partition(value: Any, partition: int, job: WriteJob) -> Record:
    """Write one partition into the first root that has room, starting with another root for each partition."""
    settings = settings_here(job.roots)
    if job.kind == "bag":
        value = as_container(value)
    first = partition % len(settings.roots)
    *others, last = settings.roots[first:] + settings.roots[:first]
    with writing(job.run.run), _naming(partition, job):
        for root in others:
            with contextlib.suppress(DiskFullError):
                return _write_to(root, value, partition, job, settings)
        return _write_to(last, value, partition, job, settings)


def as_container(partition: Any) -> Any:
    """Turn an iterator, which a bag's partition may be, into a list; other partitions stay as they are."""
    return partition if hasattr(partition, "__len__") else list(partition)


def _write_to(root: str, value: Any, partition: int, job: WriteJob, settings: Settings) -> Record:
    store = Store.open(root) or _checked_store(root)
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
    return record_of(job.run, partition, store, written)


def _checked_store(root: str) -> Store:
    """Check and make a root that no preflight has seen, as this worker joined later."""
    store, problems, _ = check_root(root, scratch=scratch_here())
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
    settings = settings_here(None)
    identity = Identity(job.run.checkpoint, job.run.generation, partition)
    failures: list[ReadError | OSError] = []
    for ref in (job.stores[h] for h in holders):
        store = find_store(ref.id, (ref.root, *settings.roots))
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
                f"{socket.gethostname()}: {failure}. Delete the checkpoint and make it again from its source",
                **{**failure.details, "partition": partition},
            ) from failure
    raise _missing(job, partition, [job.stores[h] for h in holders], settings, failures)


def record_of(run: Run, partition: int, store: Store, written: Written) -> Record:
    """Make the record of a partition that was written or taken over here."""
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
        if store := find_store(ref.id, (ref.root, *settings.roots)):
            here |= {parse_partition_file(name) for name in store.present(job.run)}
    return MissingPartitionError(
        f"partition {partition} of checkpoint {job.run.checkpoint!r} (generation {job.run.generation}) cannot be read "
        f"by {_worker_name()} on host {socket.gethostname()}. It should be in {places}: {reason}. {len(here)} "
        "other partition files of it are in reach here. If the disk is mounted elsewhere now, say where with "
        "rehydrate(..., root=...); if the files are gone, delete() the checkpoint and make it again from its source",
        partitions=[partition],
        stores=[ref.id for ref in refs],
    )


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


def settings_here(roots: tuple[str, ...] | None) -> Settings:
    """Read the settings of this process, which may be a worker."""
    worker = _worker()
    return Settings.here(roots, nthreads=worker.state.nthreads if worker else None)


def scratch_here() -> list[str]:
    """Directories that dask removes when a worker or a machine's next worker starts."""
    worker = _worker()
    return [os.path.dirname(worker.local_directory)] if worker else []
