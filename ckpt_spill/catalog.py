"""Checkpoints that are there: looking them up in the stores, checking and deleting them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence

from distributed import Client

from ckpt_spill import errands, upkeep
from ckpt_spill.config import Roots, default_root, requested_roots
from ckpt_spill.errors import CheckpointNotFoundError, ManifestError, RefusedError
from ckpt_spill.hosts import Hosts, connect
from ckpt_spill.manifest import ManifestData
from ckpt_spill.placement import check_replicas
from ckpt_spill.reach import ALONE, Place, ask, several, stores_in_reach
from ckpt_spill.store.runs import parse_manifest_file

logger = logging.getLogger("ckpt_spill")


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
    library : str or None
        What the partitions were saved from: ``"pandas"``, ``"numpy"``, ``"cudf"`` or ``"cupy"``; None where that is not
        known before they are read, as of bags and Delayed.
    npartitions : int
        Number of partitions.
    nbytes : int
        Raw bytes of all partitions.
    stored_nbytes : int
        Bytes of all partition files.
    direct_nbytes : int
        Raw bytes that went from GPUs to files without the host; of partitions that a resume took over, none count.
    replicas : int
        Copies of each partition that were asked for.
    revision : int
        Rises when partitions were made again or copied.
    """

    def verify(self, client: Client | None = None) -> None:
        """Read every byte of every copy of every partition, on workers that have them, and compare with the hashes.

        Parameters
        ----------
        client : distributed.Client, optional
            Default: the one dask would use now; without any, this process reads the files.

        Raises
        ------
        CorruptPartitionError
            Something differs; the message and ``problems`` name every damaged or missing file.
        MissingPartitionError
            Nothing differs, but copies are gone or out of reach; ``partitions`` has the numbers of the partitions.
        """
        if error := upkeep.check(connect(client), self).error():
            raise error

    def paths(self, client: Client | None = None) -> dict[str, dict[str, bool]]:
        """Tell by which ways the bytes of partitions go between files and GPUs, by what each worker has and configures.

        Parameters
        ----------
        client : distributed.Client, optional
            Default: the one dask would use now; without any, this process is asked.

        Returns
        -------
        dict of dict
            By address of the worker, ``"local"`` for this process: ``"gds"``, whether raw blocks go directly, by
            kvikio; ``"nvcomp"``, whether compressed blocks are decoded on the GPU. Where both are False all goes
            through the host. What was written directly into this checkpoint is ``direct_nbytes``.

        Raises
        ------
        RefusedError
            The configuration of some workers, which are named, insists on a way that is not there.
        """
        answers = {a: answer for a, answer in connect(client).each(errands.paths).items() if answer is not None}
        if problems := [f"{address}: {p}" for address, (_, problems) in answers.items() for p in problems]:
            raise RefusedError("not all is there that is configured:\n  " + "\n  ".join(problems))
        return {address: found for address, (found, _) in answers.items()}

    def replicate(self, replicas: int, client: Client | None = None) -> Manifest:
        """Make copies until each partition has so many, each in another failure domain.

        Parameters
        ----------
        replicas : int
            Copies of each partition in all. None is removed where there are more.
        client : distributed.Client, optional
            Default: the one dask would use now.

        Returns
        -------
        Manifest
            The next revision, which is also in the stores; the present one if nothing was to do. This object, and
            manifests that were saved elsewhere, know nothing of the new copies, but stay true.

        Raises
        ------
        RefusedError
            There are too few failure domains, or the checkpoint was replaced since. Nothing was changed.
        MissingPartitionError, CorruptPartitionError
            Partitions have no copy that can be used.
        WriteError
            There is no room for copies, or stores were lost meanwhile. What was copied is taken over by the next call.
        ConflictError
            Somebody else changed the checkpoint at the same time. Call again.

        See Also
        --------
        persist_to_disk : Makes copies while it saves, with ``replicas=``.
        """
        check_replicas(replicas)
        hosts = connect(client)
        return upkeep.replicate(hosts, self._latest(hosts), replicas)

    def repair(self, client: Client | None = None) -> Manifest:
        """Read every byte of every copy, and make those again that are damaged, missing or out of reach.

        Each partition that has a sound copy has ``replicas`` of them then, each in another failure domain. Damaged
        files are removed. What is found is logged as a warning, what was made again as information. Stores that are out
        of reach have ``ckpt-spill.patience`` to come back before, as in ``verify`` and ``replicate``.

        Parameters
        ----------
        client : distributed.Client, optional
            Default: the one dask would use now.

        Returns
        -------
        Manifest
            The next revision, which is also in the stores, where copies are in other stores now; the present one where
            all are sound, or were made again in place. Manifests that were saved elsewhere have to be saved again to
            tell of a new revision.

        Raises
        ------
        CorruptPartitionError
            Partitions have no sound copy; ``partitions`` has their numbers. All others were repaired.
        MissingPartitionError
            The same, where no damaged file was found: copies may still come back.
        RefusedError, WriteError, ConflictError
            As for ``replicate``.
        """
        hosts = connect(client)
        return upkeep.repair(hosts, self._latest(hosts))

    def _latest(self, hosts: Hosts) -> Manifest:
        """Give the latest revision, after letting workers know of the stores."""
        roots = [ref.root for ref in self.stores]
        hosts.steer(roots)
        found = find(hosts, stores_in_reach(hosts, None, roots), self.id)
        if found is None or found.run.generation < self.run.generation:
            return self
        if found.run != self.run:
            raise RefusedError(
                f"checkpoint {self.id!r} of generation {self.run.generation} was replaced by {found!r}. Take "
                "that, which rehydrate() finds by the name"
            )
        return max(self, found, key=lambda m: m.revision)

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
        for _ in range(2):  # who mends it meanwhile may have put it into stores that were done before the others
            deleted = ask(hosts, errands.delete, places, lambda _, place: (place.store.root, self.run))
        for ref in self.stores:
            if ref.id not in deleted:
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
        f"({', '.join(roots or (default_root(),))}); there: {several(sorted(known)) or 'none'}. Give the path of a "
        "saved manifest, or where the store is with root=" + (f". {ALONE}" if hosts.alone else "")
    )


def next_generation(hosts: Hosts, stores: Mapping[str, Place], checkpoint: str, identity: str) -> int:
    """Give a number for a new generation, or that of one of the same content that was not finished.

    Generations are times, in microseconds, so that they go on rising where nothing is left of the last one: it may have
    been deleted, or be on a disk that is away.
    """
    found = ask(hosts, errands.generations, stores, lambda _, place: (place.store.root, checkpoint, identity)).values()
    latest = max((committed for committed, _ in found), default=0)
    unfinished = max((number for _, number in found), default=0)
    return unfinished if unfinished > latest else max(latest + 1, time.time_ns() // 1000)


def _committed(hosts: Hosts, stores: Mapping[str, Place], checkpoint: str | None) -> dict[str, Manifest]:
    """Read the manifests in some stores; give the latest of each checkpoint, located.

    A generation has more than one only where a store was lost while it was committed or mended: then the one of the
    higher revision counts, else the one that more stores have.
    """
    paths: dict[bytes, list[str]] = {}
    for contents in ask(hosts, errands.manifests, stores, lambda _, place: ([place.store.root], checkpoint)).values():
        for path, content in contents:
            paths.setdefault(content, []).append(path)
    latest: dict[str, tuple[tuple[int, int, int], Manifest]] = {}
    for content, places in paths.items():
        try:
            manifest = _read_manifest(places, content)
        except ManifestError as e:
            if checkpoint is not None:
                raise ManifestError(f"{e}. Remove that file, or replace the checkpoint with overwrite=True") from e
            logger.warning("passed over: %s", e)
            continue
        rank = manifest.run.generation, manifest.revision, len(places)
        if manifest.id not in latest or latest[manifest.id][0] < rank:
            latest[manifest.id] = rank, manifest
    refs = {store: place.store for store, place in stores.items()}
    return {name: manifest.located(refs) for name, (_, manifest) in latest.items()}


def _read_manifest(paths: Sequence[str], content: bytes) -> Manifest:
    """Read a manifest that stores have, which has to be where it belongs."""
    manifest = Manifest.from_json(content, paths[0])
    for path in paths:
        if parse_manifest_file(os.path.basename(path)) != manifest.run.generation:
            raise ManifestError(f"{path} is the manifest of generation {manifest.run.generation}")
    return manifest
