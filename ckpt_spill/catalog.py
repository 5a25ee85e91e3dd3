"""Checkpoints that are there: looking them up in the stores, checking and deleting them."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from distributed import Client

from ckpt_spill import errands
from ckpt_spill.config import Roots, default_root, requested_roots
from ckpt_spill.errors import (
    CheckpointNotFoundError,
    CorruptPartitionError,
    ManifestError,
    MissingPartitionError,
    RefusedError,
)
from ckpt_spill.hosts import Hosts, connect
from ckpt_spill.jobs import StoreRef
from ckpt_spill.manifest import ManifestData
from ckpt_spill.store.runs import parse_manifest_file
from ckpt_spill.store.store import Store

logger = logging.getLogger("ckpt_spill")
_SHOWN = 10
REMAKE = "delete() the checkpoint and make it again from its source"


class Place(NamedTuple):
    """Where a store can be reached: the address of a process that sees it, and the store as it sees it."""

    address: str
    store: StoreRef


class Manifest(ManifestData):
    """What was saved, and where: the durable result of ``persist_to_disk``.

    Plain data: it pickles, compares by content, and opening one executes nothing. ``rehydrate`` and computing what it
    gives do trust it: whoever could write both a manifest and its partition files could run code there.

    Attributes
    ----------
    id : str
        Durable checkpoint id; keys of rehydrated tasks and paths on disk derive from it.
    name : str
        The name given by the user, else one made of the token. It is the id.
    kind : str
        ``"dataframe"``, ``"series"``, ``"index"``, ``"array"``, ``"bag"`` or ``"delayed"``.
    npartitions : int
        Number of partitions.
    nbytes : int
        Raw bytes of all partitions.
    stored_nbytes : int
        Bytes of all partition files.
    """

    def verify(self, client: Client | None = None) -> None:
        """Read every byte of every partition file, on workers that have them, and compare with the hashes.

        Parameters
        ----------
        client : distributed.Client, optional
            Default: the one dask would use now; without any, this process reads the files.

        Raises
        ------
        CorruptPartitionError
            Something differs; the message and ``problems`` name every damaged or missing file.
        MissingPartitionError
            Nothing differs, but partitions are gone or out of reach; ``partitions`` has their numbers.
        """
        hosts = connect(client)
        places = places_of(hosts, self, None)
        calls = []
        for number, (address, store) in places.items():
            digests = {n: p.digest for n, p in enumerate(self.partitions) if number in p.holders}
            calls.append((address, (store.root, self.run, digests)))
        problems = list(itertools.chain.from_iterable(hosts.at(errands.verify, calls)))
        corrupt = [p for p in problems if isinstance(p, CorruptPartitionError)]
        gone = [n for n, p in enumerate(self.partitions) if not places.keys() & set(p.holders)]
        gone += [n for p in problems if isinstance(p, MissingPartitionError) for n in p.details["partitions"]]
        if corrupt:
            raise CorruptPartitionError(
                f"{self!r}: {len(corrupt)} files are damaged and {len(gone)} missing or out of reach: "
                f"{_several([*corrupt, *(f'partition {n} is missing' for n in gone)])}. {REMAKE}",
                problems=[*map(str, corrupt), *(f"partition {n} is missing" for n in gone)],
            )
        if gone:
            raise _missing(self, gone)

    def delete(self, client: Client | None = None) -> None:
        """Remove the checkpoint, and what is left of its earlier generations, from every store in reach.

        Deleting twice is no error. Manifests saved elsewhere stay; other checkpoints and files are not touched. A store
        that is out of reach keeps its files and is logged as a warning.

        Parameters
        ----------
        client : distributed.Client, optional
            Default: the one dask would use now; without any, this process removes the files it can see.
        """
        hosts = connect(client)
        places = stores_in_reach(hosts, None, [s.root for s in self.stores])
        hosts.at(errands.delete, [(address, (store.root, self.run)) for address, store in places.values()])
        for ref in self.stores:
            if ref.id not in places:
                logger.warning("%r: store %s (%s on %s) is out of reach or gone", self, ref.id, ref.root, ref.host)


def list_checkpoints(root: Roots | None = None, client: Client | None = None) -> list[Manifest]:
    """List the committed checkpoints in the stores that can be reached.

    Parameters
    ----------
    root : path or list of paths, optional
        Look here; default: the configured roots of each worker.
    client : distributed.Client, optional
        Default: the one dask would use now; without any, the stores that this process can see.

    Returns
    -------
    list of Manifest
        One for each checkpoint, its latest generation, by name.
    """
    hosts, roots = connect(client), requested_roots(root)
    return sorted(_committed(hosts, stores_in_reach(hosts, roots), None).values(), key=lambda m: (m.name, m.id))


def find(hosts: Hosts, stores: Mapping[str, Place], checkpoint: str) -> Manifest | None:
    """Give the latest committed generation of a checkpoint; None when none of the stores has one.

    Raises
    ------
    ManifestError
        A manifest of this checkpoint is damaged.
    """
    return _committed(hosts, stores, checkpoint).get(checkpoint)


def resolve(
    source: Manifest | str | os.PathLike[str], hosts: Hosts, roots: tuple[str, ...] | None
) -> tuple[Manifest, bool]:
    """Turn what users give to ``rehydrate`` into a manifest, and tell whether it was found by name."""
    if isinstance(source, Manifest):
        return source, False
    if not isinstance(source, str | os.PathLike):
        raise RefusedError(f"a manifest, the path of one or the name of a checkpoint is needed, not {type(source)!r}")
    text = os.fspath(source)
    stores = stores_in_reach(hosts, roots)
    if found := find(hosts, stores, text):
        return found, True
    if "://" in text or os.path.isfile(text):
        return Manifest.load(text), False
    known = [repr(m.name) for m in _committed(hosts, stores, None).values()]
    raise CheckpointNotFoundError(
        f"{text!r} is neither a manifest file nor the name of a checkpoint in the stores that can be reached "
        f"({', '.join(roots or (default_root(),))}); there: {_several(sorted(known)) or 'none'}. Give the path of a "
        "saved manifest, or where the store is with root="
    )


def stores_in_reach(hosts: Hosts, roots: tuple[str, ...] | None, named: Sequence[str] = ()) -> dict[str, Place]:
    """Find the stores that some process can reach, by id, each with one place to reach it from."""
    found: dict[str, Place] = {}
    for address, stores in hosts.each(errands.discover, roots, list(named)).items():
        for store, ref in stores.items():
            found.setdefault(store, Place(address, ref))
    return found


def places_of(hosts: Hosts, manifest: ManifestData, roots: tuple[str, ...] | None) -> dict[int, Place]:
    """Find the stores of a manifest that can be reached, by their number in it."""
    found = stores_in_reach(hosts, roots, [s.root for s in manifest.stores])
    return {n: found[s.id] for n, s in enumerate(manifest.stores) if s.id in found}


def require_present(hosts: Hosts, manifest: Manifest, roots: tuple[str, ...] | None) -> Manifest:
    """Raise unless every partition has a file of the right size in some store in reach. Opens none of them.

    Returns
    -------
    Manifest
        With its stores where they were found.
    """
    places = places_of(hosts, manifest, roots)
    calls = [(address, (store.root, manifest.run)) for address, store in places.values()]
    sound: set[int] = set()
    damaged: dict[int, str] = {}
    for number, listing in zip(places, hosts.at(errands.present, calls), strict=True):
        for n, (name, size) in manifest.files(number).items():
            if listing.get(name) == size:
                sound.add(n)
            elif name in listing:
                at = Store(places[number].store.root, "")
                path = at.partition_path(manifest.run, n, manifest.partitions[n].digest)
                damaged[n] = f"partition {n}: {path} has {listing[name]:,} bytes, not {size:,}"
    if gone := [n for n in range(manifest.npartitions) if n not in sound and n not in damaged]:
        raise _missing(manifest, gone)
    if bad := {n: text for n, text in damaged.items() if n not in sound}:
        raise CorruptPartitionError(
            f"{manifest!r}: {len(bad)} of its files are damaged: {_several(list(bad.values()))}. {REMAKE}",
            partitions=sorted(bad),
        )
    return manifest.located({manifest.stores[n].id: place.store for n, place in places.items()})


def next_generation(hosts: Hosts, stores: Mapping[str, Place], checkpoint: str, identity: str) -> int:
    """Give a number for a new generation, or that of one of the same content that was not finished.

    Generations are times, in microseconds, so that they go on rising where nothing is left of the last one: it may have
    been deleted, or be on a disk that is away.
    """
    calls = [(address, (store.root, checkpoint, identity)) for address, store in stores.values()]
    found = hosts.at(errands.generations, calls)
    latest = max((committed for committed, _ in found), default=0)
    unfinished = max((number for _, number in found), default=0)
    return unfinished if unfinished > latest else max(latest + 1, time.time_ns() // 1000)


def _committed(hosts: Hosts, stores: Mapping[str, Place], checkpoint: str | None) -> dict[str, Manifest]:
    """Read the manifests in some stores; give the latest of each checkpoint, located."""
    by_address: dict[str, list[str]] = {}
    for address, store in stores.values():
        by_address.setdefault(address, []).append(store.root)
    refs = {store: place.store for store, place in stores.items()}
    found: dict[str, Manifest] = {}
    for contents in hosts.at(errands.manifests, [(a, (paths, checkpoint)) for a, paths in by_address.items()]):
        for path, content in contents:
            try:
                manifest = _read_manifest(path, content)
            except ManifestError as e:
                if checkpoint is not None:
                    raise ManifestError(f"{e}. Remove that file, or replace the checkpoint with overwrite=True") from e
                logger.warning("passed over: %s", e)
                continue
            if manifest.id not in found or found[manifest.id].run.generation < manifest.run.generation:
                found[manifest.id] = manifest.located(refs)
    return found


def _read_manifest(path: str, content: bytes) -> Manifest:
    """Read a store's manifest, which has to be where it belongs."""
    manifest = Manifest.from_json(content, path)
    if parse_manifest_file(os.path.basename(path)) != manifest.run.generation:
        raise ManifestError(f"{path} is the manifest of generation {manifest.run.generation}")
    return manifest


def _missing(manifest: ManifestData, gone: Iterable[int]) -> MissingPartitionError:
    numbers = sorted(set(gone))
    refs = [manifest.stores[h] for h in sorted({h for n in numbers for h in manifest.partitions[n].holders})]
    return MissingPartitionError(
        f"{manifest!r}: {manifest.npartitions - len(numbers)} of {manifest.npartitions} partitions are present; "
        f"missing or out of reach: {_several(list(map(str, numbers)), ', ')}, which belong in "
        + "; ".join(f"store {r.id} ({r.root} on host {r.host})" for r in refs)
        + ". If the checkpoint was made again since, rehydrate it by its name. If a disk is mounted elsewhere now, say "
        f"where with root= or ckpt-spill.root. If the files are gone: {REMAKE}",
        partitions=numbers,
        stores=[r.id for r in refs],
    )


def _several(problems: Sequence[object], separator: str = "; ") -> str:
    more = len(problems) - _SHOWN
    return separator.join(map(str, problems[:_SHOWN])) + (f"{separator}and {more} more" if more > 0 else "")
