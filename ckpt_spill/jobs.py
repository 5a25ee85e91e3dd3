"""What tasks, errands and manifests say of runs, partitions and stores. Small, and picklable."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any, NamedTuple

from ckpt_spill.store.partition import CodecName, Library
from ckpt_spill.store.runs import Run


class Record(NamedTuple):
    """What a client needs to know of a partition that is on disk. A few hundred bytes, whatever the partition."""

    run: str
    partition: int
    store: str
    root: str
    host: str
    nbytes: int
    stored_nbytes: int
    digest: bytes
    direct_nbytes: int = 0


@dataclasses.dataclass(frozen=True)
class WriteJob:
    """What all write tasks of a collection share."""

    run: Run
    kind: str
    roots: tuple[str, ...] | None
    codec: CodecName
    durable: bool


@dataclasses.dataclass(frozen=True)
class StoreRef:
    """A store as a manifest names it: the id is what counts, path and host are where it was last seen."""

    id: str
    root: str
    host: str


@dataclasses.dataclass(frozen=True)
class ReadJob:
    """What all read tasks of a collection share.

    Parameters
    ----------
    run : Run
    stores : tuple of StoreRef
        Stores that hold partitions.
    columns : tuple or None
        Labels of the columns to read; None for everything.
    nbytes : int
        Mean size of a partition file, in bytes.
    backend : {"pandas", "cudf"} or None
        The library to make objects of; None for the one that they were saved from.
    """

    run: Run
    stores: tuple[StoreRef, ...]
    columns: tuple[Hashable, ...] | None
    nbytes: int
    backend: Library | None = None


READ = "rehydrate-"
"""What the names of reads begin with, and keys in them."""


def is_read_key(key: Hashable) -> bool:
    """Tell whether a key may be that of a read; others may be called so, too."""
    name = key[0] if isinstance(key, tuple) and key else key
    return isinstance(name, str) and name.startswith(READ)


def target_of_alias(spec: Any) -> Hashable | None:
    """Give the key whose value a task gives as its own, by its specification; None of a task that makes something."""
    target: Hashable | None = getattr(spec, "target", None)
    return target


def is_read(spec: Any) -> bool:
    """Tell whether a task, by its specification, is the read of a partition and nothing more."""
    args: tuple[Any, ...] = getattr(spec, "args", ())
    return bool(args) and type(args[0]) is ReadJob
