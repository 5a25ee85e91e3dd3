"""Checkpoints that are there: looking them up in the stores, checking and deleting them."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Sequence

from distributed import Client

from ckpt_spill import errands
from ckpt_spill.config import Roots, requested_roots
from ckpt_spill.errors import (
    CheckpointNotFoundError,
    CkptSpillError,
    CorruptPartitionError,
    ManifestError,
    MissingPartitionError,
)
from ckpt_spill.hosts import Hosts, connect
from ckpt_spill.manifest import ManifestData
from ckpt_spill.store.store import Store

logger = logging.getLogger("ckpt_spill")
_SHOWN = 10
Place = tuple[str, str]  # address of a process, and the path of a store as it sees it


class Manifest(ManifestData):
    """What was saved, and where: the durable result of ``persist_to_disk``.

    Plain data: it pickles, compares by content, and opening one executes nothing. ``rehydrate`` and computing what it
    gives do trust it: whoever could write both a manifest and its partition files could run code there.

    Attributes
    ----------
    id : str
        Durable checkpoint id; keys of rehydrated tasks and paths on disk derive from it.
    name : str
        The name given by the user, else the id.
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
        for number, (address, root) in places.items():
            digests = {n: p.digest for n, p in enumerate(self.partitions) if number in p.holders}
            calls.append((address, (root, self.run, digests)))
        problems = list(itertools.chain.from_iterable(hosts.at(errands.verify, calls)))
        corrupt = [p for p in problems if isinstance(p, CorruptPartitionError)]
        gone = [n for n, p in enumerate(self.partitions) if not places.keys() & set(p.holders)]
        gone += [n for p in problems if isinstance(p, MissingPartitionError) for n in p.details["partitions"]]
        if corrupt:
            raise CorruptPartitionError(
                f"{self!r}: {len(corrupt)} files are damaged and {len(gone)} missing or out of reach: "
                f"{_several(corrupt)}. Make the checkpoint again from its source",
                problems=list(map(str, problems)),
            )
        if gone:
            raise _missing(self, gone)

    def delete(self, client: Client | None = None) -> None:
        """Remove the checkpoint's files from every store in reach, the manifest there first.

        Deleting twice is no error. Manifests saved elsewhere stay; other checkpoints and files are not touched. A store
        that is out of reach keeps its files and is logged as a warning.

        Parameters
        ----------
        client : distributed.Client, optional
            Default: the one dask would use now; without any, this process removes the files it can see.
        """
        hosts = connect(client)
        places = places_of(hosts, self, None)
        hosts.at(errands.remove, [(address, (root, self.run)) for address, root in places.values()])
        for number, ref in enumerate(self.stores):
            if number not in places:
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
    return sorted(_committed(connect(client), requested_roots(root), None).values(), key=lambda m: (m.name, m.id))


def find(hosts: Hosts, checkpoint: str, roots: tuple[str, ...] | None) -> Manifest | None:
    """Give the latest committed generation of a checkpoint; None when no store in reach has one."""
    return _committed(hosts, roots, checkpoint).get(checkpoint)


def resolve(source: Manifest | str | os.PathLike[str], hosts: Hosts, roots: tuple[str, ...] | None) -> Manifest:
    """Turn what users give to ``rehydrate`` into a manifest."""
    if isinstance(source, Manifest):
        return source
    text = os.fspath(source)
    if "://" in text or os.path.isfile(text):
        return Manifest.load(text)
    if found := find(hosts, text, roots):
        return found
    known = ", ".join(sorted(repr(m.name) for m in _committed(hosts, roots, None).values())[:_SHOWN]) or "none"
    raise CheckpointNotFoundError(
        f"{text!r} is neither a manifest file nor the name of a checkpoint in the stores that can be reached "
        f"({', '.join(roots or ('the default root',))}); there: {known}. Give the path of a saved "
        "manifest, or where the store is with root="
    )


def stores_in_reach(hosts: Hosts, roots: tuple[str, ...] | None, named: Sequence[str] = ()) -> dict[str, Place]:
    """Find the stores that some process can reach, by id, each with one place to reach it from."""
    found: dict[str, Place] = {}
    for address, stores in hosts.each(errands.discover, roots, list(named)).items():
        for store, root in stores.items():
            found.setdefault(store, (address, root))
    return found


def places_of(hosts: Hosts, manifest: ManifestData, roots: tuple[str, ...] | None) -> dict[int, Place]:
    """Find the stores of a manifest that can be reached, by their number in it."""
    found = stores_in_reach(hosts, roots, [s.root for s in manifest.stores])
    return {n: found[s.id] for n, s in enumerate(manifest.stores) if s.id in found}


def require_present(hosts: Hosts, manifest: ManifestData, roots: tuple[str, ...] | None) -> None:
    """Raise unless every partition has a file of the right size in some store in reach. Opens none of them."""
    places = places_of(hosts, manifest, roots)
    listings = hosts.at(errands.present, [(address, (root, manifest.run)) for address, root in places.values()])
    sound: set[int] = set()
    damaged: dict[int, str] = {}
    for number, listing in zip(places, listings, strict=True):
        for n, (name, size) in manifest.files(number).items():
            if listing.get(name) == size:
                sound.add(n)
            elif name in listing:
                path = Store(places[number][1], "").partition_path(manifest.run, n, manifest.partitions[n].digest)
                damaged[n] = f"{path} has {listing[name]:,} bytes, not {size:,}"
    if gone := [n for n in range(manifest.npartitions) if n not in sound and n not in damaged]:
        raise _missing(manifest, gone)
    if bad := {n: text for n, text in damaged.items() if n not in sound}:
        raise CorruptPartitionError(
            f"{manifest!r}: {len(bad)} of its files are damaged: "
            + _several([f"partition {n}: {text}" for n, text in bad.items()])
            + ". Make the checkpoint again from its source",
            partitions=sorted(bad),
        )


def _committed(hosts: Hosts, roots: tuple[str, ...] | None, checkpoint: str | None) -> dict[str, Manifest]:
    by_address: dict[str, list[str]] = {}
    for address, root in stores_in_reach(hosts, roots).values():
        by_address.setdefault(address, []).append(root)
    found: dict[str, Manifest] = {}
    for contents in hosts.at(errands.manifests, [(a, (paths, checkpoint)) for a, paths in by_address.items()]):
        for content in contents:
            try:
                manifest = Manifest.from_json(content, "a manifest in a store")
            except ManifestError as e:
                if checkpoint is not None:
                    raise
                logger.warning("passed over: %s", e)
                continue
            if manifest.id not in found or found[manifest.id].run.generation < manifest.run.generation:
                found[manifest.id] = manifest
    return found


def _missing(manifest: ManifestData, gone: Iterable[int]) -> MissingPartitionError:
    numbers = sorted(set(gone))
    refs = [manifest.stores[h] for h in sorted({h for n in numbers for h in manifest.partitions[n].holders})]
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (
        f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    )
    return MissingPartitionError(
        f"{manifest!r}: {manifest.npartitions - len(numbers)} of {manifest.npartitions} partitions are present; "
        f"missing or out of reach: {shown}, which belong in "
        + "; ".join(f"store {r.id} ({r.root} on host {r.host})" for r in refs)
        + ". If a disk is mounted elsewhere now, say where with root=; if the files are gone, make the checkpoint "
        "again from its source",
        partitions=numbers,
        stores=[r.id for r in refs],
    )


def _several(problems: Sequence[CkptSpillError | str]) -> str:
    return "; ".join(map(str, problems[:_SHOWN])) + (
        f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    )
