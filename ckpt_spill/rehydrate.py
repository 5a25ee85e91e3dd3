"""``rehydrate`` and ``checkpoint``: saved collections as lazy ones."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from typing import Any

from distributed import Client

from ckpt_spill.catalog import Manifest, require_present, resolve
from ckpt_spill.collections import rebuild
from ckpt_spill.config import Roots, requested_roots
from ckpt_spill.errors import MissingPartitionError, RefusedError
from ckpt_spill.hosts import connect
from ckpt_spill.persist import persist_to_disk


def rehydrate(
    manifest: Manifest | str | os.PathLike[str],
    *,
    columns: Sequence[Hashable] | None = None,
    root: Roots | None = None,
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
    root : path or list of paths, optional
        More directories to look for the stores in, beside the configured ones and those the manifest names: for disks
        that are mounted elsewhere now.
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
        Partition files are gone or out of reach; the message says which, and where they should be.

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
    hosts, roots = connect(client), requested_roots(root)
    found, by_name = resolve(manifest, hosts, roots)
    try:
        located = require_present(hosts, found, roots)
    except MissingPartitionError:
        newer, _ = resolve(manifest, hosts, roots) if by_name else (found, False)
        if newer == found:
            raise
        located = require_present(hosts, newer, roots)  # it was replaced while we looked
    return rebuild(located, columns)


def checkpoint(collection: Any, name: str, **kwargs: Any) -> Any:
    """Give a collection back from disk if it was saved under this name before; else save it, then do.

    A script that calls this after each of its stages, run again after a crash, goes on after the last stage that is
    on disk, and in the middle of one that was being written.

    Parameters
    ----------
    collection : dask DataFrame, Series, Index, Array, Bag or Delayed
        What to save, if it has to be.
    name : str
        Name of the checkpoint.
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
    return rehydrate(manifest, root=kwargs.get("root"), client=kwargs.get("client"))
