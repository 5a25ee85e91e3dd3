"""The read of a frame as a dask expression, so that projections reach the file."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

# Expressions are dask's own extension point for readers, but are only importable from private modules.
from dask._collections import new_collection
from dask.base import tokenize
from dask.dataframe.dask_expr._expr import Expr, Index, Projection, determine_column_projection
from dask.dataframe.dask_expr.io.io import IO
from dask.dataframe.dask_expr.io.parquet import ReadParquet

from ckpt_spill.graph import read_task, row_keys
from ckpt_spill.jobs import READ
from ckpt_spill.manifest import ManifestData
from ckpt_spill.store.inline import extract
from ckpt_spill.store.partition import Library
from ckpt_spill.store.scalars import load_scalar


class ReadFrame(IO):
    """Read partitions of a frame, series or index: all, or those of some numbers.

    Not ``BlockwiseIO``: blockwise expressions are fused with what follows them, and reads have to stay root tasks of
    their own.
    """

    _parameters = ["manifest", "columns", "numbers", "backend"]  # noqa: RUF012 (as dask declares it)
    _defaults = {"columns": None, "numbers": None, "backend": None}  # noqa: RUF012

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        # Dask gives the first of several expressions of one name for all of them, unless they have an __init__: but
        # reads of the same content may look for it in other places.
        super().__init__()

    @functools.cached_property
    def _name(self) -> str:
        return read_name(self.manifest, self._selected, self.operand("numbers"), self.operand("backend"))

    @functools.cached_property
    def _selected(self) -> tuple[Hashable, ...] | None:
        columns = self.operand("columns")
        return None if columns is None else tuple(columns)

    @functools.cached_property
    def _meta(self) -> Any:
        meta = extract(self.manifest.collection["meta"], self.operand("backend"))
        return meta if self._selected is None else meta[list(self._selected)]

    @property
    def columns(self) -> list[Hashable]:
        """Labels of the columns that are read."""
        meta = self._meta
        return list(meta.columns) if meta.ndim == 2 else [meta.name]

    def _divisions(self) -> tuple[Any, ...]:
        if (numbers := self.operand("numbers")) is not None:
            return (None,) * (len(numbers) + 1)
        return tuple(map(load_scalar, self.manifest.collection["divisions"]))

    def _layer(self) -> dict[Any, Any]:
        job = self.manifest.read_job(self._selected, self.operand("backend"))
        numbers = self.operand("numbers")
        keys = row_keys(self._name, range(self.manifest.npartitions) if numbers is None else numbers)
        return {key: read_task(key, self.manifest, n, job) for key, n in keys.items()}

    def _simplify_up(self, parent: Any, dependents: Any) -> Any:
        """Read only the columns that are wanted by anything; labels have to be plain and unique for that."""
        if not isinstance(parent, Projection | Index) or self._meta.ndim != 2:
            return None
        labels = self._meta.columns
        if labels.nlevels != 1 or not labels.is_unique:
            return None
        wanted = determine_column_projection(self, parent, dependents)
        wanted = wanted if isinstance(wanted, list) else [wanted]
        selected = [label for label in labels if label in wanted]
        if len(selected) == len(labels):
            return None
        narrower = self.substitute_parameters({"columns": selected})
        return type(parent)(narrower, *parent.operands[1:])


def expression_token(expression: Any) -> str:
    """Give a dask-expr expression's deterministic token.

    That of ``read_parquet``, as of dask 2026.8, covers an open dataset, which has another one in each process; here
    what identifies the files is taken instead: their paths, sizes and times.
    """
    known: dict[str, str] = {}  # an expression may be reached by very many ways

    def token(part: Any) -> str:
        if not isinstance(part, Expr):
            return str(tokenize(part))
        if part._name not in known:  # noqa: SLF001
            known[part._name] = token_of_expression(part)  # noqa: SLF001
        return known[part._name]  # noqa: SLF001

    def token_of_expression(part: Any) -> str:
        if isinstance(part, ReadParquet):
            named = zip(part._parameters, part.operands, strict=True)  # noqa: SLF001
            content = [operand for name, operand in named if name not in ("_dataset_info_cache", "_pq_length_stats")]
            return str(tokenize(type(part), part.checksum, content))
        if not any(isinstance(operand, Expr) for operand in part.operands):
            return str(tokenize(part))
        return str(tokenize(type(part), list(map(token, part.operands))))

    return token(expression)


def read_name(
    manifest: ManifestData,
    columns: tuple[Hashable, ...] | None,
    numbers: tuple[int, ...] | None,
    backend: Library | None,
) -> str:
    """Name a read's tasks after what is read, and as what, and nothing else: a key must not name two contents."""
    return f"{READ}{tokenize(manifest.digest, columns, numbers, backend)}"


def read_frame(manifest: ManifestData, numbers: tuple[int, ...] | None, backend: Library | None) -> Any:
    """Make the lazy frame, series or index of a manifest, or of its partitions of some numbers."""
    return new_collection(ReadFrame(manifest, numbers=numbers, backend=backend))
