"""The task that reads a partition: where it lies, else from a peer; after a copy that cannot be used, the next."""

from __future__ import annotations

import functools
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from distributed import Reschedule

from ckpt_spill.clean import CleanFile, note_clean
from ckpt_spill.cluster.remote import FileId, PeerLostError, RemoteFile
from ckpt_spill.cluster.worker import Sources, sharing
from ckpt_spill.config import patience
from ckpt_spill.errors import CorruptPartitionError, MissingPartitionError, ReadError
from ckpt_spill.here import current_task, paths_here, process_name, settings_here, this_worker
from ckpt_spill.jobs import ReadJob, StoreRef
from ckpt_spill.room import with_room
from ckpt_spill.store import partition as partition_files
from ckpt_spill.store.partition import Identity
from ckpt_spill.store.runs import parse_partition_file
from ckpt_spill.store.store import find_store

_PAUSE = 1.0  # seconds

logger = logging.getLogger("ckpt_spill")

Failures = dict[str, CorruptPartitionError | OSError]
"""Stores whose copy certainly cannot be used, and why."""


def read_partition(job: ReadJob, partition: int, digest: bytes, holders: Sequence[int]) -> Any:
    """Read one partition, or some columns of it.

    Parameters
    ----------
    job : ReadJob
    partition : int
        Its number.
    digest : bytes
        BLAKE3 of the file's footer.
    holders : sequence of int
        Which of the job's stores have it.

    Raises
    ------
    CorruptPartitionError, MissingPartitionError
        No copy can be used; the message says what is wrong with each.
    ReadError
        What is read cannot be made here; no copy is at fault.
    distributed.Reschedule
        No copy can be reached now: the scheduler lets the task wait until a worker that sees one is there, or gives up.
    """
    return Reading(job, partition, digest, tuple(job.stores[h] for h in holders)).value()


class Reading:
    """One attempt at a partition."""

    def __init__(self, job: ReadJob, partition: int, digest: bytes, refs: tuple[StoreRef, ...]) -> None:
        self._job, self._partition, self._digest, self._refs = job, partition, digest, refs
        self._settings = settings_here(None)
        self._sharing = sharing(this_worker())
        self._failed: Failures = {}
        self._silent: list[str] = []
        roots = (*self._settings.roots, *sorted(self._sharing.roots if self._sharing else ()))
        self._seen = {ref.id: find_store(ref.id, (ref.root, *roots)) for ref in job.stores}

    def value(self) -> Any:
        """Read the first copy that is sound, as soon as one can be reached."""
        end = time.monotonic() + patience()
        while not (found := self._try_all()):
            if not self._can_ask() or len(self._failed) == len(self._refs):
                raise self._error()
            if self._ask().waits:
                raise Reschedule
            # Somebody has said where this runs, or it is a part of another task: it cannot wait in the scheduler.
            if time.monotonic() > end:
                raise self._error()
            time.sleep(_PAUSE)
            self._silent.clear()
        return found[0]

    def _try_all(self) -> tuple[Any] | None:
        """Give the value in the first copy that is sound, in a tuple as it may be anything; None if there is none."""
        for candidates in (self._here, self._from_peers):
            for store, opening in candidates():
                try:
                    return (self._read(store, opening()),)
                except PeerLostError as e:
                    self._silent.append(e.peer)
                    logger.warning("%s: %s", self._what(), e)
                except (CorruptPartitionError, OSError) as e:
                    self._failed[store] = e
                    logger.warning("%s: the copy in store %s cannot be used: %s", self._what(), store, e)
        return None

    def _read(self, store: str, source: str | RemoteFile) -> Any:
        columns, library = self._job.columns, self._job.backend
        identity = Identity(self._job.run.checkpoint, self._job.run.generation, self._partition)
        read = functools.partial(
            partition_files.read,
            source,
            identity,
            self._digest,
            columns=columns,
            library=library,
            threads=self._settings.threads,
            paths=paths_here(),
        )
        value = with_room(read)
        if self._sharing:
            self._sharing.count(source)
        if isinstance(source, str) and (seen := self._seen[store]):
            note_clean(CleanFile(seen, source, identity, self._digest, columns, library))
        return value

    # ------------------------------------------------------------------------------------------------- candidates
    def _here(self) -> Iterator[tuple[str, Callable[[], str]]]:
        for ref in self._refs:
            if store := self._seen[ref.id]:
                path = functools.partial(store.partition_path, self._job.run, self._partition, self._digest)
                yield ref.id, path

    def _from_peers(self) -> Iterator[tuple[str, Callable[[], RemoteFile]]]:
        for peer, store in self._ask().peers:
            if self._sharing and store not in self._failed and peer not in self._silent:
                file = FileId(store, self._job.run, self._partition, self._digest)
                yield store, functools.partial(self._sharing.open, peer, file)

    def _can_ask(self) -> bool:
        """Tell whether the plugins are there, as far as is known."""
        return self._sharing is not None and self._sharing.steered

    def _ask(self) -> Sources:
        """Ask the scheduler who can serve this, and tell what was found out. One that stands still is asked again."""
        if self._sharing is None or len(self._failed) == len(self._refs):
            return Sources([], waits=False)
        reasons = {store: str(e) for store, e in self._failed.items()}
        stores = [ref.id for ref in self._refs]
        try:
            return self._sharing.sources(current_task(), self._partition, stores, failed=reasons, silent=self._silent)
        except (OSError, TimeoutError) as e:
            logger.warning("%s: the scheduler does not say who can serve it: %r", self._what(), e)
            return Sources([], waits=True)

    # ------------------------------------------------------------------------------------------------------ errors
    def _what(self) -> str:
        return f"partition {self._partition} of checkpoint {self._job.run.checkpoint!r}"

    def _error(self) -> ReadError:
        by = f"{process_name()} on host {socket.gethostname()}"
        for failure in self._failed.values():
            if isinstance(failure, ReadError):
                return type(failure)(
                    f"{self._what()}, read by {by}: {_all(self._failed)}. "
                    "Manifest.repair() removes what is damaged; then persist_to_disk() of the same collection under "
                    'the same name, or rehydrate(..., missing="recompute", source=...), makes just that again',
                    **{**failure.details, "partition": self._partition},
                )
        places = "; ".join(f"store {ref.id} ({ref.root} on host {ref.host})" for ref in self._refs)
        return MissingPartitionError(
            f"{self._what()} (generation {self._job.run.generation}) cannot be read by {by}. It should be in {places}: "
            f"{_all(self._failed) or 'none of these stores can be seen from here'}. {self._others_here()} other "
            f"partition files of it are in reach here. {self._why_not_elsewhere()}If the disk is mounted elsewhere "
            'now, say where with rehydrate(..., root=...); if the files are gone, rehydrate(..., missing="recompute", '
            "source=...) makes them again",
            partitions=[self._partition],
            stores=[ref.id for ref in self._refs],
        )

    def _why_not_elsewhere(self) -> str:
        if this_worker() is None:
            return "No cluster was used, so that nobody but this process has looked. "
        if not self._can_ask():
            return (
                "Workers do not read each other's files here, as the plugins are not installed: call rehydrate() once "
                "with a client of this cluster, or start the scheduler with --preload ckpt_spill.cluster.scheduler. "
            )
        return ""

    def _others_here(self) -> int:
        stores = [store for store in self._seen.values() if store]
        return len({parse_partition_file(name) for store in stores for name in store.present(self._job.run)})


def _all(failures: Mapping[str, Exception]) -> str:
    return "; ".join(map(str, failures.values()))
