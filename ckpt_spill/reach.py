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
_SHOWN = 10
_RANGES = 50
_LOOK = 0.3  # seconds between looks for a store that may come back
REMAKE = (
    'rehydrate(..., missing="recompute", source=...) makes them again from the collection, as persist_to_disk() of it '
    "under the same name does"
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


def patiently(look: Callable[[], T], enough: Callable[[T], bool]) -> T:
    """Look until it is enough, or the time is over that a store has to come back; give what was seen last."""
    end = time.monotonic() + patience()
    if not enough(seen := look()):
        logger.warning("waiting %g seconds for stores that are out of reach to come back", patience())
    while not enough(seen) and time.monotonic() < end:
        time.sleep(_LOOK)
        seen = look()
    return seen


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
    """

    manifest: M
    places: dict[int, Place]
    sound: tuple[tuple[int, ...], ...]
    damaged: dict[int, str]

    @property
    def lost(self) -> list[int]:
        """Partitions that cannot be had."""
        return [n for n, holders in enumerate(self.sound) if not holders]

    @property
    def may_improve(self) -> bool:
        """Whether a partition that cannot be had is in a store that is out of reach, and may come back."""
        return any(set(self.manifest.partitions.holders[n]) - self.places.keys() for n in self.lost)

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
            ref = self.manifest.stores[h]
            what = f"partitions {ranges(numbers)} in store {ref.id} ({ref.root} on host {ref.host})"
            logger.warning("checkpoint %r: %s are out of reach; other copies are read", self.manifest.id, what)

    def records(self) -> list[Record]:
        """Give a record of each file."""
        return [self.manifest.record(n, self.places[h].store) for n, of in enumerate(self.sound) for h in of]

    def error(self) -> ReadError:
        """Say what is lost, where it should be, and what is still there."""
        if self.lost != sorted(self.damaged):
            return missing(self.manifest, self.lost)
        return CorruptPartitionError(
            f"{self.manifest!r}: {len(self.damaged)} of its files are damaged: {several(self.damaged.values())}. "
            f"{REMAKE}",
            partitions=sorted(self.damaged),
        )


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
    return Presence(manifest, places, tuple(map(tuple, sound)), damaged)


def missing(manifest: ManifestData, gone: Iterable[int]) -> MissingPartitionError:
    """Make the error that says which partitions are missing, where they should be, and what is still there."""
    numbers = sorted(set(gone))
    refs = [manifest.stores[h] for h in sorted({h for n in numbers for h in manifest.partitions[n].holders})]
    return MissingPartitionError(
        f"{manifest!r}: {manifest.npartitions - len(numbers)} of {manifest.npartitions} partitions present; "
        f"missing or out of reach: {ranges(numbers)}, which belong in "
        + "; ".join(f"store {r.id} ({r.root} on host {r.host})" for r in refs)
        + ". If the checkpoint was made again since, rehydrate it by its name. If a disk is mounted elsewhere now, say "
        f"where with root= or ckpt-spill.root. If the files are gone, {REMAKE}",
        partitions=numbers,
        stores=[r.id for r in refs],
    )


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
