"""Strict equality of collections: first what dask knows of them, then each partition in its place."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import dask.bag as db
import scipy.sparse
from dask.delayed import Delayed

from tests.cases.building import CASES
from tests.strict import diff


def structure(collection: Any) -> dict[str, Any]:
    """What is known of a collection without computing anything."""
    known = {"type": type(collection)}
    if isinstance(collection, da.Array):
        return known | {
            "chunks": collection.chunks,
            "dtype": collection.dtype,
            "meta": concrete(collection._meta, collection),
        }
    if isinstance(collection, db.Bag):
        return known | {"npartitions": collection.npartitions}
    if isinstance(collection, Delayed):
        return known
    return known | {
        "npartitions": collection.npartitions,
        "divisions": collection.divisions,
        "meta": collection._meta,
    }


def partitions(collection: Any) -> list[Delayed]:
    """The partitions of a collection in order, each to be computed by itself."""
    if isinstance(collection, da.Array):
        return list(collection.to_delayed().ravel())
    if isinstance(collection, Delayed):
        return [collection]
    return list(collection.to_delayed())


def concrete(partition: Any, like: Any) -> Any:
    """A partition as a value that can be compared.

    In a bag, an iterator or another iterable stands for the list it gives. A sparse matrix is its format and arrays.
    """
    if scipy.sparse.issparse(partition):
        return type(partition), partition.shape, partition.data, partition.indices, partition.indptr
    if isinstance(like, db.Bag) and not isinstance(partition, (list, tuple, dict)):
        return list(partition)
    return partition


def compute_here(collection: Any) -> list[Any]:
    """Compute every partition in this process, without any cluster."""
    with dask.config.set(scheduler="synchronous"):
        return [concrete(partition.compute(), collection) for partition in partitions(collection)]


def diff_structures(saved: Any, read: Any) -> list[str]:
    """List what a collection says of itself that differs from what another one says."""
    expected, found = structure(saved), structure(read)
    if found.keys() != expected.keys():
        return [f"{expected['type'].__name__} became {found['type'].__name__}"]
    return [line for key in expected for line in diff(expected[key], found[key], key)]


def diff_collections(saved: Any, read: Any) -> list[str]:
    """List all differences between two collections, computing both in this process."""
    differences = diff_structures(saved, read)
    expected, found = compute_here(saved), compute_here(read)
    if len(expected) != len(found):
        return [*differences, f"{len(expected)} partitions became {len(found)}"]
    pairs = enumerate(zip(expected, found, strict=True))
    return differences + [line for number, pair in pairs for line in diff(*pair, f"partition {number}")]


def diff_partition(name: str, number: int, value: Any) -> list[str]:
    """List how a partition that was read differs from that of the case, which this process makes itself.

    This runs where the partition is, as dask does not carry every value unchanged from one process to another.
    """
    saved = CASES[name].build()
    with dask.config.set(scheduler="synchronous"):
        expected = partitions(saved)[number].compute()
    return diff(concrete(expected, saved), concrete(value, saved), f"partition {number}")
