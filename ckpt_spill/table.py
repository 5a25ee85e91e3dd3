"""The partition table of a manifest: how large each partition is, the hash of its file, and which stores hold it."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ckpt_spill.jobs import Record, StoreRef

_DIGEST = 32


class Partition(NamedTuple):
    """One partition.

    Attributes
    ----------
    nbytes, stored_nbytes : int
        Raw bytes, and the size of its file.
    digest : bytes
        Hash of the file's footer.
    holders : tuple of int
        Numbers of the stores that hold it.
    direct_nbytes : int
        Raw bytes that went from a GPU to the file without the host, as far as is known.
    """

    nbytes: int
    stored_nbytes: int
    digest: bytes
    holders: tuple[int, ...]
    direct_nbytes: int = 0


@dataclasses.dataclass(frozen=True)
class PartitionTable(Sequence[Partition]):
    """All partitions in their order, as columns: some 50 bytes each, here and in a pickle."""

    nbytes: np.ndarray[Any, np.dtype[np.int64]]
    stored_nbytes: np.ndarray[Any, np.dtype[np.int64]]
    digests: bytes
    holders: tuple[tuple[int, ...], ...]
    direct_nbytes: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def of(cls, partitions: Iterable[Partition]) -> PartitionTable:
        """Make the table of some partitions."""
        rows = list(partitions)
        return cls(
            np.array([p.nbytes for p in rows], np.int64),
            np.array([p.stored_nbytes for p in rows], np.int64),
            b"".join(p.digest for p in rows),
            _interned(p.holders for p in rows),
            np.array([p.direct_nbytes for p in rows], np.int64),
        )

    def to_columns(self) -> dict[str, Any]:
        """Give the columns as JSON can have them."""
        return {
            "nbytes": self.nbytes.tolist(),
            "stored_nbytes": self.stored_nbytes.tolist(),
            "digests": base64.b64encode(self.digests).decode(),
            "holders": [list(h) for h in self.holders],
            **({"direct_nbytes": self.direct_nbytes.tolist()} if self.direct_nbytes.any() else {}),
        }

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any], nstores: int) -> PartitionTable:
        """Take what ``to_columns`` gave, of a manifest that lists so many stores.

        Raises
        ------
        ValueError, KeyError, TypeError, OverflowError
            They are no such columns.
        """
        digests = base64.b64decode(columns["digests"], validate=True)
        nbytes, stored_nbytes, holders = (columns[name] for name in ("nbytes", "stored_nbytes", "holders"))
        direct = columns.get("direct_nbytes", [0] * len(nbytes))
        if any(len(column) * _DIGEST != len(digests) for column in (nbytes, stored_nbytes, holders, direct)):
            raise ValueError("columns of unequal length")
        if any(type(n) is not int or n < 0 for column in (nbytes, stored_nbytes, direct) for n in column):
            raise ValueError("a size that is none")
        if any(part > whole for part, whole in zip(direct, nbytes, strict=True)):
            raise ValueError("more bytes were written directly than there are")
        holders = _interned(map(tuple, holders))
        if any(not 0 <= h < nstores for of in set(holders) for h in of):
            raise ValueError("a partition names a store that is not listed")
        raw, stored, straight = (np.array(column, np.int64) for column in (nbytes, stored_nbytes, direct))
        return cls(raw, stored, digests, holders, straight)

    def __len__(self) -> int:
        return len(self.holders)

    def __getitem__(self, n: Any) -> Any:
        if isinstance(n, slice):
            return [self[i] for i in range(*n.indices(len(self)))]
        n = range(len(self))[n]
        digest = self.digests[n * _DIGEST : (n + 1) * _DIGEST]
        nbytes, stored_nbytes, direct = (int(c[n]) for c in (self.nbytes, self.stored_nbytes, self.direct_nbytes))
        return Partition(nbytes, stored_nbytes, digest, self.holders[n], direct)

    def __iter__(self) -> Iterator[Partition]:
        return (self[n] for n in range(len(self)))


def _interned(holders: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Keep only one of equal tuples: there are few different ones."""
    shared: dict[tuple[int, ...], tuple[int, ...]] = {}
    return tuple(shared.setdefault(of, of) for of in holders)


def collect(
    records: Iterable[Record], npartitions: int, reachable: Iterable[StoreRef]
) -> tuple[tuple[StoreRef, ...], PartitionTable]:
    """Turn records into a manifest's two tables.

    Attempts at one partition may differ: the one with the most copies counts, of several such the first that came.
    """
    attempts: list[dict[bytes, dict[str, Record]]] = [{} for _ in range(npartitions)]
    for record in records:
        attempts[record.partition].setdefault(record.digest, {}).setdefault(record.store, record)
    best = [max(copies.values(), key=len) for copies in attempts]
    refs = {r.id: r for r in reachable}
    refs |= {store: StoreRef(store, r.root, r.host) for copies in best for store, r in copies.items()}
    number = {store: n for n, store in enumerate(refs)}
    rows = []
    for copies in best:
        one = next(iter(copies.values()))
        holders = tuple(sorted(number[store] for store in copies))
        direct = max(record.direct_nbytes for record in copies.values())
        rows.append(Partition(one.nbytes, one.stored_nbytes, one.digest, holders, direct))
    return tuple(refs.values()), PartitionTable.of(rows)
