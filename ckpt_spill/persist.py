"""``persist_to_disk``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, get_args

from distributed import Client

from ckpt_spill.catalog import Manifest
from ckpt_spill.collections import kind_of, prepare, token_of
from ckpt_spill.config import Roots, requested_roots
from ckpt_spill.errors import ConflictError, RefusedError
from ckpt_spill.hosts import Hosts, connect
from ckpt_spill.manifest import local_path
from ckpt_spill.placement import check_replicas
from ckpt_spill.plans import Plan, Wanted
from ckpt_spill.saving import Saving
from ckpt_spill.store.partition import CodecName


def persist_to_disk(
    *collections: Any,
    name: str | Sequence[str | None] | None = None,
    token: str | Sequence[str | None] | None = None,
    root: Roots | None = None,
    codec: CodecName = "auto",
    durable: bool = True,
    overwrite: bool = False,
    replicas: int = 1,
    manifest: str | os.PathLike[str] | Sequence[str | os.PathLike[str] | None] | None = None,
    progress: bool | None = None,
    client: Client | None = None,
) -> Any:
    """Save collections to node-local disk; return when they are safe.

    Every partition is computed, written on the disk of the worker that computed it, and released, so that a collection
    may be many times larger than memory. Nothing is gathered but a small record for each partition. What an interrupted
    call has written is taken over when the same call is made again.

    Parameters
    ----------
    *collections : dask DataFrame, Series, Index, Array, Bag or Delayed
        Several are computed together, so that work they share runs once.
    name : str or sequence of str, optional
        Name of the checkpoint, to find it by later; one for each collection. Default: made of the token.
    token : str or sequence of str, optional
        Identity of the content, for collections whose own token differs from run to run (random data, functions that
        do not pickle the same way twice). The caller vouches that equal tokens mean equal content.
    root : path or list of paths, optional
        Absolute directory on each worker's own disk, or one for each drive; environment variables are expanded on each
        worker. Default: ``ckpt-spill.root`` of dask's configuration, else a directory for this user below dask's
        ``temporary-directory`` or the system's.
    codec : {"auto", "zstd", "lz4", "none"}, optional
        ``"auto"`` chooses for each buffer.
    durable : bool, optional
        Whether what is written has to survive a power cut. False saves the flushing.
    overwrite : bool, optional
        Replace a checkpoint of this name that was made from another collection. The old one stays readable until the
        new one is complete.
    replicas : int, optional
        Copies of each partition, each in another failure domain: on another host or, where ``ckpt-spill.domain`` is
        configured on the workers, where that differs. They are made while the rest is computed, and checked before the
        checkpoint counts. A checkpoint that has fewer gets the others, without computing anything.
    manifest : path or URL, or sequence of them, optional
        Where to save the manifest besides the stores.
    progress : bool, optional
        Draw a progress bar on standard error. Default: when it is a terminal.
    client : distributed.Client, optional
        Default: the one dask would use now; without any, dask's local scheduler writes from this process.

    Returns
    -------
    Manifest or tuple of Manifest
        One for one collection. A checkpoint of the same content that exists already is returned at once; if partitions
        of it are lost, only these are made again.

    Raises
    ------
    UnsupportedCollectionError
        Something is not a collection that can be saved.
    RefusedError
        There are fewer failure domains than ``replicas``. Nothing was computed.
    RootError
        A root cannot be used on some worker; every problem on every worker is in the one message. Nothing was computed.
    CheckpointExistsError
        There is a checkpoint of this name with other content, and ``overwrite`` is False. Nothing was computed.
    DiskFullError
        A worker ran out of space.
    UnserializableError
        A partition holds something that cannot be pickled or, once pickled, cannot be read again.
    ConflictError
        Another run committed this checkpoint first.

    Notes
    -----
    After any failure the previous checkpoint of the name, if there was one, is whole and is still what ``rehydrate``
    finds; there is no half one. Several collections are committed one after the other; those before a failure stay.
    Partitions that were written stay on disk, unseen, until the same call is made again and takes them over or another
    one is committed under the name. Errors raised by the collection's own tasks pass through.

    A worker, or a whole node with its disk, that is lost on the way costs what it had written: once its stores have had
    ``ckpt-spill.patience`` to come back, those partitions are computed again on the others. Those of which there is a
    copy are copied again instead.

    Examples
    --------
    >>> import dask.array as da, ckpt_spill as cs
    >>> manifest = cs.persist_to_disk(da.ones(1000, chunks=100), name="ones")  # doctest: +SKIP
    >>> cs.rehydrate(manifest).sum().compute()  # doctest: +SKIP
    np.float64(1000.0)
    """
    if not collections:
        raise RefusedError("persist_to_disk() needs at least one collection")
    if codec not in get_args(CodecName):
        raise RefusedError(f"codec {codec!r} is not known; choose one of {', '.join(map(repr, get_args(CodecName)))}")
    check_replicas(replicas)
    for collection in collections:
        kind_of(collection)
    names = _one_each(name, len(collections), "name")
    tokens = _one_each(token, len(collections), "token")
    urls = _one_each(manifest, len(collections), "manifest")
    for url in urls:
        _check_url(url)
    hosts = connect(client, collections)
    wanted = _wanted(collections, names, tokens)
    saving = Saving(hosts, requested_roots(root), codec, durable, overwrite, replicas)
    saving.preflight(wanted)
    hosts.steer(())
    with hosts.current():
        graph, prepared = prepare(collections)
    plans = [Plan(w, p) for w, p in zip(wanted, prepared, strict=True)]
    manifests = _saved(saving, graph, plans, progress)
    for made, url in zip(manifests, urls, strict=True):
        if url is not None:
            made.save(url)
    return tuple(manifests) if len(manifests) > 1 else manifests[0]


def make_whole(
    manifest: Manifest, source: Any, hosts: Hosts, roots: tuple[str, ...] | None, named: Sequence[str]
) -> Manifest:
    """Make the partitions of a checkpoint that are lost again from the collection that it was made from.

    Parameters
    ----------
    manifest : Manifest
    source : dask collection
    hosts : Hosts
    roots : tuple of str or None
        Where to write.
    named : sequence of str
        Where else the checkpoint may be.

    Raises
    ------
    RefusedError
        The checkpoint was made from another collection.
    """
    token = check_source(manifest, source)
    saving = Saving(hosts, roots, "auto", manifest.durable, overwrite=False, named=named)
    wanted = Wanted(manifest.id, token, vouched=False)
    saving.preflight([wanted])
    with hosts.current():
        graph, (prepared,) = prepare([source])
    plan = Plan(wanted, prepared)
    if plan.identity != manifest.run.identity:
        raise RefusedError(
            f"source has the token of checkpoint {manifest.id!r}, but is partitioned in another way: "
            f"{len(prepared.keys)} partitions of kind {prepared.kind!r} after optimising. Give the collection that was "
            "saved"
        )
    return _saved(saving, graph, [plan], progress=None)[0]


def check_source(manifest: Manifest, source: Any) -> str:
    """Give the token of a collection; refuse one that a checkpoint was not made from."""
    token = token_of(source)
    if (kind_of(source), token) == (manifest.kind, manifest.token):
        return token
    _, (prepared,) = prepare([source])
    unlike = manifest.unlike(prepared.kind, len(prepared.keys))
    way_out = (
        "Give the collection that was saved"
        if unlike
        else "If the content is the same all the same, "
        f"persist_to_disk(source, name={manifest.name!r}, token={manifest.token!r}) makes again what is missing"
    )
    raise RefusedError(
        f"checkpoint {manifest.id!r} was made from another collection than source{unlike}: its token is "
        f"{manifest.token!r} and that of source is {token!r}. {way_out}"
    )


def _saved(saving: Saving, graph: dict[Any, Any], plans: Sequence[Plan], progress: bool | None) -> list[Manifest]:  # noqa: FBT001
    try:
        return saving.run(graph, plans, progress)
    except ConflictError:
        if (made_by_others := saving.winners(plans)) is None:
            raise
        return made_by_others


def _wanted(collections: Sequence[Any], names: Sequence[str | None], tokens: Sequence[str | None]) -> list[Wanted]:
    wanted = []
    for collection, name, given in zip(collections, names, tokens, strict=True):
        token = token_of(collection) if given is None else given
        wanted.append(Wanted(f"{kind_of(collection)}-{token}" if name is None else name, token, given is not None))
    ids = [w.checkpoint for w in wanted]
    if len(set(ids)) < len(ids):
        raise RefusedError(f"several collections would become one checkpoint, {ids}: give each a name of its own")
    return wanted


def _one_each(value: Any, count: int, what: str) -> list[Any]:
    """Give one option for each collection."""
    if value is None:
        return [None] * count
    values = list(value) if isinstance(value, list | tuple) else [value]
    if len(values) != count:
        raise RefusedError(f"{what} has to be one for each collection: {count} collections, {len(values)} given")
    for v in values:
        if what != "manifest" and not (v is None or (isinstance(v, str) and v)):
            raise RefusedError(f"{what} has to be a string that is not empty, not {v!r}")
    return values


def _check_url(url: str | os.PathLike[str] | None) -> None:
    """See before computing that a manifest can be saved where it is wanted, as far as that is a local path."""
    path = None if url is None else local_path(url)
    if path and not (os.access(os.path.dirname(path), os.W_OK) and not os.path.isdir(path)):
        raise RefusedError(f"cannot save a manifest as {path}: its directory has to exist and be writable")
