"""The error for partitions that nobody can read, as the scheduler tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckpt_spill.errors import MissingPartitionError
from ckpt_spill.jobs import ReadJob

_SHOWN = 10


def lost_partitions(
    job: ReadJob, partitions: Mapping[int, Sequence[str]], asked: int, reasons: Sequence[str]
) -> MissingPartitionError:
    """Say what is lost, where it should be, and what is still there.

    Parameters
    ----------
    job : ReadJob
        Of the reads.
    partitions : mapping of int to sequence of str
        Numbers of the lost partitions, and the stores that each was in.
    asked : int
        How many partitions are wanted by computations that are known now.
    reasons : sequence of str
        What was wrong with copies that were found.
    """
    numbers = sorted(partitions)
    ids = {store for stores in partitions.values() for store in stores}
    refs = [ref for ref in job.stores if ref.id in ids]
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (f" and {len(numbers) - _SHOWN} more" * (len(numbers) > _SHOWN))
    what = "; ".join(dict.fromkeys(reasons[:_SHOWN]))
    return MissingPartitionError(
        f"checkpoint {job.run.checkpoint!r} (generation {job.run.generation}): {asked - len(numbers)} of {asked} "
        f"wanted partitions are present; lost or out of reach of every worker: {shown}, which belong in "
        + "; ".join(f"store {r.id} ({r.root} on host {r.host})" for r in refs)
        + (f". Copies that were found cannot be used: {what}" if what else "")
        + ". If a disk is mounted elsewhere now, say where with rehydrate(..., root=...); if the files are gone, "
        'rehydrate(..., missing="recompute", source=...) makes them again',
        partitions=numbers,
        stores=[r.id for r in refs],
    )
