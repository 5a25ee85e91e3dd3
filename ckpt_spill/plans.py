"""What somebody wants to be a checkpoint, and how far it is."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import json
from collections.abc import Container, Iterator, Sequence
from typing import Any

from blake3 import blake3

from ckpt_spill.catalog import Manifest
from ckpt_spill.collections import Prepared
from ckpt_spill.jobs import Record, StoreRef
from ckpt_spill.reach import describe
from ckpt_spill.replicas import Replication
from ckpt_spill.store.runs import Run
from ckpt_spill.table import collect


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

    def intent(self) -> bytes:
        """Say what is to be written, as JSON, for people and repair."""
        intent = {
            "ckpt-spill-run": 1,
            "id": self.wanted.checkpoint,
            "token": self.wanted.token,
            "kind": self.prepared.kind,
            "npartitions": len(self.prepared.keys),
            "collection": self.prepared.description,
            "created": _now(),
        }
        return json.dumps(intent).encode()


@dataclasses.dataclass
class Begun:
    """A run that has begun.

    Parameters
    ----------
    plan : Plan
    run : Run
    records : list of Record
        What is on disk.
    before : Manifest, optional
        The checkpoint that the run is already, if it is to be mended.
    replaced : Manifest, optional
        The one of other content that has its name until it is committed.
    result : Manifest, optional
        The checkpoint, where nothing needs to be done.
    replication : Replication, optional
        Makes copies, where more than one is wanted.
    """

    plan: Plan
    run: Run
    records: list[Record] = dataclasses.field(default_factory=list)
    before: Manifest | None = None
    replaced: Manifest | None = None
    result: Manifest | None = None
    replication: Replication | None = None

    def add(self, record: Record) -> None:
        """Take the record of a partition that was written."""
        self.records.append(record)
        if self.replication:
            self.replication.add(record)

    def lost(self, reach: Container[str]) -> tuple[list[str], int]:
        """Name the stores out of reach that have any of what is on disk; count the partitions that nobody else has."""
        away = {r.store: describe(StoreRef(r.store, r.root, r.host)) for r in self.records if r.store not in reach}
        there = {r.partition for r in self.records if r.store in reach}
        return list(away.values()), len({r.partition for r in self.records} - there)

    def left_behind(self, reach: Container[str]) -> list[str]:
        """Name the stores out of reach that keep what the run replaces."""
        return [describe(ref) for ref in self.replaced.stores if ref.id not in reach] if self.replaced else []

    def missing(self) -> Iterator[tuple[int, Any]]:
        """Partitions that are not on disk, and the keys of what is to be written there."""
        if self.result is None:
            there = {r.partition for r in self.records}
            yield from ((n, key) for n, key in enumerate(self.plan.prepared.keys) if n not in there)

    def manifest(self, revision: int, stores: Sequence[StoreRef], *, durable: bool, replicas: int) -> Manifest:
        """Make the manifest of what is on disk, as it is to be in some stores.

        A checkpoint that is mended stays as it was but for where its partitions are.
        """
        refs, table = collect(self.records, len(self.plan.prepared.keys), stores)
        if self.before:
            return dataclasses.replace(
                self.before,
                durable=durable and self.before.durable,
                stores=refs,
                partitions=table,
                replicas=max(replicas, self.before.replicas),
                revision=revision,
            )
        return Manifest(
            id=self.plan.wanted.checkpoint,
            token=self.plan.wanted.token,
            run=self.run,
            kind=self.plan.prepared.kind,
            collection=self.plan.prepared.description,
            created=_now(),
            durable=durable,
            stores=refs,
            partitions=table,
            replicas=replicas,
            revision=revision,
        )


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")
