"""Partitions that lie on the workers' disk tiers already become those of a checkpoint by link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckpt_spill import errands
from ckpt_spill.graph import held_key
from ckpt_spill.hosts import HostLostError, Hosts
from ckpt_spill.plans import Begun


def link_spilled(
    hosts: Hosts, graph: dict[Any, Any], begun: Sequence[Begun], roots: tuple[str, ...] | None, *, durable: bool
) -> None:
    """Add to runs what is held in the cluster's memory and has been evicted to files; the rest has to be written.

    Files are taken as they are compressed.
    """
    for b in begun:
        keys = ((n, held_key(graph, key)) for n, key in b.missing())
        held = {n: key for n, key in keys if key is not None}
        calls = []
        for address, there in (hosts.each(errands.on_disk, held) if held else {}).items():
            if own := {n: held.pop(n) for n in there or () if n in held}:
                calls.append((address, (b.run, own, roots, durable)))
        for records in hosts.attempt(errands.take, calls):
            if not isinstance(records, HostLostError):
                for record in records:
                    b.add(record)
