"""``rehydrate`` and ``checkpoint``: saved collections as lazy ones."""

from __future__ import annotations

import os
import warnings
from collections.abc import Hashable, Sequence
from typing import Any, Literal, get_args

from distributed import Client

from ckpt_spill.catalog import Manifest, find, resolve
from ckpt_spill.collections import check_backend, rebuild
from ckpt_spill.config import Roots, requested_roots
from ckpt_spill.errors import ManifestError, RefusedError
from ckpt_spill.hosts import Hosts, connect
from ckpt_spill.persist import check_source, make_whole, persist_to_disk
from ckpt_spill.reach import Presence, patiently, presence, ranges, several, stores_in_reach
from ckpt_spill.store.partition import Library

Missing = Literal["error", "recompute", "skip"]


def rehydrate(
    manifest: Manifest | str | os.PathLike[str],
    *,
    columns: Sequence[Hashable] | None = None,
    backend: Library | None = None,
    root: Roots | None = None,
    missing: Missing = "error",
    source: Any = None,
    client: Client | None = None,
) -> Any:
    """Give a saved collection back, lazily: the same partitions, divisions or chunks, meta and known categories.

    Reads no partition; looks whether all are there. The collection holds no futures and nothing of the graph it was
    made from. Its only tasks are one read for each partition, with keys that derive from the checkpoint, so it survives
    ``client.restart()``, pickles, and works with another client, or with none where the files are local.

    Parameters
    ----------
    manifest : Manifest, path, URL or str
        What ``persist_to_disk`` returned; where a manifest was saved, as a path or an fsspec URL; or the name of a
        checkpoint, to be looked up in the stores.
    columns : sequence of labels, optional
        Columns of a DataFrame, in this order. Selecting from the result does the same: projections are pushed down, so
        that only the blocks of the columns that are used are read and decoded.
    backend : {"pandas", "cudf"}, optional
        What to make of frames, series and indexes, whatever they were saved from. For arrays the same words stand for
        the host (numpy) and the device (CuPy); other values stay what they are. Default: as they were saved.
        ``"pandas"`` needs neither a GPU nor RAPIDS. What is not exact on the way is in docs/fidelity.md.
    root : path or list of paths, optional
        More directories to look for the stores in, beside the configured ones and those the manifest names: for disks
        that are mounted elsewhere now.
    missing : {"error", "recompute", "skip"}, optional
        What to do when partition files are gone, out of reach or of a wrong size; a store that is out of reach has
        ``ckpt-spill.patience`` to come back before. ``"error"``: refuse, with all that is
        known about them. ``"recompute"``: compute these partitions, and no others, again from ``source``, and save them
        into the checkpoint: in ``root``, else where its stores are. ``"skip"``: give the collection without them, and a
        warning with their numbers. That is refused where something of the collection says what should be there: for
        frames with known divisions, arrays and Delayed; and where no partition is left.
    source : dask collection, optional
        With ``missing="recompute"``, the collection that the checkpoint was made from.
    client : distributed.Client, optional
        Whose workers to ask whether all is there. Default: the one dask would use now; without any, this process.

    Returns
    -------
    dask DataFrame, Series, Index, Array, Bag or Delayed

    Raises
    ------
    CheckpointNotFoundError
        Nothing of that name, or no file at that address.
    ManifestError
        Not a manifest, a damaged one or one of a newer version.
    MissingPartitionError
        Partition files are gone or out of reach; the message says which, where they should be, and how many are there.
    CorruptPartitionError
        None is missing, but some have a wrong size.
    ReadError
        It was saved from a GPU, or ``backend="cudf"`` asks for one, and here is none, or no RAPIDS; or there is nothing
        like the values on a GPU.
    RefusedError
        ``source`` is not what the checkpoint was made from, or partitions cannot be skipped.

    Notes
    -----
    Computing raises ``CorruptPartitionError`` rather than give a wrong value: every byte is checked before it is
    decoded. A manifest is trusted like code: where partitions hold Python objects, computing unpickles them, after
    their hashes were compared with the manifest's.

    Examples
    --------
    >>> import ckpt_spill as cs
    >>> ddf = cs.rehydrate("by-order.json")  # doctest: +SKIP
    >>> ddf["l_extendedprice"].sum().compute()  # doctest: +SKIP
    """
    if columns is not None and (isinstance(columns, str) or not isinstance(columns, Sequence)):
        raise RefusedError(f"columns has to be a list of labels, not {columns!r}")
    if backend is not None:
        _check_choice("backend", backend, Library)
    _check_missing(missing, source)
    hosts, roots = connect(client), requested_roots(root)
    found, by_name = resolve(manifest, hosts, roots)
    if source is not None:
        check_source(found, source)
    check_backend(found, backend)

    def look() -> Presence[Manifest]:
        present = presence(hosts, found, roots)
        if present.lost and (newer := _newer(found, hosts, roots, by_name=by_name)):
            present = presence(hosts, newer, roots)
        return present

    if missing == "recompute":
        present = look()  # what computes it again waits itself
    else:
        present = patiently(hosts, look, lambda seen: seen.awaited, f"checkpoint {found.id!r}")
    if not present.lost:
        present.warn_of_absences()
        return rebuild(_steered(present.located(), hosts), columns, None, backend)
    if missing == "recompute":
        return rebuild(_steered(_made_whole(present, source, hosts, root), hosts), columns, None, backend)
    if missing == "skip":
        return _without(present, columns, backend, hosts)
    raise present.error()


def _check_missing(missing: Missing, source: Any) -> None:
    _check_choice("missing", missing, Missing)
    if (source is None) == (missing == "recompute"):
        raise RefusedError('missing="recompute" needs source, the collection that was saved, and nothing else does')


def _check_choice(name: str, value: Any, choices: Any) -> None:
    if value not in get_args(choices):
        raise RefusedError(f"{name}={value!r} is not known; choose one of {', '.join(map(repr, get_args(choices)))}")


def _newer(manifest: Manifest, hosts: Hosts, roots: tuple[str, ...] | None, *, by_name: bool) -> Manifest | None:
    """Find the later revision of a run that was mended since; of a checkpoint given by name, a later generation too."""
    try:
        stores = stores_in_reach(hosts, roots, [ref.root for ref in manifest.stores])
        newer = find(hosts, stores, manifest.id)
    except ManifestError:
        return None
    if newer is None or newer == manifest or not (by_name or newer.run == manifest.run):
        return None
    return newer


def _made_whole(present: Presence[Manifest], source: Any, hosts: Hosts, root: Roots | None) -> Manifest:
    """Compute and save again what is lost: where it is asked for, else where all hosts have the checkpoint's stores."""
    manifest, roots = present.located(), requested_roots(root)
    by_host: dict[str, set[str]] = {}
    for ref in manifest.stores:
        by_host.setdefault(ref.host, set()).add(ref.root)
    first, *others = by_host.values()
    if root is None and all(roots_of_host == first for roots_of_host in others):
        roots = tuple(sorted(first))
    return make_whole(manifest, source, hosts, roots, [ref.root for ref in manifest.stores])


def _steered(manifest: Manifest, hosts: Hosts) -> Manifest:
    """Let reads of a checkpoint go to where its stores are."""
    hosts.steer([ref.root for ref in manifest.stores])
    return manifest


def _without(
    present: Presence[Manifest], columns: Sequence[Hashable] | None, backend: Library | None, hosts: Hosts
) -> Any:
    """Make the collection without what is lost."""
    numbers = tuple(n for n, holders in enumerate(present.sound) if holders)
    if not numbers:
        raise RefusedError(f"nothing is left to skip the rest of: {present.error()}") from present.error()
    collection = rebuild(_steered(present.located(), hosts), columns, numbers, backend)
    away = f". Out of reach: {several(present.awaited)}" if present.awaited else ""
    warnings.warn(
        f"checkpoint {present.manifest.id!r}: {len(present.lost)} of {present.manifest.npartitions} partitions are "
        f"skipped, as they are missing or damaged: {ranges(present.lost)}{away}",
        stacklevel=3,
    )
    return collection


def checkpoint(collection: Any, name: str, *, backend: Library | None = None, **kwargs: Any) -> Any:
    """Give a collection back from disk if it was saved under this name before; else save it, then do.

    A script that calls this after each of its stages, run again after a crash, goes on after the last stage that is
    on disk, and in the middle of one that was being written.

    Parameters
    ----------
    collection : dask DataFrame, Series, Index, Array, Bag or Delayed
        What to save, if it has to be.
    name : str
        Name of the checkpoint.
    backend : {"pandas", "cudf"}, optional
        As for ``rehydrate``.
    **kwargs
        Options of ``persist_to_disk``.

    Returns
    -------
    dask DataFrame, Series, Index, Array, Bag or Delayed
        As ``rehydrate`` gives it.

    Raises
    ------
    CheckpointExistsError
        The name belongs to a checkpoint that was made from another collection, and ``overwrite`` is not True.

    See Also
    --------
    persist_to_disk : What else may be raised, and what is true then.

    Examples
    --------
    >>> import ckpt_spill as cs
    >>> ddf = cs.checkpoint(ddf.shuffle("key"), "by-key")  # doctest: +SKIP
    """
    manifest = persist_to_disk(collection, name=name, **kwargs)
    return rehydrate(manifest, backend=backend, root=kwargs.get("root"), client=kwargs.get("client"))
