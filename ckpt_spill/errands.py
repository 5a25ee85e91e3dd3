"""What a client asks of the processes that see the disks. Arguments and results are small and picklable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ckpt_spill.errors import CkptSpillError, MissingPartitionError
from ckpt_spill.ongoing import abandon
from ckpt_spill.store import partition as partition_files
from ckpt_spill.store.partition import Identity
from ckpt_spill.store.preflight import check_root
from ckpt_spill.store.runs import Run
from ckpt_spill.store.store import Store
from ckpt_spill.tasks import Record, record_of, scratch_here, settings_here

_PATIENCE = 30  # seconds


class Survey(NamedTuple):
    """A worker's answer to a preflight."""

    stores: dict[str, str]
    problems: list[str]
    warnings: list[str]


def survey(roots: tuple[str, ...] | None) -> Survey:
    """Make and check every root of this worker; give the stores in them by id."""
    try:
        settings = settings_here(roots)
    except CkptSpillError as e:
        return Survey({}, [str(e)], [])
    result = Survey({}, [], [])
    for root in settings.roots:
        store, problems, warnings = check_root(root, min_free=settings.min_free, scratch=scratch_here())
        result.problems.extend(f"{root}: {p}" for p in problems)
        result.warnings.extend(warnings)
        if store is not None:
            result.stores[store.id] = root
    return result


def discover(roots: tuple[str, ...] | None, named: Sequence[str] = ()) -> dict[str, str]:
    """Find the stores within reach, by id: in this worker's roots, in ``roots`` and in those that a manifest names."""
    found: dict[str, str] = {}
    for root in dict.fromkeys((*settings_here(roots).roots, *settings_here(None).roots, *named)):
        if store := Store.open(root):
            found.setdefault(store.id, root)
    return found


def manifests(roots: Sequence[str], checkpoint: str | None) -> list[bytes]:
    """Read the committed manifests of one checkpoint, or of all, in some stores."""
    return [m for root in roots if (store := Store.open(root)) for m in store.manifests(checkpoint)]


def begin(root: str, run: Run, intent: bytes) -> list[Record]:
    """Start a run in a store; give what it takes over from earlier runs of the same content that did not finish."""
    store, settings = Store.create(root), settings_here(None)
    records = [record_of(run, n, store, written) for n, written in store.adopt(run, threads=settings.threads)]
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


def give_up(runs: Sequence[Run]) -> None:
    """End the writes of runs that failed, so that no half file is left when the caller hears of it."""
    for run in runs:
        abandon(run.run, _PATIENCE)


def discard_if_empty(root: str, run: Run) -> None:
    """Remove a run that failed before it had written anything; partitions that are there are kept for a resume."""
    store = Store.open(root)
    if store and not store.present(run):
        store.remove(run)


def verify(root: str, run: Run, digests: Mapping[int, bytes]) -> list[CkptSpillError]:
    """Read every byte of some partition files in one store; give what is wrong with them."""
    settings, problems = settings_here(None), list[CkptSpillError]()
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
