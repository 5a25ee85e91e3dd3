"""Pandas frames: an index, the labels of the columns, and the columns, each to be had by itself."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ckpt_spill.store.frames import extension, index, labelled, pickled, stacks
from ckpt_spill.store.frames.buffers import Sink, Source, count
from ckpt_spill.store.frames.untyped import create_dataframe_from_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from ckpt_spill.store.frames.buffers import Description, Plan

#: Kinds of numpy dtypes whose columns pandas holds in blocks of raw items.
_STACKED = "biufcmM"
#: A description of a few bytes may not call for memory without bound.
_MOST_COLUMNS = 1 << 24


class UnknownColumnError(KeyError):
    """A column was asked for that the frame does not have."""


class NoColumnsError(TypeError):
    """Columns were asked for of a value that is no frame."""


def describe(frame: pd.DataFrame, sink: Sink) -> Description:
    """Describe a frame; the labels of its columns are inline, so that columns can be found before anything is read."""
    if frame.shape[1] > _MOST_COLUMNS:
        return pickled.describe(frame, sink)
    found: Description = {"kind": "frame", "rows": len(frame)}
    with sink.at("the index"):
        found["index"] = index.describe(frame.index, sink)
    found["parts"] = _describe_parts(frame, sink)
    return found | describe_labels(frame.columns) | labelled.describe(frame, sink)


def describe_labels(columns: pd.Index) -> Description:
    """Describe the labels of the columns, with their buffers."""
    labels = Sink()
    with labels.at("the column labels"):
        found: Description = {"columns": index.describe(columns, labels, few=None)}
    if labels.buffers:
        found["inline"] = [base64.b64encode(b.tobytes()).decode() for b in labels.on_host]
    return found


def plan(description: Description, source: Source, columns: Collection[Hashable] | None = None) -> Plan:
    """Take the buffers of a frame, or those of some of its columns, its index and labels."""
    rows, parts = count(description["rows"]), description["parts"]
    width = check_positions(parts)
    labels = plan_labels(description)
    chosen: list[int] | None = None
    if columns is not None and not pickled.needs_pickle(description["columns"]):
        chosen = choose(labels(), columns)
    place = {i: k for k, i in enumerate(range(width) if chosen is None else chosen)}
    blocks = [_plan_part(part, rows, place, source) for part in parts]
    rows_index = index.plan(description["index"], source)
    finish = labelled.plan(description, source)

    def build() -> Any:
        names = labels()
        if len(names) != width:
            raise ValueError(f"{len(names)} labels for {width} columns")
        axis = rows_index()
        if len(axis) != rows:
            raise ValueError(f"an index of {len(axis)} labels for {rows} rows")
        if chosen is not None:
            names = names.take(chosen)
        made = [block for blocks_of_part in blocks for block in blocks_of_part()]
        frame = finish(create_dataframe_from_blocks(made, axis, names))
        if columns is not None and chosen is None:
            return select(frame, columns)
        return frame

    return build


def choose(labels: pd.Index, columns: Collection[Hashable]) -> list[int]:
    """Return the positions of the labels asked for, in the frame's own order, duplicates included."""
    wanted = set(columns)
    unknown = wanted.difference(labels)
    if unknown:
        raise UnknownColumnError(f"no column {', '.join(sorted(map(repr, unknown)))}")
    return [i for i, label in enumerate(labels) if label in wanted]


def select(value: Any, columns: Collection[Hashable]) -> Any:
    """Select columns of a frame that had to be read as a whole."""
    if not isinstance(value, pd.DataFrame):
        raise NoColumnsError(f"columns of a {type(value).__name__} were asked for: it has none")
    return value.iloc[:, choose(value.columns, columns)]


def _describe_parts(frame: pd.DataFrame, sink: Sink) -> list[Description]:
    parts: list[Description] = []
    stacked: dict[str, dict[int, np.ndarray]] = {}
    for i, (label, column) in enumerate(frame.items()):
        values = extension.as_numpy(column.array)
        if values is None:
            values = column.array
        elif values.dtype.kind in _STACKED and values.dtype.metadata is None:
            stacked.setdefault(values.dtype.str, {})[i] = values
            continue
        with sink.at(f"column {label!r}"):
            parts.append({"kind": "column", "at": i, "data": index.describe_values(values, sink)})
    return [stacks.describe(columns, sink) for columns in stacked.values()] + parts


def check_positions(parts: list[Description]) -> int:
    """Check that each column is described once; return how many there are."""
    if sum(stacks.width(part) if part["kind"] == "stack" else 1 for part in parts) > _MOST_COLUMNS:
        raise ValueError("a frame of more columns than this format provides for")
    at = sorted(i for part in parts for i in (stacks.positions(part) if part["kind"] == "stack" else [part["at"]]))
    if at != list(range(len(at))):
        raise ValueError("the columns of a frame overlap or leave gaps")
    return len(at)


def _plan_part(
    part: Description, rows: int, place: dict[int, int], source: Source
) -> Callable[[], list[tuple[Any, np.ndarray]]]:
    """Plan a stack or a column as the blocks of a frame, with their places; none if no column of it is wanted."""
    if part["kind"] == "stack":
        stack = stacks.plan(part, rows, place.__contains__, source)

        def build_stack() -> list[tuple[Any, np.ndarray]]:
            block, at = stack()
            return [(block, np.array([place[i] for i in at], np.intp))] if at else []

        return build_stack
    if part["kind"] != "column":
        raise ValueError(f"a frame has no part of kind {part['kind']!r}")
    if part["at"] not in place:
        return list
    column = index.plan_values(part["data"], source)

    def build_column() -> list[tuple[Any, np.ndarray]]:
        values = column()
        if len(values) != rows:
            raise ValueError(f"a column of {len(values)} values in a frame of {rows} rows")
        block = values.reshape(1, -1) if isinstance(values, np.ndarray) else values
        return [(block, np.array([place[part["at"]]], np.intp))]

    return build_column


def plan_labels(description: Description) -> Plan:
    """Plan the labels of the columns, whose buffers are at hand."""
    data = [base64.b64decode(text, validate=True) for text in description.get("inline", [])]
    source = Source([len(d) for d in data])
    labels = index.plan(description["columns"], source)
    for number, memory in source.destinations.items():
        memory[:] = np.frombuffer(data[number], np.uint8)
    return labels
