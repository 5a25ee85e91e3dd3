"""One adapter for each kind of collection: what a manifest says of it, and how it is made again out of reads."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
from dask.base import tokenize
from dask.core import flatten
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from ckpt_spill.errors import RefusedError, UnsupportedCollectionError
from ckpt_spill.expr import expression_token, read_frame, read_name
from ckpt_spill.graph import ReadLayer, grid_keys, optimized_frames, row_keys, single_key, task_graph
from ckpt_spill.manifest import ManifestData
from ckpt_spill.store.inline import embed, extract
from ckpt_spill.store.partition import Library
from ckpt_spill.store.scalars import dump_scalar

Backend = Library | None
Columns = Sequence[Hashable] | None
Numbers = tuple[int, ...] | None
"""Numbers of the partitions to read, where some are to be skipped."""


class Adapter(Protocol):
    """What is particular to a kind of collection."""

    def describe(self, collection: Any) -> dict[str, Any]:
        """Describe what is not in the partitions, in JSON."""

    def rebuild(self, manifest: ManifestData, columns: Columns, numbers: Numbers, backend: Backend) -> Any:
        """Make the lazy collection."""


class FrameAdapter:
    """DataFrame, Series, Index; ``describe`` gets the optimised expression."""

    def describe(self, collection: Any) -> dict[str, Any]:
        """Meta (with known categories) and divisions."""
        return {"meta": embed(collection._meta), "divisions": list(map(dump_scalar, collection.divisions))}  # noqa: SLF001

    def rebuild(self, manifest: ManifestData, columns: Columns, numbers: Numbers, backend: Backend) -> Any:
        """Read as an expression."""
        if manifest.kind != "dataframe":
            _refuse_columns(manifest, columns)
        if any(division is not None for division in manifest.collection["divisions"]):
            _refuse_gaps(manifest, numbers, "its known divisions would promise rows that are not there")
        frame = read_frame(manifest, numbers, backend)
        return frame if columns is None else frame[list(columns)]


class ArrayAdapter:
    """Array of any chunk type; unknown chunk sizes are null."""

    def describe(self, collection: Any) -> dict[str, Any]:
        """Chunks, dtype and meta."""
        chunks = [[None if math.isnan(c) else int(c) for c in axis] for axis in collection.chunks]
        return {"meta": embed(collection._meta), "dtype": embed(np.empty(0, collection.dtype)), "chunks": chunks}  # noqa: SLF001

    def rebuild(self, manifest: ManifestData, columns: Columns, numbers: Numbers, backend: Backend) -> Any:
        """Read as a layer of blocks."""
        _refuse_columns(manifest, columns)
        _refuse_gaps(manifest, numbers, "an array cannot have holes")
        chunks = tuple(tuple(math.nan if c is None else c for c in axis) for axis in manifest.collection["chunks"])
        name, graph = _layer(manifest, functools.partial(grid_keys, numblocks=tuple(map(len, chunks))), None, backend)
        dtype = extract(manifest.collection["dtype"]).dtype
        return da.Array(graph, name, chunks, dtype=dtype, meta=extract(manifest.collection["meta"], backend))


class BagAdapter:
    """Bag; a partition that is an iterator is saved as a list."""

    def describe(self, collection: Any) -> dict[str, Any]:  # noqa: ARG002
        """Nothing but the number of partitions, which the manifest has."""
        return {}

    def rebuild(self, manifest: ManifestData, columns: Columns, numbers: Numbers, backend: Backend) -> Any:
        """Read as a layer of partitions."""
        _refuse_columns(manifest, columns)
        read = range(manifest.npartitions) if numbers is None else numbers
        name, graph = _layer(manifest, functools.partial(row_keys, numbers=read), numbers, backend)
        return db.Bag(graph, name, len(read))


class DelayedAdapter:
    """Delayed."""

    def describe(self, collection: Any) -> dict[str, Any]:
        """Give the length, where the value can be unpacked (``nout``)."""
        return {"length": collection._length}  # noqa: SLF001 (there is no public name)

    def rebuild(self, manifest: ManifestData, columns: Columns, numbers: Numbers, backend: Backend) -> Any:
        """Read as a layer of one task."""
        _refuse_columns(manifest, columns)
        _refuse_gaps(manifest, numbers, "it is one value")
        name, graph = _layer(manifest, single_key, None, backend)
        return Delayed(name, graph, length=manifest.collection["length"])


_KINDS: dict[str, tuple[type, Adapter]] = {
    "dataframe": (dd.DataFrame, FrameAdapter()),
    "series": (dd.Series, FrameAdapter()),
    "index": (dd.Index, FrameAdapter()),
    "array": (da.Array, ArrayAdapter()),
    "bag": (db.Bag, BagAdapter()),
    "delayed": (Delayed, DelayedAdapter()),
}
# An Index is a Series to dask; the narrower type is asked for first.
_ORDER = ("index", "series", "dataframe", "array", "bag", "delayed")


def kind_of(collection: Any) -> str:
    """Name the kind of a collection.

    Raises
    ------
    UnsupportedCollectionError
        With the list of what is supported.
    """
    for kind in _ORDER:
        if isinstance(collection, _KINDS[kind][0]):
            return kind
    hint = " (its .to_delayed() is supported)" if hasattr(collection, "to_delayed") else ""
    raise UnsupportedCollectionError(
        f"cannot save a {type(collection).__module__}.{type(collection).__qualname__}{hint}; supported are dask "
        "DataFrame, Series, Index, Array, Bag and Delayed. Wrap other objects in dask.delayed"
    )


def token_of(collection: Any) -> str:
    """Give the identity of a collection's content, as far as dask can tell: functions by name or code, and inputs."""
    if isinstance(_KINDS[kind_of(collection)][1], FrameAdapter):
        return expression_token(collection.expr)
    return str(tokenize(collection))


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A collection ready to be saved: its optimised form's description, and the key of each partition."""

    kind: str
    description: dict[str, Any]
    keys: list[Any]


def prepare(collections: Sequence[Any]) -> tuple[dict[Any, Any], list[Prepared]]:
    """Optimise collections together; give the merged graph and, for each collection, what to save of it.

    Optimising comes first, because it can change the number of partitions.
    """
    kinds = list(map(kind_of, collections))
    is_frame = [isinstance(_KINDS[kind][1], FrameAdapter) for kind in kinds]
    expressions = optimized_frames([c for c, frame in zip(collections, is_frame, strict=True) if frame])
    others = [c for c, frame in zip(collections, is_frame, strict=True) if not frame]
    graph = task_graph(expressions, others)
    remaining = iter(expressions)
    prepared = []
    for kind, collection, frame in zip(kinds, collections, is_frame, strict=True):
        real = next(remaining) if frame else collection
        prepared.append(Prepared(kind, _KINDS[kind][1].describe(real), list(flatten(real.__dask_keys__()))))
    return graph, prepared


def check_backend(manifest: ManifestData, backend: Backend) -> None:
    """Make sure that here there can be what is to be read, as far as that can be told before anything is.

    Raises
    ------
    ReadError
        It needs a library or a device that is not here, or the library has nothing like it.
    """
    extract(manifest.collection.get("meta") or embed([]), backend)


def rebuild(manifest: ManifestData, columns: Columns, numbers: Numbers, backend: Backend) -> Any:
    """Make the lazy collection of a manifest, or of those of its partitions that have these numbers."""
    if manifest.kind not in _KINDS:
        raise RefusedError(
            f"checkpoint {manifest.id!r} is of a kind this release does not know: {manifest.kind!r}; install a "
            "newer one"
        )
    return _KINDS[manifest.kind][1].rebuild(manifest, columns, numbers, backend)


def _layer(manifest: ManifestData, numbering: Any, numbers: Numbers, backend: Backend) -> tuple[str, HighLevelGraph]:
    name = read_name(manifest, None, numbers, backend)
    job = manifest.read_job(None, backend)
    layer = ReadLayer(manifest, job, functools.partial(numbering, name))
    return name, HighLevelGraph({name: layer}, {name: set()})


def _refuse_columns(manifest: ManifestData, columns: Columns) -> None:
    if columns is not None:
        raise RefusedError(f"checkpoint {manifest.id!r} has no columns to choose from; leave out columns=")


def _refuse_gaps(manifest: ManifestData, numbers: Numbers, reason: str) -> None:
    if numbers is not None:
        raise RefusedError(
            f"checkpoint {manifest.id!r}: none of its {manifest.npartitions} partitions can be skipped, as {reason}, "
            f"but only {len(numbers)} are present. "
            'missing="recompute" with source= makes the others again'
        )
