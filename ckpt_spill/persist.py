"""``persist_to_disk``: plan, run, commit."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import json
import logging
import os
import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from blake3 import blake3
from dask.base import tokenize
from distributed import Client

from ckpt_spill import errands
from ckpt_spill.catalog import Manifest, Place, find, places_of, require_present
from ckpt_spill.collections import Prepared, kind_of, prepare
from ckpt_spill.config import Roots, requested_roots
from ckpt_spill.errors import (
    CheckpointExistsError,
    ConflictError,
    ReadError,
    RefusedError,
    RootError,
    WriteError,
)
from ckpt_spill.graph import with_writes
from ckpt_spill.hosts import Hosts, connect
from ckpt_spill.manifest import collect
from ckpt_spill.progress import Progress
from ckpt_spill.store.partition import CodecName
from ckpt_spill.store.runs import Run
from ckpt_spill.tasks import Record, WriteJob

logger = logging.getLogger("ckpt_spill")
Stores = dict[str, Place]


def persist_to_disk(
    *collections: Any,
    name: str | Sequence[str | None] | None = None,
    token: str | Sequence[str | None] | None = None,
    root: Roots | None = None,
    codec: CodecName = "auto",
    durable: bool = True,
    overwrite: bool = False,
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
    manifest : path or URL, or sequence of them, optional
        Where to save the manifest besides the stores.
    progress : bool, optional
        Draw a progress bar on standard error. Default: when it is a terminal.
    client : distributed.Client, optional
        Default: the one dask would use now; without any, dask's local scheduler writes from this process.

    Returns
    -------
    Manifest or tuple of Manifest
        One for one collection. A checkpoint of the same content that exists already is returned at once.

    Raises
    ------
    UnsupportedCollectionError
        Something is not a collection that can be saved.
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
    finds; there is no half one. Partitions that were written stay on disk, unseen, until the same call is made again
    and takes them over or another one is committed under the name. Errors raised by the collection's own tasks pass
    through.

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
    for collection in collections:
        kind_of(collection)
    names = _one_each(name, len(collections), "name")
    tokens = _one_each(token, len(collections), "token")
    urls = _one_each(manifest, len(collections), "manifest")
    hosts, roots = connect(client, collections), requested_roots(root)
    stores = _preflight(hosts, roots)
    with hosts.current():
        graph, prepared = prepare(collections)
    wanted = _wanted(collections, prepared, names, tokens)
    with _kept_for_resume(hosts, stores) as begun:
        plans = [_plan(hosts, stores, w, overwrite=overwrite, begun=begun) for w in wanted]
        records = _write(hosts, graph, plans, roots, codec=codec, durable=durable, progress=progress)
        manifests = [
            plan.existing or _commit(hosts, stores, plan, found, roots, durable=durable)
            for plan, found in zip(plans, records, strict=True)
        ]
    for made, url in zip(manifests, urls, strict=True):
        if url is not None:
            made.save(url)
    return tuple(manifests) if len(manifests) > 1 else manifests[0]


# -------------------------------------------------------------------------------------------------------------- plan
@dataclasses.dataclass(frozen=True)
class _Wanted:
    """One collection, and the names it goes by."""

    checkpoint: str
    token: str
    prepared: Prepared

    @functools.cached_property
    def identity(self) -> str:
        """Hash of what makes the content: the token, and the partitioning that optimisation ended with."""
        shape = {k: self.prepared.description.get(k) for k in ("divisions", "chunks")}
        content = [1, self.checkpoint, self.token, self.prepared.kind, len(self.prepared.keys), shape]
        return str(blake3(json.dumps(content, sort_keys=True).encode()).hexdigest())[:16]


@dataclasses.dataclass(frozen=True)
class _Plan:
    """One collection on its way to disk; ``existing`` is set when there is nothing to do."""

    wanted: _Wanted
    run: Run
    existing: Manifest | None
    taken_over: Sequence[Record]


def _wanted(
    collections: Sequence[Any], prepared: Sequence[Prepared], names: Sequence[str | None], tokens: Sequence[str | None]
) -> list[_Wanted]:
    wanted = []
    for collection, p, name, given in zip(collections, prepared, names, tokens, strict=True):
        token = tokenize(collection) if given is None else given
        wanted.append(_Wanted(f"{p.kind}-{token}" if name is None else name, token, p))
    ids = [w.checkpoint for w in wanted]
    if len(set(ids)) < len(ids):
        raise RefusedError(f"several collections would become one checkpoint, {ids}: give each a name of its own")
    return wanted


def _preflight(hosts: Hosts, roots: tuple[str, ...] | None) -> Stores:
    """Ask every worker about its roots; give the stores with a place to reach each from."""
    surveys = hosts.each(errands.survey, roots)
    problems = [f"{address}: {p}" for address, s in surveys.items() for p in s.problems]
    if problems:
        raise RootError(
            "cannot write checkpoints here, nothing was computed:\n  " + "\n  ".join(problems), problems=problems
        )
    for warning in dict.fromkeys(w for s in surveys.values() for w in s.warnings):
        warnings.warn(warning, stacklevel=3)
    return {store: (address, root) for address, s in surveys.items() for store, root in s.stores.items()}


def _plan(hosts: Hosts, stores: Stores, wanted: _Wanted, *, overwrite: bool, begun: list[Run]) -> _Plan:
    """Compare with what is there; begin a run, taking over what earlier ones of the same content have written."""
    before = find(hosts, wanted.checkpoint, tuple(root for _, root in stores.values()))
    run = Run(wanted.checkpoint, before.run.generation + 1 if before else 1, wanted.identity, secrets.token_hex(4))
    if before and before.run.identity == wanted.identity:
        try:
            require_present(hosts, before, None)
        except ReadError as e:
            logger.warning("making it again: %s", e)
        else:
            return _Plan(wanted, before.run, before, ())
    elif before and not overwrite:
        raise CheckpointExistsError(
            f"there is a checkpoint {wanted.checkpoint!r} already, made from another collection: {before!r}. Give "
            "another name, replace it with overwrite=True, or delete it first; if the content is the same and only "
            "dask's token of the collection differs from run to run, give token=",
            existing=before,
        )
    begun.append(run)
    intent = {
        "ckpt-spill-run": 1,
        "id": wanted.checkpoint,
        "token": wanted.token,
        "kind": wanted.prepared.kind,
        "npartitions": len(wanted.prepared.keys),
        "collection": wanted.prepared.description,
        "created": _now(),
    }
    content = json.dumps(intent).encode()
    found = hosts.at(errands.begin, [(address, (path, run, content)) for address, path in stores.values()])
    taken_over = {r.partition: r for records in found for r in records if r.partition < len(wanted.prepared.keys)}
    return _Plan(wanted, run, None, tuple(taken_over.values()))


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


# --------------------------------------------------------------------------------------------------------------- run
def _write(
    hosts: Hosts,
    graph: dict[Any, Any],
    plans: Sequence[_Plan],
    roots: tuple[str, ...] | None,
    *,
    codec: CodecName,
    durable: bool,
    progress: bool | None,
) -> list[list[Record]]:
    """Compute and write what is not on disk yet; give each plan's records."""
    records = {plan.run.run: list(plan.taken_over) for plan in plans}
    targets = {}
    for plan in (p for p in plans if not p.existing):
        job, done = (
            WriteJob(plan.run, plan.wanted.prepared.kind, roots, codec, durable),
            {r.partition for r in plan.taken_over},
        )
        for partition, key in enumerate(plan.wanted.prepared.keys):
            if partition not in done:
                targets[f"persist_to_disk-{plan.run.run}", partition] = key, partition, job
    results = hosts.compute(with_writes(graph, targets), list(targets))
    with Progress(len(targets), progress) as bar, contextlib.closing(results):
        for record in results:
            records[record.run].append(record)
            bar.advance(record.nbytes)
    return [records[plan.run.run] for plan in plans]


@contextlib.contextmanager
def _kept_for_resume(hosts: Hosts, stores: Stores) -> Iterator[list[Run]]:
    """After a failure, leave of the runs that were begun only what a resume can use."""
    begun: list[Run] = []
    try:
        yield begun
    except BaseException:
        with contextlib.suppress(Exception):  # the failure itself is what matters
            hosts.each(errands.give_up, begun)
            hosts.at(errands.discard_if_empty, [(a, (root, run)) for a, root in stores.values() for run in begun])
        raise


# ------------------------------------------------------------------------------------------------------------ commit
def _commit(
    hosts: Hosts,
    stores: Stores,
    plan: _Plan,
    records: Iterable[Record],
    roots: tuple[str, ...] | None,
    *,
    durable: bool,
) -> Manifest:
    """Make every file durable on every store, and only then write the manifest, which is what counts."""
    wanted = plan.wanted
    refs, table = collect(records, len(wanted.prepared.keys))
    made = Manifest(
        id=wanted.checkpoint,
        name=wanted.checkpoint,
        token=wanted.token,
        run=plan.run,
        kind=wanted.prepared.kind,
        collection=wanted.prepared.description,
        created=_now(),
        stores=refs,
        partitions=table,
    )
    places = places_of(hosts, made, roots)
    if lost := [ref for n, ref in enumerate(refs) if n not in places]:
        raise WriteError(
            f"{made!r} was not committed: no worker reaches "
            + "; ".join(f"store {r.id} ({r.root} on host {r.host})" for r in lost)
            + " any more, which holds partitions of it. Call again: what is within reach is taken over",
            stores=[r.id for r in lost],
        )
    calls = [(a, (root, plan.run, dict(made.files(n).values()), durable)) for n, (a, root) in places.items()]
    missing = [name for names in hosts.at(errands.seal, calls) for name in names]
    if not missing and _write_manifest(hosts, made, places, durable=durable):
        hosts.at(errands.sweep, [(a, (root, plan.run)) for a, root in stores.values()])
        return made
    hosts.at(errands.remove, [(a, (root, plan.run)) for a, root in stores.values()])
    winner = find(hosts, wanted.checkpoint, tuple(root for _, root in stores.values()))
    if winner and winner.run.identity == plan.run.identity:
        return winner
    raise ConflictError(
        f"{made!r} was not committed: while it was being written "
        + (f"another run committed {winner!r}" if winner else f"{len(missing)} of its files were removed")
        + ". Call again",
        winner=winner,
    )


def _write_manifest(hosts: Hosts, made: Manifest, places: Mapping[int, Place], *, durable: bool) -> bool:
    """Commit on one store, then on the others; False if another run committed the generation in one of them.

    Runs at the same time that use the same stores meet at the same first one.
    """
    content = made.to_json()
    first, *others = sorted(places, key=lambda n: made.stores[n].id)
    for numbers in ([first], others):
        if not all(
            hosts.at(errands.commit, [(a, (r, made.run, content, durable)) for a, r in (places[n] for n in numbers)])
        ):
            return False
    return True


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
