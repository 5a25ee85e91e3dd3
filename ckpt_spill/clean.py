"""Which keys in a worker's memory hold just what a file of a checkpoint holds: evicting them need not write."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from ckpt_spill.here import current_task, this_worker
from ckpt_spill.jobs import is_read
from ckpt_spill.store.partition import Identity, Library
from ckpt_spill.store.store import Store


class CleanFile(NamedTuple):
    """A partition file, and what of it is the value.

    Attributes
    ----------
    store : Store
        In which it lies.
    path : str
    identity : Identity
        The partition that has to be in it.
    digest : bytes
        BLAKE3 of its footer.
    columns : tuple or None
        Labels of the columns that the value has; None for everything.
    library : {"pandas", "cudf"} or None
        The library of which reading it made the value; None for the one that it was saved from.
    """

    store: Store
    path: str
    identity: Identity
    digest: bytes
    columns: tuple[Hashable, ...] | None
    library: Library | None = None

    @property
    def content(self) -> tuple[object, ...]:
        """What tells the value from those of other files, and of other readings of this one."""
        return self.digest, self.columns, self.library

    @property
    def is_as_saved(self) -> bool:
        """Whether the value is all that the file has, and of the library that it was saved from."""
        return self.columns is None and self.library is None


def note_clean(file: CleanFile) -> None:
    """Note that what this thread's task gives is what is in a file, if the worker's memory has a use for that.

    It counts for the value that is set next under that key, and for no later one.

    By the task's key: dask takes values for immutable, and a read's key for its content. A read inside of another task
    is not noted.
    """
    worker, key = this_worker(), current_task()
    noted = getattr(worker and worker.data, "noted", None)
    if noted is None or key is None:
        return
    task = worker.state.tasks.get(key)
    if task and is_read(task.run_spec):
        noted[key] = file
