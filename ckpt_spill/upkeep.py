"""Copies of a committed checkpoint: more of them, and again those that were lost or damaged."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from ckpt_spill import errands
from ckpt_spill.commit import Commit
from ckpt_spill.errands import GoneError
from ckpt_spill.errors import CkptSpillError, CorruptPartitionError, MissingPartitionError, ReadError, WriteError
from ckpt_spill.hosts import Hosts
from ckpt_spill.jobs import Record
from ckpt_spill.manifest import ManifestData
from ckpt_spill.reach import REMAKE, Place, ask, missing, places_of, presence, ranges, several, stores_in_reach
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
    seen = presence(hosts, manifest, None)
    if seen.lost:
        raise seen.error()
    made, lost = _completed(hosts, manifest, seen.records(), max(replicas, manifest.replicas))
    if lost:
        raise missing(made, lost)
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
    """

    manifest: ManifestData
    places: Mapping[int, Place]
    problems: Mapping[tuple[int, int], CkptSpillError]

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
        return f"store {ref.id} on host {ref.host}: {self.problems[n, h]}"

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
                f"{self.manifest!r}: {len(self.damaged)} files are damaged and {len(self.gone)} missing or out of "
                f"reach: {several(problems)}. {way_out}",
                problems=problems,
            )
        if lost:
            return missing(self.manifest, lost)
        if gone:
            return MissingPartitionError(
                f"{self.manifest!r}: all partitions are present, but {len(self.gone)} copies, of partitions "
                f"{ranges(gone)}, are missing or out of reach. {way_out}",
                partitions=gone,
            )
        return None

    def records(self) -> list[Record]:
        """Give a record of each sound copy."""
        copies = ((n, h) for n, of in enumerate(self.manifest.partitions.holders) for h in of if h in self.places)
        return [self.manifest.record(n, self.places[h].store) for n, h in copies if (n, h) not in self.problems]


def check(hosts: Hosts, manifest: ManifestData) -> Checked:
    """Read every byte of every copy that is in reach."""
    places = places_of(hosts, manifest, None)
    digests: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
    for n, partition in enumerate(manifest.partitions):
        for h in partition.holders:
            digests[h][n] = partition.digest
    found = ask(hosts, errands.verify, places, lambda h, place: (place.store.root, manifest.run, digests[h]))
    problems = {(n, h): problem for h, of_store in found.items() for n, problem in of_store.items()}
    return Checked(manifest, {h: places[h] for h in found}, problems)


# --------------------------------------------------------------------------------------------------------------- copies
def _completed(hosts: Hosts, manifest: M, records: Iterable[Record], replicas: int) -> tuple[M, list[int]]:
    """Make what is lacking, and tell all stores; give the manifest of it, and the partitions that have no copy."""
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
            for record in replication.finish():
                holders[record.partition].add(record.store)
        lost = [n for n in range(manifest.npartitions) if n not in holders]
        return _amended(hosts, manifest, holders, replicas), lost
    except GoneError as e:
        raise WriteError(f"{manifest!r} stays as it was: {e}. Call again: copies that were made are taken over") from e


def _amended(hosts: Hosts, manifest: M, holders: Mapping[int, set[str]], replicas: int) -> M:
    """Tell all stores which of them hold what; partitions without any copy stay where they were."""
    before = [{manifest.stores[h].id for h in of} for of in manifest.partitions.holders]
    after = [holders.get(n, stores) for n, stores in enumerate(before)]
    if after == before and replicas == manifest.replicas:
        return manifest
    used = set[str]().union(*after)
    known = {ref.id for ref in manifest.stores}
    reach = stores_in_reach(hosts, None, [ref.root for ref in manifest.stores])
    places = {store: place for store, place in reach.items() if store in known | used}
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
    copies = sum(len(new - old) for new, old in zip(after, before, strict=True))
    logger.info("%r: %d copies were made, revision %d", made, copies, made.revision)
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
        return missing(made, lost)
    return CorruptPartitionError(
        f"{made!r}: partitions {ranges(lost)} have no sound copy: {several(damaged)}. Damaged files were "
        f"removed; all other partitions have {made.replicas} copies. {REMAKE}",
        partitions=lost,
        problems=damaged,
    )
