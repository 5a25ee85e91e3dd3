"""The task that writes a partition: on workers, or here when there is no cluster."""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Iterator
from typing import Any

from distributed.sizeof import safe_sizeof

from ckpt_spill.config import Settings
from ckpt_spill.errors import DiskFullError, RootError, WriteError
from ckpt_spill.here import paths_here, process_name, scratch_here, settings_here
from ckpt_spill.jobs import Record, WriteJob
from ckpt_spill.ongoing import writing
from ckpt_spill.room import with_room
from ckpt_spill.store import partition as partition_files
from ckpt_spill.store.partition import Identity, Written
from ckpt_spill.store.preflight import check_root
from ckpt_spill.store.runs import Run
from ckpt_spill.store.store import Store


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
        paths=paths_here(),
    )
    written = with_room(lambda: store.publish(job.run, partition, write, needed=safe_sizeof(value)))
    return record_of(job.run, partition, store, written)


def _checked_store(root: str) -> Store:
    """Check and make a root that no preflight has seen, as this worker joined later."""
    store, problems, _ = check_root(root, scratch=scratch_here())
    if store is None:
        raise RootError(f"cannot write checkpoints in {root} on {process_name()}: {problems}", problems=problems)
    return store


@contextlib.contextmanager
def _naming(partition: int, job: WriteJob) -> Iterator[None]:
    """Say in an error which partition and worker it is about."""
    try:
        yield
    except WriteError as e:
        worker = process_name()
        details = {**e.details, "partition": partition, "worker": worker}
        raise type(e)(f"partition {partition} of checkpoint {job.run.checkpoint!r}, {worker}: {e}", **details) from e


def record_of(run: Run, partition: int, store: Store, written: Written) -> Record:
    """Make the record of a partition that was written or taken over here."""
    facts = written.nbytes, written.stored_nbytes, written.digest, written.direct_nbytes
    return Record(run.run, partition, store.id, store.root, socket.gethostname(), *facts)
