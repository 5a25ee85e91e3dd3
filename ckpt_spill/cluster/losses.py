"""What the scheduler says of stores that no worker sees, and of partitions that nobody can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckpt_spill.errors import MissingPartitionError
from ckpt_spill.jobs import ReadJob, StoreRef

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
        f"checkpoint {job.run.checkpoint!r} (generation {job.run.generation}): of {asked} wanted partitions "
        f"{len(numbers)} cannot be read, not counting those that were read before: {shown}. They are lost, or out of "
        f"reach of every worker, and belong in {'; '.join(map(_told, refs))}"
        + (f". Copies that were found cannot be used: {what}" if what else "")
        + ". If a disk is mounted elsewhere now, say where with rehydrate(..., root=...); if the files are gone, "
        'rehydrate(..., missing="recompute", source=...) makes them again',
        partitions=numbers,
        stores=[r.id for r in refs],
    )


def waiting(jobs: Sequence[ReadJob], store: str, patience: float) -> str:
    """Say which reads wait for a store that nobody sees, and how long they do.

    Parameters
    ----------
    jobs : sequence of ReadJob
        Of each read that waits.
    store : str
        Its id.
    patience : float
        In seconds.
    """
    names = sorted({job.run.checkpoint for job in jobs})
    ref = next(ref for ref in jobs[0].stores if ref.id == store)
    return (
        f"no worker sees {_told(ref)}, for which reads of checkpoint {', '.join(map(repr, names[:_SHOWN]))} wait; "
        f"those that have no other copy fail if it is not back within {patience:g} seconds"
    )


def _told(ref: StoreRef) -> str:
    return f"store {ref.id} ({ref.root} on host {ref.host})"
