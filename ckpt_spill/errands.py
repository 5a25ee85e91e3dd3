"""What a client asks of the processes that see the disks. Arguments and results are small and picklable."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from dask.typing import Key

from ckpt_spill.errors import (
    CkptSpillError,
    CorruptPartitionError,
    DiskFullError,
    MissingPartitionError,
    RefusedError,
)
from ckpt_spill.here import paths_here, scratch_here, settings_here, this_worker
from ckpt_spill.jobs import Record, StoreRef
from ckpt_spill.ongoing import abandon
from ckpt_spill.spill.area import remove_dead_areas
from ckpt_spill.spill.tier import DiskTier
from ckpt_spill.store import partition as partition_files
from ckpt_spill.store.partition import Identity
from ckpt_spill.store.preflight import check_root, too_full
from ckpt_spill.store.runs import Run
from ckpt_spill.store.store import Store
from ckpt_spill.tasks import record_of

_PATIENCE = 30  # seconds
_FLUSHES = 8  # at once

logger = logging.getLogger("ckpt_spill")


class GoneError(CkptSpillError):
    """A store is not there any more, or nobody who sees it. Not public: who can goes on without the store."""


class Survey(NamedTuple):
    """A worker's answer to a preflight."""

    stores: dict[str, str]
    problems: list[str]
    warnings: list[str]


def survey(roots: tuple[str, ...] | None) -> Survey:
    """Make and check every root of this worker; give the stores in them by id.

    One drive that is full is no problem while others are not.
    """
    try:
        settings = settings_here(roots)
    except CkptSpillError as e:
        return Survey({}, [str(e)], [])
    result, full = Survey({}, [], []), []
    for root in settings.roots:
        store, problems, warnings = check_root(root, scratch=scratch_here())
        result.problems.extend(f"{root}: {p}" for p in problems)
        result.warnings.extend(warnings)
        if store is not None:
            result.stores[store.id] = root
            full += too_full(root, settings.min_free)
    if len(full) == len(settings.roots):
        result.problems.extend(full)
    return result


def discover(roots: tuple[str, ...] | None, named: Sequence[str] = ()) -> dict[str, StoreRef]:
    """Find the stores within reach, by id: in ``roots``, in those that a manifest names, in this worker's own."""
    found: dict[str, StoreRef] = {}
    given = settings_here(roots).roots if roots else ()
    for root in dict.fromkeys((*given, *named, *settings_here(None).roots)):
        if store := Store.open(root):
            found.setdefault(store.id, StoreRef(store.id, root, socket.gethostname()))
            remove_dead_areas(store)  # of workers that spilled by link here, where no other may ever spill again
    return found


def manifests(roots: Sequence[str], checkpoint: str | None) -> list[tuple[str, bytes]]:
    """Read the committed manifests of one checkpoint, or of all, in some stores; give their paths and contents."""
    return [m for root in roots if (store := Store.open(root)) for m in store.manifests.read(checkpoint)]


def generations(root: str, checkpoint: str, identity: str) -> tuple[int, int]:
    """Give, of one store, the highest generation that is committed, and the highest unfinished one of this content."""
    if (store := Store.open(root)) is None:
        return 0, 0
    latest = store.manifests.latest(checkpoint)
    unfinished = (r.generation for r in store.runs(checkpoint) if r.identity == identity and r.generation > latest)
    return latest, max(unfinished, default=0)


def begin(root: str, run: Run, intent: bytes, durable: bool) -> list[Record] | None:  # noqa: FBT001
    """Start a run in a store; give what it takes over from earlier runs of the same content that did not finish.

    None where there is no room for even that: other drives may have some.
    """
    store, settings = Store.create(root), settings_here(None)
    try:
        store.begin(run, intent)
    except DiskFullError:
        store.remove(run)
        return None
    adopted = store.adopt(run, threads=settings.threads, durable=durable)
    return [record_of(run, n, store, written) for n, written in adopted]


def on_disk(held: Mapping[int, Key]) -> list[int]:
    """Give those of some partitions, held in memory under these keys, that are on the disk tier of this worker."""
    tier = _tier_here()
    return [n for n, key in held.items() if tier.whole_file(key)] if tier else []


def take(run: Run, held: Mapping[int, Key], roots: tuple[str, ...] | None, durable: bool) -> list[Record]:  # noqa: FBT001
    """Make partitions of what is on the disk tier of this worker, by links; give what that worked for.

    What has left the disk meanwhile, or cannot be taken for any other reason, has to be written.
    """
    if (tier := _tier_here()) is None:
        return []
    settings = settings_here(roots)

    def take_one(partition: int, key: Key) -> Record | None:
        if (file := tier.whole_file(key)) is None:
            return None
        root = file.store.root if file.store.root in settings.roots else settings.roots[0]
        try:
            store = Store.create(root)
            written = store.take(run, partition, file.path, file.digest, durable=durable)
        except (CkptSpillError, OSError) as e:
            logger.info("partition %d is written: %s cannot be taken: %s", partition, file.path, e)
            return None
        return record_of(run, partition, store, written)

    with ThreadPoolExecutor(_FLUSHES) as pool:  # a disk flushes several files in hardly more time than one
        return [record for record in pool.map(take_one, held, held.values()) if record]


def _tier_here() -> DiskTier | None:
    worker = this_worker()
    return getattr(worker.data, "tier", None) if worker else None


def salvage(root: str, run: Run, partitions: frozenset[int], durable: bool) -> list[Record]:  # noqa: FBT001
    """Give what an attempt to mend a committed run that did not finish has left in a store."""
    if (store := Store.open(root)) is None:
        return []
    found = store.salvage(run, partitions, threads=settings_here(None).threads, durable=durable)
    return [record_of(run, n, store, written) for n, written in found]


def seal(ref: StoreRef, run: Run, expected: Mapping[str, int], durable: bool, tidy: bool) -> list[str]:  # noqa: FBT001
    """Make a run's partition files in one store durable; give the names that are missing."""
    return _same_store(ref).seal(run, expected, durable=durable, tidy=tidy)


def commit(  # noqa: PLR0917
    ref: StoreRef,
    run: Run,
    manifest: bytes,
    expected: Mapping[str, int],
    durable: bool,  # noqa: FBT001
    amend: bool,  # noqa: FBT001
) -> list[Run] | None:
    """Write the manifest into one store; give the runs it makes useless, or None where it may not be written."""
    return _same_store(ref).commit(run, manifest, expected, durable=durable, amend=amend)


def _same_store(ref: StoreRef) -> Store:
    """Open a store that was there just now, and no other one that took its place: its disk may have been replaced."""
    if (store := Store.open(ref.root)) is None or store.id != ref.id:
        raise GoneError(f"store {ref.id} is not in {ref.root} on host {ref.host} any more")
    return store


def committed(root: str, run: Run) -> bool:
    """Tell whether a run is committed in one store."""
    store = Store.open(root)
    return store is not None and store.manifests.is_committed(run)


def uncommit(root: str, run: Run, revision: int) -> None:
    """Take back a revision of a run's manifest from one store; its partitions stay for a resume."""
    if store := Store.open(root):
        store.manifests.remove(run, revision)


def flush(root: str, run: Run, names: Sequence[str]) -> None:
    """Make a committed run durable that was written without."""
    Store.create(root).flush(run, names)


def superseded(root: str, run: Run) -> list[Run]:
    """Give the runs that a committed run makes useless."""
    store = Store.open(root)
    return store.superseded(run) if store else []


def sweep(root: str, run: Run, others: Sequence[Run]) -> None:
    """Remove runs that a committed one makes useless. Runs that began since are not among them, and are left alone."""
    if store := Store.open(root):
        for other in others:
            if other.generation < run.generation or not store.manifests.is_committed(other):
                store.remove(other)
        store.manifests.remove_damaged(run)


def present(root: str, run: Run) -> dict[str, int]:
    """Names and sizes in bytes of a run's partition files in one store."""
    store = Store.open(root)
    return store.present(run) if store else {}


def remove(root: str, run: Run) -> None:
    """Remove a run from one store."""
    if store := Store.open(root):
        store.remove(run)


def delete(root: str, run: Run) -> None:
    """Remove a run from one store, and the generations before it first, so that none of them comes back."""
    if store := Store.open(root):
        for other in store.runs(run.checkpoint):
            if other.generation < run.generation:
                store.remove(other)
        store.remove(run)


def paths() -> tuple[dict[str, bool], list[str]]:
    """Tell by which ways bytes go between files and a GPU here, and which are insisted on and are not there."""
    chosen, found, problems = paths_here(), {}, []
    for name, ask in (("gds", chosen.direct), ("nvcomp", chosen.decoding)):
        try:
            found[name] = ask()
        except RefusedError as e:
            problems.append(str(e))
    return found, problems


def give_up(runs: Sequence[Run]) -> None:
    """End the writes of runs that failed, so that no half file is left when the caller hears of it."""
    for run in runs:
        abandon(run.run, _PATIENCE)


def discard_empty(root: str, runs: Sequence[Run]) -> None:
    """Remove runs that failed before they had written anything; partitions that are there are kept for a resume."""
    if store := Store.open(root):
        for run in runs:
            if not store.present(run):
                store.remove(run)


def verify(root: str, run: Run, digests: Mapping[int, bytes]) -> dict[int, CkptSpillError]:
    """Read every byte of some partition files in one store; give what is wrong with them, by partition."""
    settings, problems = settings_here(None), dict[int, CkptSpillError]()
    store = Store.open(root)
    for partition, digest in digests.items():
        path = (store or Store(root, "")).partition_path(run, partition, digest)
        try:
            identity = Identity(run.checkpoint, run.generation, partition)
            partition_files.verify(path, identity, digest, threads=settings.threads)
        except CkptSpillError as e:
            problems[partition] = e
        except OSError as e:
            problems[partition] = MissingPartitionError(f"{path}: {e.strerror or e}", partitions=[partition], path=path)
    return problems


def discard_damaged(root: str, run: Run, digests: Mapping[int, bytes]) -> None:
    """Remove partition files of a store that are damaged, and were not replaced by sound ones since."""
    problems = verify(root, run, digests)
    if store := Store.open(root):
        store.discard(run, {n: digests[n] for n, p in problems.items() if isinstance(p, CorruptPartitionError)})
