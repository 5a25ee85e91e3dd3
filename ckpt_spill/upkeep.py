"""Copies of a committed checkpoint: more of them, and again those that were lost or damaged."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from ckpt_spill import errands
from ckpt_spill.commit import Commit, is_committed, remove_deleted
from ckpt_spill.errands import GoneError
from ckpt_spill.errors import (
    CkptSpillError,
    ConflictError,
    CorruptPartitionError,
    MissingPartitionError,
    ReadError,
    WriteError,
)
from ckpt_spill.hosts import Hosts
from ckpt_spill.jobs import Record, StoreRef
from ckpt_spill.manifest import ManifestData
from ckpt_spill.reach import (
    REMAKE,
    Place,
    absent,
    ask,
    describe,
    missing,
    patiently,
    places_of,
    presence,
    ranges,
    several,
    stores_in_reach,
)
from ckpt_spill.replicas import Replication

M = TypeVar("M", bound=ManifestData)

logger = logging.getLogger("ckpt_spill")


def replicate(hosts: Hosts, manifest: M, replicas: int) -> M:
    """Make copies until each partition has so many. Those that are there are not read, but for being copied.

    Raises
    ------
    MissingPartitionError, CorruptPartitionError
        A partition has no copy that can be used.
    """
    seen = patiently(
        hosts,
        lambda: presence(hosts, manifest, None),
        lambda seen: absent(manifest, seen.places),
        f"checkpoint {manifest.id!r}",
    )
    if seen.lost:
        raise seen.error()
    made, lost = _completed(hosts, manifest, seen.records(), max(replicas, manifest.replicas))
    if lost:
        raise missing(made, lost, alone=hosts.alone)
    return made


def repair(hosts: Hosts, manifest: M) -> M:
    """Read every byte of every copy, and make again those that are damaged or missing.

    Raises
    ------
    CorruptPartitionError, MissingPartitionError
        Partitions have no sound copy. The others have all theirs.
    """
    checked = check(hosts, manifest)
    for n, h in checked.problems:
        logger.warning("checkpoint %r: %s", manifest.id, checked.told(n, h))
    made, lost = _completed(hosts, manifest, checked.records(), manifest.replicas)
    _remove_damaged(hosts, made, lost, checked)
    if lost:
        raise _beyond_repair(made, lost, checked)
    return made


# --------------------------------------------------------------------------------------------------------------- checks
@dataclasses.dataclass(frozen=True)
class Checked:
    """What is sound of a checkpoint.

    Parameters
    ----------
    manifest : ManifestData
    places : dict
        Its stores that are in reach, by their number in the manifest.
    problems : dict
        What is wrong with a copy, by partition and number of the store.
    alone : bool
        Whether only this process has looked, as there is no cluster.
    """

    manifest: ManifestData
    places: Mapping[int, Place]
    problems: Mapping[tuple[int, int], CkptSpillError]
    alone: bool

    @property
    def damaged(self) -> dict[tuple[int, int], CkptSpillError]:
        """Copies that are there, but not as they were written."""
        return {copy: p for copy, p in self.problems.items() if isinstance(p, CorruptPartitionError)}

    @property
    def gone(self) -> list[tuple[int, int]]:
        """Copies that are missing, or out of reach."""
        away = [(n, h) for n, of in enumerate(self.manifest.partitions.holders) for h in of if h not in self.places]
        return [*away, *(self.problems.keys() - self.damaged.keys())]

    def told(self, n: int, h: int) -> str:
        """Say what is wrong with a copy; nodes may have it at the same path."""
        ref = self.places[h].store
        return f"partition {n} in store {ref.id} on host {ref.host}: {self.problems[n, h]}"

    def error(self) -> ReadError | None:
        """Say what is wrong, if anything is."""
        lost = sorted(set(range(self.manifest.npartitions)) - {r.partition for r in self.records()})
        gone = sorted({n for n, _ in self.gone})
        way_out = "repair() makes them again from sound copies"
        if lost:
            way_out += f" and removes damaged files. Partitions {ranges(lost)} have no sound copy: {REMAKE}"
        if self.damaged:
            problems = list(itertools.starmap(self.told, self.damaged))
            problems += [f"a copy of partition {n} is missing" for n in gone]
            return CorruptPartitionError(
                f"checkpoint {self.manifest.id!r}: {len(self.damaged)} files are damaged and {len(self.gone)} missing "
                f"or out of reach: {several(problems)}. {way_out}",
                problems=problems,
            )
        if lost:
            return missing(self.manifest, lost, alone=self.alone)
        if gone:
            return MissingPartitionError(
                f"checkpoint {self.manifest.id!r}: all partitions are present, but {len(self.gone)} copies, of "
                f"partitions {ranges(gone)}, are missing or out of reach. {way_out}",
                partitions=gone,
            )
        return None

    def records(self) -> list[Record]:
        """Give a record of each sound copy."""
        copies = ((n, h) for n, of in enumerate(self.manifest.partitions.holders) for h in of if h in self.places)
        return [self.manifest.record(n, self.places[h].store) for n, h in copies if (n, h) not in self.problems]


def check(hosts: Hosts, manifest: ManifestData) -> Checked:
    """Read every byte of every copy that is in reach, or comes back in time."""
    digests: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
    for n, partition in enumerate(manifest.partitions):
        for h in partition.holders:
            digests[h][n] = partition.digest
    places: dict[int, Place] = {}
    found: dict[int, dict[int, CkptSpillError]] = {}

    def look() -> None:
        places.update(new := {h: p for h, p in places_of(hosts, manifest, None).items() if h not in found})
        found.update(ask(hosts, errands.verify, new, lambda h, p: (p.store.root, manifest.run, digests[h])))

    patiently(hosts, look, lambda _: absent(manifest, {h: places[h] for h in found}), f"checkpoint {manifest.id!r}")
    problems = {(n, h): problem for h, of_store in found.items() for n, problem in of_store.items()}
    return Checked(manifest, {h: places[h] for h in found}, problems, hosts.alone)


# --------------------------------------------------------------------------------------------------------------- copies
def _completed(hosts: Hosts, manifest: M, records: Collection[Record], replicas: int) -> tuple[M, list[int]]:
    """Make what is lacking, and tell all stores; give the manifest of it, and the partitions that have no copy."""
    there = {(r.partition, r.store) for r in records}
    was_committed = is_committed(hosts, manifest.run, _stores(hosts, manifest))
    try:
        with Replication(
            hosts,
            manifest.run,
            replicas,
            manifest.npartitions,
            records,
            named=manifest.stores,
            durable=manifest.durable,
        ) as replication:
            holders: defaultdict[int, set[str]] = defaultdict(set)
            made: defaultdict[str, list[int]] = defaultdict(list)
            for r in replication.finish():
                holders[r.partition].add(r.store)
                if (r.partition, r.store) not in there:
                    made[describe(StoreRef(r.store, r.root, r.host))].append(r.partition)
        for store, partitions in made.items():
            logger.info("checkpoint %r: copied partitions %s to %s", manifest.id, ranges(sorted(partitions)), store)
        lost = [n for n in range(manifest.npartitions) if n not in holders]
        return _amended(hosts, manifest, holders, replicas), lost
    except CkptSpillError as e:
        if was_committed and remove_deleted(hosts, manifest.run, _stores(hosts, manifest)):
            raise ConflictError(
                f"no store in reach has checkpoint {manifest.id!r} of generation {manifest.run.generation} any more: "
                "it was deleted or replaced meanwhile, or all its nodes were lost. Copies that were made were removed"
            ) from e
        if not isinstance(e, GoneError):
            raise
        raise WriteError(
            f"checkpoint {manifest.id!r} stays as it was: {e}. Call again: copies that were made are taken over"
        ) from e


def _stores(hosts: Hosts, manifest: ManifestData) -> dict[str, Place]:
    """Find all stores in reach, by id."""
    return stores_in_reach(hosts, None, [ref.root for ref in manifest.stores])


def _amended(hosts: Hosts, manifest: M, holders: Mapping[int, set[str]], replicas: int) -> M:
    """Tell all stores which of them hold what; partitions without any copy stay where they were."""
    before = [{manifest.stores[h].id for h in of} for of in manifest.partitions.holders]
    after = [holders.get(n, stores) for n, stores in enumerate(before)]
    if after == before and replicas == manifest.replicas:
        return manifest
    used = set[str]().union(*after)
    known = {ref.id for ref in manifest.stores}
    places = {store: place for store, place in _stores(hosts, manifest).items() if store in known | used}
    refs = {ref.id: ref for ref in manifest.stores if ref.id in used} | {s: p.store for s, p in places.items()}
    if gone := used - refs.keys():
        raise GoneError(f"stores that were to have copies are out of reach: {several(sorted(gone))}")
    number = {store: h for h, store in enumerate(refs)}
    table = dataclasses.replace(
        manifest.partitions, holders=tuple(tuple(sorted(number[s] for s in stores)) for stores in after)
    )
    made = dataclasses.replace(
        manifest, stores=tuple(refs.values()), partitions=table, replicas=replicas, revision=manifest.revision + 1
    )
    lost = {n for n in range(manifest.npartitions) if n not in holders}
    Commit(hosts, made, places, durable=manifest.durable, lost=lost).again(known)
    logger.info("checkpoint %r: revision %d", made.id, made.revision)
    return made


def _remove_damaged(hosts: Hosts, made: ManifestData, lost: Collection[int], checked: Checked) -> None:
    """Remove damaged files that were not replaced."""
    digests: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
    for n, h in checked.damaged:
        holders = {made.stores[k].id for k in made.partitions.holders[n]}
        if n in lost or checked.manifest.stores[h].id not in holders:
            digests[h][n] = made.partitions[n].digest
    places = {h: checked.places[h] for h in digests}
    ask(hosts, errands.discard_damaged, places, lambda h, place: (place.store.root, made.run, digests[h]))


def _beyond_repair(made: ManifestData, lost: Sequence[int], checked: Checked) -> ReadError:
    """Say which partitions have no sound copy."""
    damaged = [checked.told(n, h) for n, h in checked.damaged if n in lost]
    if not damaged:
        return missing(made, lost, alone=checked.alone)
    return CorruptPartitionError(
        f"checkpoint {made.id!r}: partitions {ranges(lost)} have no sound copy: {several(damaged)}. Damaged files were "
        f"removed; all other partitions have {made.replicas} copies. {REMAKE}",
        partitions=lost,
        problems=damaged,
    )
