"""Columns, indexes and frames of cuDF's in neutral words: one Arrow array a column, or codes and their categories.

What is cuDF's own is one module further (`rapids`): here a column is where its memory is, the Arrow type that says how
to read it, and the words that say which dtype shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ckpt_spill.store.device.memory import Memory
from ckpt_spill.store.frames import arrays, arrow, extension, index, labelled, layout, parts, small
from ckpt_spill.store.frames import frame as frames
from ckpt_spill.store.frames.buffers import Source, count
from ckpt_spill.store.frames.parts import Parts
from ckpt_spill.store.frames.untyped import pa

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from ckpt_spill.store.frames.buffers import Description, Sink
    from ckpt_spill.store.frames.layout import Reader, View

#: What the member `library` of a description says that was made of cuDF objects.
CUDF = "cudf"


class Column(NamedTuple):
    """A column where it is. Of a categorical one, ``view`` and ``kind`` are those of the codes."""

    view: View
    kind: Any
    words: Description
    categories: Column | None = None
    ordered: bool = False


class Values(NamedTuple):
    """A column as an Arrow array, or as the parts of one: of a categorical one, ``array`` has the codes."""

    array: Any
    words: Description
    categories: Values | None = None
    ordered: bool = False


class Axis(NamedTuple):
    """An index: a range, or a column, or the columns that are the levels of a MultiIndex."""

    columns: list[Any]
    names: list[Hashable]
    range: range | None = None
    levels: bool = False
    freq: Any = None


class Table(NamedTuple):
    """A frame, a series (one column, its name the only label), or an index (no columns)."""

    kind: str
    axis: Axis
    columns: list[Any]
    labels: Any
    attrs: dict[Hashable, Any]
    unique: bool


def read(table: Table, fetch: Callable[[list[Memory]], list[np.ndarray]]) -> Table:
    """Read the columns of a table, but for bulk data, which stays where it is."""
    found = layout.gather([_read(column) for column in (*table.axis.columns, *table.columns)], fetch)
    split = len(table.axis.columns)
    return table._replace(axis=table.axis._replace(columns=found[:split]), columns=found[split:])


def _read(column: Column) -> Reader:
    array = yield from layout.read(column.view, column.kind)
    if column.categories is None:
        return Values(array, column.words)
    codes = yield from layout.near(array)
    categories = yield from _read(column.categories)
    labels = yield from layout.near(categories.array)
    return Values(codes, column.words, categories._replace(array=labels), column.ordered)


def describe(table: Table, sink: Sink) -> Description:
    """Describe a table that was read."""
    with sink.at("the index"):
        axis = _describe_axis(table.axis, sink)
    if table.kind == "index":
        return axis | {"library": CUDF}
    found: Description = {"kind": table.kind, "library": CUDF, "index": axis}
    if table.kind == "series":
        found["data"] = _describe_values(table.columns[0], sink)
        if table.labels is not None:
            found["name"] = small.describe(table.labels, sink)
    else:
        found_parts = []
        for at, (label, column) in enumerate(zip(table.labels, table.columns, strict=True)):
            with sink.at(f"column {label!r}"):
                found_parts.append({"kind": "column", "at": at, "data": _describe_values(column, sink)})
        found |= {"rows": _rows(table.axis), "parts": found_parts} | frames.describe_labels(table.labels)
    return found | labelled.describe_attrs(table.attrs, sink, unique=table.unique)


def plan(description: Description, source: Source, columns: Collection[Hashable] | None) -> Callable[[], Table]:
    """Take the buffers of a table."""
    kind = description["kind"]
    if kind not in {"frame", "series"}:
        axis = _plan_axis(description, source)
        return lambda: Table("index", axis(), [], None, {}, unique=False)
    axis = _plan_axis(description["index"], source)
    attrs = labelled.plan_attrs(description, source)
    unique = bool(description.get("unique", False))
    if kind == "series":
        data = _plan_values(description["data"], source)
        name = description.get("name")

        def build_series() -> Table:
            found, made = axis(), data()
            if len(made.array) != _rows(found):
                raise ValueError(f"{len(made.array)} values do not go with an index of {_rows(found)}")
            return Table(kind, found, [made], small.build(name), attrs(), unique)

        return build_series
    labels, chosen = frames.plan_labels(description), None
    width = frames.check_positions(description["parts"])
    if columns is not None:
        chosen = frames.choose(labels(), columns)
    order = range(width) if chosen is None else chosen
    at = {part["at"]: part["data"] for part in description["parts"] if part["kind"] == "column"}
    values = [_plan_values(at[i], source) for i in order]
    rows = count(description["rows"])

    def build() -> Table:
        found, names, made = axis(), labels(), [v() for v in values]
        if len(names) != width or _rows(found) != rows or any(len(v.array) != rows for v in made):
            raise ValueError(f"index, labels and columns do not make a frame of {rows} rows and {width} columns")
        return Table(kind, found, made, names if chosen is None else names.take(chosen), attrs(), unique)

    return build


def _rows(axis: Axis) -> int:
    return len(axis.range) if axis.range is not None else len(axis.columns[0].array)


def _describe_axis(axis: Axis, sink: Sink) -> Description:
    names = [small.describe(name, sink) for name in axis.names]
    if axis.levels:
        return {"kind": "arrays", "arrays": [_describe_values(v, sink) for v in axis.columns], "names": names}
    if axis.range is not None:
        found = index.describe_range(axis.range)
    else:
        found = {"kind": "index", "data": _describe_values(axis.columns[0], sink)}
    if axis.freq is not None:
        found["freq"] = index.describe_freq(axis.freq, sink)
    return found | ({"name": names[0]} if axis.names[0] is not None else {})


def _plan_axis(description: Description, source: Source) -> Callable[[], Axis]:
    kind = description["kind"]
    if kind == "arrays":
        levels = [_plan_values(d, source) for d in description["arrays"]]
        names = description["names"]
        return lambda: Axis([v() for v in levels], [small.build(name) for name in names], levels=True)
    name, freq = description.get("name"), description.get("freq")
    if kind == "range":
        ends = index.build_range(description)
        return lambda: Axis([], [small.build(name)], range=ends)
    if kind != "index":
        raise ValueError(f"cuDF has no index of kind {kind!r}")
    values = _plan_values(description["data"], source)
    return lambda: Axis([values()], [small.build(name)], freq=small.build(freq))


def _describe_values(values: Values, sink: Sink) -> Description:
    labels = values.categories
    if labels is None or _has_missing(labels.array):
        array, words = values.array, values.words
        if labels is not None:
            array = pa.DictionaryArray.from_arrays(array, labels.array, ordered=values.ordered)
            words = {"dtype": {"categories": labels.words}} if labels.words else {}
        chunk = parts.describe(array, sink) if isinstance(array, Parts) else arrow.describe(array, sink)
        return {"kind": "arrow"} | words | {"type": arrow.describe_type(array.type), "chunks": [chunk]}
    found = {
        "kind": "categorical",
        "codes": arrays.describe(_signed(values.array, len(labels.array)), sink),
        "categories": {"kind": "index", "data": _describe_values(_without_nulls(labels), sink)},
    }
    return found | ({"ordered": True} if values.ordered else {})


def _plan_values(description: Description, source: Source) -> Callable[[], Values]:
    if description["kind"] == "arrow":
        extension.dtype_word(description)  # which refuses what is none
        words: Description = {word: description[word] for word in description.keys() & {"string", "dtype"}}
        if straight := parts.plan(description, source):
            return lambda: Values(straight(), words)
        chunked = extension.plan_chunked(description, source)
        return lambda: _values(_joined(chunked()), words)
    if description["kind"] != "categorical":
        raise ValueError(f"cuDF has no column of kind {description['kind']!r}")
    if description["categories"]["kind"] != "index":
        raise ValueError(f"cuDF has no categories of kind {description['categories']['kind']!r}")
    codes = arrays.plan(description["codes"], source)
    categories = _plan_values(description["categories"]["data"], source)
    ordered = description.get("ordered", False)

    def build() -> Values:
        known = categories()
        return Values(_unsigned(codes(), len(known.array)), {}, known, ordered)

    return build


def _values(array: Any, words: Description) -> Values:
    if not pa.types.is_dictionary(array.type):
        return Values(array, words)
    labels = Values(array.dictionary, words.get("dtype", {}).get("categories", {}))
    return Values(array.indices, {}, labels, array.type.ordered)


def _has_missing(labels: Any) -> bool:
    """Tell whether one of some categories is missing or NaN: pandas has no such categories."""
    nan = pa.types.is_floating(labels.type) and np.isnan(labels.to_numpy(zero_copy_only=False)).any()
    return bool(labels.null_count or nan)


def _joined(chunked: Any) -> Any:
    if chunked.num_chunks == 1:
        return chunked.chunk(0)
    return pa.concat_arrays(chunked.chunks or [pa.nulls(0, chunked.type)])


def _without_nulls(categories: Values) -> Values:
    """Show categories, none of which is missing, in the plain dtypes that pandas expects there."""
    kind = categories.array.type
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    interval = extension.is_interval(kind)
    if categories.words or not (plain or interval):
        return categories
    return categories._replace(words={"dtype": "pandas" if interval else "numpy"})


def _signed(codes: Any, labels: int) -> np.ndarray:
    """Give codes the dtype that pandas has for so many labels, and -1 for a missing one."""
    dtype = next(dtype for dtype in (np.int8, np.int16, np.int32, np.int64) if labels < np.iinfo(dtype).max)
    numbers: np.ndarray = codes.fill_null(0).to_numpy(zero_copy_only=False).astype(dtype)
    if codes.null_count:
        numbers[codes.is_null().to_numpy(zero_copy_only=False)] = -1
    return numbers


def _unsigned(codes: np.ndarray, labels: int) -> Any:
    """Give codes the dtype that cuDF has for so many labels, and a null for -1."""
    if codes.ndim != 1 or codes.dtype.kind != "i" or (codes.size and not -1 <= codes.min() <= codes.max() < labels):
        raise ValueError(f"codes that point outside of {labels} categories")
    dtype = np.min_scalar_type(labels)
    return pa.array(np.maximum(codes, 0).astype(dtype), mask=codes < 0)
