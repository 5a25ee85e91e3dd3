"""How a checkpoint comes to be: preflight, comparison with what is there, writing, commit."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckpt_spill import errands
from ckpt_spill.catalog import Manifest, find, next_generation
from ckpt_spill.commit import Commit, remove_deleted, superseded, sweep
from ckpt_spill.errands import GoneError
from ckpt_spill.errors import CheckpointExistsError, CkptSpillError, ManifestError, RootError, WriteError
from ckpt_spill.graph import with_writes
from ckpt_spill.hosts import Hosts
from ckpt_spill.jobs import WriteJob
from ckpt_spill.linking import link_spilled
from ckpt_spill.plans import Begun, Plan, Wanted
from ckpt_spill.progress import Progress
from ckpt_spill.reach import LOST, Place, ask, patiently, places_of, presence, several, stores_in_reach
from ckpt_spill.replicas import Replication
from ckpt_spill.store.partition import CodecName
from ckpt_spill.store.runs import Run

logger = logging.getLogger("ckpt_spill")
_ATTEMPTS = 20  # to commit, while stores go away
LEFT_BEHIND = "checkpoint %r: the one it replaces stays in what is out of reach, and is found where only that is: %s"


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
    replicas : int
        In how many failure domains each partition has to be.
    named : sequence of str
        More directories in which the checkpoint may be, but nothing is written.
    """

    hosts: Hosts
    roots: tuple[str, ...] | None
    codec: CodecName
    durable: bool
    overwrite: bool
    replicas: int = 1
    named: Sequence[str] = ()
    _problems: RootError | None = None
    _surveyed: frozenset[str] = frozenset()

    # ---------------------------------------------------------------------------------------------------- preflight
    def preflight(self, wanted: Sequence[Wanted]) -> None:
        """Ask every worker about its roots. Problems do not matter when all that is wanted is there already."""
        answers = self.hosts.each(errands.survey, self.roots)
        surveys = {address: s for address, s in answers.items() if s is not None}
        self._surveyed = frozenset(store for s in surveys.values() for store in s.stores)
        problems = [f"{address}: {p}" for address, s in surveys.items() for p in s.problems]
        problems += [f"{address}: this worker does not answer; end it, or wait" for address in answers.keys() - surveys]
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
            stores = self._reach()
            found = [find(self.hosts, stores, w.checkpoint) for w in wanted]
        except CkptSpillError:
            return False
        return all(m is not None and m.token == w.token for m, w in zip(found, wanted, strict=True))

    def _reach(self, begun: Sequence[Begun] = ()) -> dict[str, Place]:
        """Find the stores in reach, also those that some runs have written to, or are to mend or replace."""
        named = {r.root for b in begun for r in b.records}
        named |= {ref.root for b in begun for m in (b.before, b.replaced) if m for ref in m.stores}
        return stores_in_reach(self.hosts, self.roots, [*self.named, *sorted(named)])

    # -------------------------------------------------------------------------------------------------------- begin
    def run(self, graph: dict[Any, Any], plans: Sequence[Plan], progress: bool | None) -> list[Manifest]:  # noqa: FBT001
        """Write what is not there yet, and commit; give the manifests in the order of the plans."""
        with self._tidied() as begun, contextlib.ExitStack() as copying:
            for plan in plans:
                self._begin(plan, begun)
            for b in begun:
                if self.replicas > 1 and not b.result:
                    b.replication = copying.enter_context(self._replication(b))
            if self.codec == "auto":
                link_spilled(self.hosts, graph, begun, self.roots, durable=self.durable)
            self._write(graph, begun, progress)
            return [b.result or self._finished(graph, b, progress) for b in begun]

    def _begin(self, plan: Plan, begun: list[Begun]) -> None:
        """Compare with what is there; begin a run, taking over what earlier ones of the same content have written."""
        checkpoint = plan.wanted.checkpoint
        stores = self._reach()
        before = self._before(plan, stores)
        if before and before.run.identity == plan.identity:
            begun.append(self._go_on(plan, before))
            return
        if self._problems:
            raise self._problems
        generation = next_generation(self.hosts, stores, checkpoint, plan.identity)
        run = Run(checkpoint, generation, plan.identity, secrets.token_hex(4))
        begun.append(Begun(plan, run, replaced=before))
        intent = plan.intent()
        writable = {store: place for store, place in stores.items() if store in self._surveyed}
        found = ask(self.hosts, errands.begin, writable, lambda _, p: (p.store.root, run, intent, self.durable))
        self._surveyed -= {store for store, records in found.items() if records is None}
        adopted = (r for records in found.values() for r in records or ())
        begun[-1].records = [r for r in adopted if r.partition < len(plan.prepared.keys)]

    def _go_on(self, plan: Plan, before: Manifest) -> Begun:
        """Give the checkpoint that is there or, where partitions of it are lost, begin to mend it."""
        found = patiently(
            self.hosts,
            lambda: presence(self.hosts, before, self.roots, self.named),
            lambda seen: seen.awaited,
            f"checkpoint {before.id!r}",
        )
        if not found.lost and before.replicas >= self.replicas:
            self._settle(before)
            return Begun(plan, before.run, result=before)
        if self._problems:
            raise self._problems
        if found.lost:
            logger.warning("%s; making these again", found.told())
        begun, lost = Begun(plan, before.run, found.records(), before), frozenset(found.lost)
        left = ask(
            self.hosts,
            errands.salvage,
            self._reach([begun]),
            lambda _, p: (p.store.root, begun.run, lost, self.durable),
        )
        begun.records += [r for records in left.values() for r in records]
        return begun

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
            unlike = before.unlike(plan.prepared.kind, len(plan.prepared.keys))
            raise CheckpointExistsError(
                f"there is a checkpoint {plan.wanted.checkpoint!r} already, made from another collection{unlike}: "
                f"{before!r}. "
                "Give another name, replace it with overwrite=True, or delete it first"
                + ("" if plan.wanted.vouched or unlike else same),
                existing=before,
            )
        return before

    def _replication(self, begun: Begun) -> Replication:
        named, count = begun.before.stores if begun.before else (), len(begun.plan.prepared.keys)
        return Replication(
            self.hosts,
            begun.run,
            self.replicas,
            count,
            begun.records,
            roots=self.roots,
            named=named,
            durable=self.durable,
        )

    def _settle(self, manifest: Manifest) -> None:
        """Do what the run that committed a checkpoint may have been kept from, or not been asked to."""
        places = places_of(self.hosts, manifest, self.roots, self.named)
        self._flush(manifest, places)
        if not self._problems:
            sweep(self.hosts, manifest.run, superseded(self.hosts, manifest.run, places.values()))

    def _flush(self, manifest: Manifest, places: Mapping[int, Place]) -> None:
        """Put on the disk what was written without, if that is wanted now."""
        if self.durable and not manifest.durable:
            names = {n: [name for name, _ in manifest.files(n).values()] for n in places}
            calls = [(p.address, (p.store.root, manifest.run, names[n])) for n, p in places.items() if names[n]]
            self.hosts.at(errands.flush, calls)

    # -------------------------------------------------------------------------------------------------------- write
    def _write(self, graph: dict[Any, Any], begun: Sequence[Begun], progress: bool | None) -> None:  # noqa: FBT001
        """Compute, write and copy what is not on disk; and again what was lost with its store meanwhile."""
        runs, copied = {b.run.run: b for b in begun}, not any(b.replication for b in begun)
        while (targets := self._targets(begun)) or not copied:
            if targets:
                results = self.hosts.compute(with_writes(graph, targets), list(targets))
                with Progress(len(targets), progress) as bar, contextlib.closing(results):
                    for record in results:
                        runs[record.run].add(record)
                        bar.advance(record.nbytes)
            self._drop_lost(begun)
            copied = True

    def _targets(self, begun: Sequence[Begun]) -> dict[Any, tuple[Any, int, WriteJob]]:
        """Give the write tasks, by key; the keys are new each time, as a run may be written to by several calls."""
        attempt, targets = secrets.token_hex(4), {}
        for b in begun:
            job = WriteJob(b.run, b.plan.prepared.kind, self.roots, self.codec, self.durable)
            for partition, key in b.missing():
                targets[f"persist_to_disk-{b.run.run}-{attempt}", partition] = key, partition, job
        return targets

    def _drop_lost(self, begun: Sequence[Begun]) -> None:
        """Forget what is in stores that are out of reach, once these had time to come back. What remains is copied."""
        if self.replicas > 1:
            for b in begun:
                b.records = b.replication.finish() if b.replication else b.records
            return

        def awaited(reach: Mapping[str, Place]) -> list[str]:
            return [s for stores, partitions in (b.lost(reach) for b in begun) if partitions for s in stores]

        names = ", ".join(repr(b.run.checkpoint) for b in begun)
        reach = patiently(self.hosts, lambda: self._reach(begun), awaited, f"checkpoint {names}")
        for b in begun:
            stores, partitions = b.lost(reach)
            if stores:
                logger.warning(LOST, b.run.checkpoint, several(stores), partitions)
            b.records = [r for r in b.records if r.store in reach]

    @contextlib.contextmanager
    def _tidied(self) -> Iterator[list[Begun]]:
        """After a failure, leave of the runs that were begun only what a resume can use.

        An interrupt gets out of here at once.
        """
        begun: list[Begun] = []
        try:
            yield begun
        except Exception as e:
            runs = [b.run for b in begun if not (b.before or b.result)]
            with contextlib.suppress(Exception):  # the failure itself is what matters
                self.hosts.each(errands.give_up, runs)
                places = {s: p for s, p in self._reach().items() if s in self._surveyed}
                ask(self.hosts, errands.discard_empty, places, lambda _, p: (p.store.root, runs))
                for b in begun:
                    if b.before and not b.result:
                        remove_deleted(self.hosts, b.run, self._reach([b]), [ref.id for ref in b.before.stores])
            if type(e) is CkptSpillError or isinstance(e, GoneError):  # a worker that failed in an errand
                raise WriteError(f"{e}. Call again: what is on disk is taken over") from e
            raise

    # ------------------------------------------------------------------------------------------------------- commit
    def _finished(self, graph: dict[Any, Any], begun: Begun, progress: bool | None) -> Manifest:  # noqa: FBT001
        """Commit; where a store goes away before that is done, make again what was lost, and commit on the rest."""
        first = revision = begun.before.revision + 1 if begun.before else 0
        while True:
            try:
                return self._commit(begun, revision)
            except GoneError as e:
                if revision == first + _ATTEMPTS:
                    raise
                logger.warning("checkpoint %r: %s; going on without it", begun.run.checkpoint, e)
            self._drop_lost([begun])
            self._write(graph, [begun], progress)
            revision += 1

    def _commit(self, begun: Begun, revision: int) -> Manifest:
        """Make every file durable on every store, and only then write the manifest, which is what counts."""
        holding = {r.store: f"{r.root} on host {r.host}" for r in begun.records}
        known = {ref.id for ref in begun.before.stores} if begun.before else set()
        reach = self._reach([begun])
        if lost := [f"store {store} ({place})" for store, place in holding.items() if store not in reach]:
            raise GoneError(f"{several(lost)} out of reach")
        places = {store: place for store, place in reach.items() if store in self._surveyed | holding.keys() | known}
        stores = [place.store for place in places.values()]
        made = begun.manifest(revision, stores, durable=self.durable, replicas=self.replicas)
        commit = Commit(self.hosts, made, places, durable=self.durable)
        useless = commit.again(known) if begun.before else commit.first()
        # Earlier generations may be in stores that this one is not in.
        others = superseded(self.hosts, begun.run, (p for s, p in reach.items() if s not in places))
        sweep(self.hosts, begun.run, [*useless, *others])
        if left := begun.left_behind(reach):
            logger.warning(LEFT_BEHIND, begun.run.checkpoint, several(left))
        self._flush(made, {n: places[ref.id] for n, ref in enumerate(made.stores)})
        return made

    def winners(self, plans: Sequence[Plan]) -> list[Manifest] | None:
        """After a conflict, give the checkpoints if other runs have made all that is wanted, whole; else None."""
        made = []
        for plan in plans:
            try:
                found = find(self.hosts, self._reach(), plan.wanted.checkpoint)
            except ManifestError:
                return None
            if found is None or found.run.identity != plan.identity or found.replicas < self.replicas:
                return None
            if presence(self.hosts, found, self.roots, self.named).lost:
                return None
            self._settle(found)
            made.append(found)
        return made
