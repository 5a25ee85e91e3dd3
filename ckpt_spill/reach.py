"""What can be reached: the stores, and of a checkpoint the partition files in them."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from ckpt_spill import errands
from ckpt_spill.config import patience
from ckpt_spill.errors import CorruptPartitionError, MissingPartitionError, ReadError
from ckpt_spill.hosts import HostLostError, Hosts
from ckpt_spill.jobs import Record, StoreRef
from ckpt_spill.manifest import ManifestData
from ckpt_spill.store.store import Store

Key = TypeVar("Key")
T = TypeVar("T")
M = TypeVar("M", bound=ManifestData)

logger = logging.getLogger("ckpt_spill")
LOST = "checkpoint %r: lost %s; computing %d partitions again"
_SHOWN = 10
_RANGES = 50
_LOOK = 0.3  # seconds between looks for a store that may come back
REMAKE = (
    'rehydrate(..., missing="recompute", source=...) makes them again from the collection, as persist_to_disk() of it '
    "under the same name does"
)
ALONE = (
    "No cluster was asked: client= was not given and there is no current client, so only what this process sees was "
    "looked at"
)


class Place(NamedTuple):
    """Where a store can be reached: the address of a process that sees it, and the store as it sees it."""

    address: str
    store: StoreRef


# ----------------------------------------------------------------------------------------------------------- stores
def stores_in_reach(hosts: Hosts, roots: tuple[str, ...] | None, named: Sequence[str] = ()) -> dict[str, Place]:
    """Find the stores that some process can reach, by id, each with one place to reach it from."""
    found: dict[str, Place] = {}
    for address, stores in hosts.each(errands.discover, roots, list(named)).items():
        if stores is None:
            logger.warning("worker %s does not answer; what only it can reach counts as out of reach", address)
            continue
        for store, ref in stores.items():
            found.setdefault(store, Place(address, ref))
    return found


def places_of(
    hosts: Hosts, manifest: ManifestData, roots: tuple[str, ...] | None, named: Sequence[str] = ()
) -> dict[int, Place]:
    """Find the stores of a manifest that can be reached, by their number in it."""
    found = stores_in_reach(hosts, roots, [*named, *(s.root for s in manifest.stores)])
    return {n: found[s.id] for n, s in enumerate(manifest.stores) if s.id in found}


def ask(
    hosts: Hosts, errand: Callable[..., Any], places: Mapping[Key, Place], args: Callable[[Key, Place], Sequence[Any]]
) -> dict[Key, Any]:
    """Run an errand for each of some stores; results by store, but for those that were lost meanwhile."""
    calls = [(place.address, args(key, place)) for key, place in places.items()]
    results = zip(places, hosts.attempt(errand, calls), strict=True)
    return {key: result for key, result in results if not isinstance(result, HostLostError)}


def patiently(hosts: Hosts, look: Callable[[], T], awaited: Callable[[T], Sequence[str]], what: str) -> T:
    """Look until all stores are back that matter, or their time to come back is over; give what was seen last.

    Parameters
    ----------
    hosts : Hosts
        Where there is no cluster, nothing comes back.
    look : callable
    awaited : callable
        Names, of what was seen, the stores that are out of reach and matter.
    what : str
        Of which checkpoint they are.
    """
    seen, wait = look(), 0 if hosts.alone else patience()
    if wait and (away := awaited(seen)):
        logger.warning("%s: waiting up to %g seconds for what is out of reach: %s", what, wait, several(away))
    end = time.monotonic() + wait
    while wait and awaited(seen) and time.monotonic() < end:
        time.sleep(_LOOK)
        seen = look()
    return seen


def absent(manifest: ManifestData, places: Mapping[int, Place], numbers: Iterable[int] | None = None) -> list[str]:
    """Name the stores out of reach in which some partitions of a manifest are, or any."""
    reached = {manifest.stores[h].id for h in places}
    refs = _stores_of(manifest, range(manifest.npartitions) if numbers is None else numbers)
    return [describe(ref) for ref in refs if ref.id not in reached]


def describe(ref: StoreRef) -> str:
    """Name a store, and where it was last seen."""
    return f"store {ref.id} ({ref.root} on host {ref.host})"


# ------------------------------------------------------------------------------------------------------- partitions
@dataclasses.dataclass(frozen=True)
class Presence(Generic[M]):
    """What is in reach of a checkpoint.

    Parameters
    ----------
    manifest : Manifest
    places : dict
        Its stores that are in reach, by their number in the manifest.
    sound : tuple of tuple of int
        For each partition, the numbers of the stores that have a file of the right size.
    damaged : dict
        For each partition that has only files of another size, one of them and its size.
    alone : bool
        Whether only this process has looked, as there is no cluster.
    """

    manifest: M
    places: dict[int, Place]
    sound: tuple[tuple[int, ...], ...]
    damaged: dict[int, str]
    alone: bool

    @property
    def lost(self) -> list[int]:
        """Partitions that cannot be had."""
        return [n for n, holders in enumerate(self.sound) if not holders]

    @property
    def awaited(self) -> list[str]:
        """Stores out of reach in which partitions are that cannot be had: with these they may come back."""
        return absent(self.manifest, self.places, self.lost)

    def located(self) -> M:
        """Give the manifest with its stores where they are now."""
        return self.manifest.located({self.manifest.stores[n].id: place.store for n, place in self.places.items()})

    def warn_of_absences(self) -> None:
        """Log which copies cannot be had where others can."""
        absent: dict[int, list[int]] = {}
        for n, (holders, sound) in enumerate(zip(self.manifest.partitions.holders, self.sound, strict=True)):
            for h in holders if len(sound) < len(holders) else ():
                if h not in sound:
                    absent.setdefault(h, []).append(n)
        for h, numbers in absent.items():
            what = f"partitions {ranges(numbers)} in {describe(self.manifest.stores[h])}"
            how = "missing or damaged" if h in self.places else "out of reach"
            logger.warning("checkpoint %r: %s are %s; other copies are read", self.manifest.id, what, how)

    def records(self) -> list[Record]:
        """Give a record of each file."""
        return [self.manifest.record(n, self.places[h].store) for n, of in enumerate(self.sound) for h in of]

    def told(self) -> str:
        """Say what is lost, where it should be, and what is still there."""
        if self.lost != sorted(self.damaged):
            return _told(self.manifest, self.lost)
        damage = f"{len(self.damaged)} of its files are damaged: {several(self.damaged.values())}"
        return f"checkpoint {self.manifest.id!r}: {damage}"

    def error(self) -> ReadError:
        """Say this, and the way out."""
        if self.lost != sorted(self.damaged):
            return missing(self.manifest, self.lost, alone=self.alone)
        return CorruptPartitionError(f"{self.told()}. {REMAKE}", partitions=sorted(self.damaged))


def presence(hosts: Hosts, manifest: M, roots: tuple[str, ...] | None, named: Sequence[str] = ()) -> Presence[M]:
    """Look which partitions have a file of the right size in some store in reach. Opens none of them."""
    for _ in range(3):  # a worker that is lost while it looks may not be the only one that sees its stores
        places = places_of(hosts, manifest, roots, named)
        listings = ask(hosts, errands.present, places, lambda _, place: (place.store.root, manifest.run))
        if len(listings) == len(places):
            break
    places = {n: places[n] for n in listings}
    sound: list[list[int]] = [[] for _ in range(manifest.npartitions)]
    damaged: dict[int, str] = {}
    for number, listing in listings.items():
        for n, (name, size) in manifest.files(number).items():
            if listing.get(name) == size:
                sound[n].append(number)
            elif name in listing:
                path = Store(places[number].store.root, "").partition_path(
                    manifest.run, n, manifest.partitions[n].digest
                )
                damaged[n] = f"partition {n}: {path} has {listing[name]:,} bytes, not {size:,}"
    damaged = {n: text for n, text in damaged.items() if not sound[n]}
    return Presence(manifest, places, tuple(map(tuple, sound)), damaged, hosts.alone)


def missing(manifest: ManifestData, gone: Iterable[int], *, alone: bool) -> MissingPartitionError:
    """Make the error that says which partitions are missing, where they should be, and what is still there."""
    numbers = sorted(set(gone))
    return MissingPartitionError(
        _told(manifest, numbers)
        + (f". {ALONE}" if alone else "")
        + ". If the checkpoint was made again since, rehydrate it by its name. If a disk is mounted elsewhere now, say "
        f"where with root= or ckpt-spill.root. If the files are gone, {REMAKE}",
        partitions=numbers,
        stores=[ref.id for ref in _stores_of(manifest, numbers)],
    )


def _told(manifest: ManifestData, lost: Sequence[int]) -> str:
    present, places = manifest.npartitions - len(lost), "; ".join(map(describe, _stores_of(manifest, lost)))
    return (
        f"checkpoint {manifest.id!r}: {present} of {manifest.npartitions} partitions present; missing or out of reach: "
        f"{ranges(lost)}, which belong in {places}"
    )


def _stores_of(manifest: ManifestData, numbers: Iterable[int]) -> list[StoreRef]:
    """Give the stores in which some partitions of a manifest are."""
    return [manifest.stores[h] for h in sorted({h for n in numbers for h in manifest.partitions.holders[n]})]


def ranges(numbers: Sequence[int]) -> str:
    """Write sorted numbers shortly: 1, 3-7."""
    spans = []
    for _, pairs in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        first, *rest = [n for _, n in pairs]
        spans.append(f"{first}-{rest[-1]}" if rest else str(first))
    return several(spans, ", ", _RANGES)


def several(things: Iterable[object], separator: str = "; ", shown: int = _SHOWN) -> str:
    """Join the first few of some things."""
    texts = list(map(str, things))
    more = len(texts) - shown
    return separator.join(texts[:shown]) + (f"{separator}and {more} more" if more > 0 else "")
