"""How a checkpoint comes to be: preflight, comparison with what is there, writing, commit."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import json
import logging
import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from blake3 import blake3

from ckpt_spill import errands
from ckpt_spill.catalog import Manifest, Place, find, next_generation, places_of, require_present, stores_in_reach
from ckpt_spill.collections import Prepared
from ckpt_spill.errors import (
    CheckpointExistsError,
    CkptSpillError,
    ConflictError,
    ManifestError,
    ReadError,
    RootError,
    WriteError,
)
from ckpt_spill.graph import with_writes
from ckpt_spill.hosts import Hosts
from ckpt_spill.jobs import Record, WriteJob
from ckpt_spill.manifest import collect
from ckpt_spill.progress import Progress
from ckpt_spill.store.partition import CodecName
from ckpt_spill.store.runs import Run

logger = logging.getLogger("ckpt_spill")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A checkpoint somebody asks for: its id, the identity of its content, and whether the caller vouches for that."""

    checkpoint: str
    token: str
    vouched: bool


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is wanted, and the collection that makes it."""

    wanted: Wanted
    prepared: Prepared

    @functools.cached_property
    def identity(self) -> str:
        """Hash of what makes the content: the token, and the partitioning that optimisation ended with."""
        shape = {k: self.prepared.description.get(k) for k in ("divisions", "chunks")}
        token, kind, count = self.wanted.token, self.prepared.kind, len(self.prepared.keys)
        content = json.dumps([1, self.wanted.checkpoint, token, kind, count, shape], sort_keys=True)
        return str(blake3(content.encode()).hexdigest())[:16]


@dataclasses.dataclass(frozen=True)
class Begun:
    """A run that has begun, with the partitions it took over; or the checkpoint that is there already."""

    plan: Plan
    run: Run
    taken_over: Sequence[Record] = ()
    existing: Manifest | None = None


@dataclasses.dataclass
class Saving:
    """One call of ``persist_to_disk``.

    Parameters
    ----------
    hosts : Hosts
    roots : tuple of str or None
    codec : str
    durable, overwrite : bool
        As the caller asked.
    """

    hosts: Hosts
    roots: tuple[str, ...] | None
    codec: CodecName
    durable: bool
    overwrite: bool
    _problems: RootError | None = None
    _surveyed: frozenset[str] = frozenset()

    # ---------------------------------------------------------------------------------------------------- preflight
    def preflight(self, wanted: Sequence[Wanted]) -> None:
        """Ask every worker about its roots. Problems do not matter when all that is wanted is there already."""
        surveys = self.hosts.each(errands.survey, self.roots)
        self._surveyed = frozenset(store for s in surveys.values() for store in s.stores)
        problems = [f"{address}: {p}" for address, s in surveys.items() for p in s.problems]
        if problems:
            self._problems = RootError(
                "cannot write checkpoints here, nothing was computed:\n  " + "\n  ".join(problems), problems=problems
            )
            if not self._seem_to_be_there(wanted):
                raise self._problems
        for warning in dict.fromkeys(w for s in surveys.values() for w in s.warnings):
            warnings.warn(warning, stacklevel=3)

    def _seem_to_be_there(self, wanted: Sequence[Wanted]) -> bool:
        try:
            stores = stores_in_reach(self.hosts, self.roots)
            found = [find(self.hosts, stores, w.checkpoint) for w in wanted]
        except CkptSpillError:
            return False
        return all(m is not None and m.token == w.token for m, w in zip(found, wanted, strict=True))

    # -------------------------------------------------------------------------------------------------------- begin
    def run(self, graph: dict[Any, Any], plans: Sequence[Plan], progress: bool | None) -> list[Manifest]:  # noqa: FBT001
        """Write what is not there yet, and commit; give the manifests in the order of the plans."""
        with self._tidied() as begun:
            for plan in plans:
                self._begin(plan, begun)
            records = self._write(graph, begun, progress)
            return [b.existing or self._commit(b, found) for b, found in zip(begun, records, strict=True)]

    def _begin(self, plan: Plan, begun: list[Begun]) -> None:
        """Compare with what is there; begin a run, taking over what earlier ones of the same content have written."""
        checkpoint = plan.wanted.checkpoint
        stores = stores_in_reach(self.hosts, self.roots)
        before = self._before(plan, stores)
        if before and before.run.identity == plan.identity:
            try:
                require_present(self.hosts, before, self.roots)
            except ReadError as e:
                logger.warning("making it again: %s", e)
            else:
                self._finish(before)
                begun.append(Begun(plan, before.run, existing=before))
                return
        if self._problems:
            raise self._problems
        generation = next_generation(self.hosts, stores, checkpoint, plan.identity)
        run = Run(checkpoint, generation, plan.identity, secrets.token_hex(4))
        begun.append(Begun(plan, run))
        intent = {
            "ckpt-spill-run": 1,
            "id": checkpoint,
            "token": plan.wanted.token,
            "kind": plan.prepared.kind,
            "npartitions": len(plan.prepared.keys),
            "collection": plan.prepared.description,
            "created": _now(),
        }
        content = json.dumps(intent).encode()
        writable = self._writable(stores)
        calls = [(p.address, (p.store.root, run, content, self.durable)) for p in writable]
        found = self.hosts.at(errands.begin, calls)
        self._surveyed -= {p.store.id for p, records in zip(writable, found, strict=True) if records is None}
        sound = {r.partition: r for records in found for r in records or () if r.partition < len(plan.prepared.keys)}
        begun[-1] = Begun(plan, run, tuple(sound.values()))

    def _before(self, plan: Plan, stores: Mapping[str, Place]) -> Manifest | None:
        """Find the checkpoint that has the id; refuse one of other content, unless it is to be replaced."""
        try:
            before = find(self.hosts, stores, plan.wanted.checkpoint)
        except ManifestError as e:
            if not self.overwrite:
                raise
            logger.warning("replacing what cannot be read: %s", e)
            return None
        if before and before.run.identity != plan.identity and not self.overwrite:
            same = f". If only dask's token of the collection changed, not its content, token={before.token!r} says so"
            raise CheckpointExistsError(
                f"there is a checkpoint {plan.wanted.checkpoint!r} already, made from another collection: {before!r}. "
                "Give another name, replace it with overwrite=True, or delete it first"
                + ("" if plan.wanted.vouched else same),
                existing=before,
            )
        return before

    def _finish(self, manifest: Manifest) -> None:
        """Do what the run that committed a checkpoint may have been kept from, or not been asked to."""
        places = places_of(self.hosts, manifest, self.roots)
        if self.durable and not manifest.durable:
            names = {n: [name for name, _ in manifest.files(n).values()] for n in places}
            calls = [(p.address, (p.store.root, manifest.run, names[n])) for n, p in places.items() if names[n]]
            self.hosts.at(errands.flush, calls)
        if not self._problems:
            self._sweep(manifest.run, self._superseded(manifest.run, places.values()))

    def _superseded(self, run: Run, places: Iterable[Place]) -> list[tuple[Place, list[Run]]]:
        asked = list(places)
        found = self.hosts.at(errands.superseded, [(p.address, (p.store.root, run)) for p in asked])
        return list(zip(asked, found, strict=True))

    def _writable(self, stores: Mapping[str, Place]) -> list[Place]:
        return [place for store, place in stores.items() if store in self._surveyed]

    # -------------------------------------------------------------------------------------------------------- write
    def _write(
        self,
        graph: dict[Any, Any],
        begun: Sequence[Begun],
        progress: bool | None,  # noqa: FBT001
    ) -> list[list[Record]]:
        """Compute and write what is not on disk yet; give each run's records."""
        records = {b.run.run: list(b.taken_over) for b in begun}
        targets = {}
        for b in (b for b in begun if not b.existing):
            job = WriteJob(b.run, b.plan.prepared.kind, self.roots, self.codec, self.durable)
            done = {r.partition for r in b.taken_over}
            for partition, key in enumerate(b.plan.prepared.keys):
                if partition not in done:
                    targets[f"persist_to_disk-{b.run.run}", partition] = key, partition, job
        results = self.hosts.compute(with_writes(graph, targets), list(targets))
        with Progress(len(targets), progress) as bar, contextlib.closing(results):
            for record in results:
                records[record.run].append(record)
                bar.advance(record.nbytes)
        return [records[b.run.run] for b in begun]

    @contextlib.contextmanager
    def _tidied(self) -> Iterator[list[Begun]]:
        """After a failure, leave of the runs that were begun only what a resume can use.

        An interrupt gets out of here at once.
        """
        begun: list[Begun] = []
        try:
            yield begun
        except Exception as e:
            runs = [b.run for b in begun if not b.existing]
            with contextlib.suppress(Exception):  # the failure itself is what matters
                self.hosts.each(errands.give_up, runs)
                places = self._writable(stores_in_reach(self.hosts, self.roots))
                self.hosts.at(
                    errands.discard_if_empty, [(p.address, (p.store.root, run)) for p in places for run in runs]
                )
            if type(e) is CkptSpillError:  # a worker that failed in an errand
                raise WriteError(f"{e}. Call again: what is on disk is taken over") from e
            raise

    # ------------------------------------------------------------------------------------------------------- commit
    def _commit(self, begun: Begun, records: Iterable[Record]) -> Manifest:
        """Make every file durable on every store, and only then write the manifest, which is what counts."""
        records, run, plan = list(records), begun.run, begun.plan
        holding = {r.store for r in records}
        reach = stores_in_reach(self.hosts, self.roots, sorted({r.root for r in records}))
        places = {store: place for store, place in reach.items() if store in self._surveyed | holding}
        refs, table = collect(records, len(plan.prepared.keys), [p.store for p in places.values()])
        made = Manifest(
            id=plan.wanted.checkpoint,
            token=plan.wanted.token,
            run=run,
            kind=plan.prepared.kind,
            collection=plan.prepared.description,
            created=_now(),
            durable=self.durable,
            stores=refs,
            partitions=table,
        )
        if lost := [ref for ref in refs if ref.id in holding - places.keys()]:
            raise WriteError(
                f"{made!r} was not committed: no worker reaches "
                + "; ".join(f"store {r.id} ({r.root} on host {r.host})" for r in lost)
                + " any more, which holds partitions of it. Call again: what is within reach is taken over",
                stores=[r.id for r in lost],
            )
        expected = {ref.id: dict(made.files(n).values()) for n, ref in enumerate(refs)}
        calls = [(p.address, (p.store.root, run, expected[s], self.durable)) for s, p in places.items()]
        missing = [name for names in self.hosts.at(errands.seal, calls) for name in names]
        try:
            useless = None if missing else self._write_manifest(made, places, expected)
        except BaseException:  # in a later store: the previous checkpoint has to stay the one that counts
            with contextlib.suppress(CkptSpillError, OSError):
                self.hosts.at(errands.uncommit, [(p.address, (p.store.root, run)) for p in places.values()])
            raise
        if useless is None:
            self.hosts.at(errands.remove, [(p.address, (p.store.root, run)) for p in places.values()])
            reason = f"{len(missing)} of its files are gone" if missing else "another run had committed this generation"
            raise ConflictError(f"{made!r} was not committed: when it was complete {reason}. Call again")
        # Earlier generations may be in stores that this one is not in.
        self._sweep(run, [*useless, *self._superseded(run, (p for s, p in reach.items() if s not in places))])
        return made

    def _write_manifest(
        self, made: Manifest, places: Mapping[str, Place], expected: Mapping[str, Mapping[str, int]]
    ) -> list[tuple[Place, list[Run]]] | None:
        """Commit on one store, then on the others; give what may be swept, or None if another run was first.

        Every run that uses these roots comes to the same store first, whether it has partitions there or not.
        """
        content = made.to_json()
        first, *others = sorted(places)
        useless = []
        for stores in ([first], others):
            calls = [
                (places[s].address, (places[s].store.root, made.run, content, expected[s], self.durable))
                for s in stores
            ]
            for store, runs in zip(stores, self.hosts.at(errands.commit, calls), strict=True):
                if runs is None:
                    return None
                useless.append((places[store], runs))
        return useless

    def _sweep(self, run: Run, useless: Iterable[tuple[Place, list[Run]]]) -> None:
        """Remove what a committed run makes useless. It is committed: trouble here is no failure."""
        try:
            self.hosts.at(errands.sweep, [(p.address, (p.store.root, run, runs)) for p, runs in useless])
        except (CkptSpillError, OSError) as e:
            logger.warning("files that checkpoint %r no longer needs were left: %s", run.checkpoint, e)

    def winners(self, plans: Sequence[Plan]) -> list[Manifest] | None:
        """After a conflict, give the checkpoints if other runs have made all that is wanted, whole; else None."""
        made = []
        for plan in plans:
            try:
                found = find(self.hosts, stores_in_reach(self.hosts, self.roots), plan.wanted.checkpoint)
                if found is None or found.run.identity != plan.identity:
                    return None
                made.append(require_present(self.hosts, found, self.roots))
                self._finish(found)
            except (ManifestError, ReadError):
                return None
        return made


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")
