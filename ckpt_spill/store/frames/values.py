"""Which description a value gets, by its exact type, and how each kind of description is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ckpt_spill.store.frames import arrays, extension, frame, index, labelled, pickled, tables

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from ckpt_spill.store.frames.buffers import Description, Plan, Sink, Source

_DESCRIBERS: dict[Any, Callable[[Any, Sink], Description]] = {
    pd.DataFrame: frame.describe,
    pd.Series: labelled.describe_series,
    np.ndarray: arrays.describe,
    np.ma.MaskedArray: arrays.describe_masked,
} | dict.fromkeys(index.CLASSES, index.describe)

_PLANNERS: dict[str, Callable[[Description, Source], Plan]] = {
    "series": labelled.plan_series,
    "array": arrays.plan,
    "masked": arrays.plan_masked,
    "range": index.plan,
    "multi": index.plan,
    "index": index.plan,
    "labels": index.plan,
    "table": tables.plan_table,
    "batch": tables.plan_batch,
    "chunked": extension.plan_chunked,
    "chunk": tables.plan_chunk,
}


def describe(value: Any, sink: Sink) -> Description:
    """Describe a value."""
    describer = _DESCRIBERS.get(type(value))
    found = describer(value, sink) if describer else tables.describe(value, sink)
    return pickled.describe(value, sink) if found is None else found


def plan(description: Description, source: Source, columns: Collection[Hashable] | None) -> Plan:
    """Take the buffers of a value."""
    if "pickle" in description:
        load = pickled.plan(description, source)
        return load if columns is None else lambda: frame.select(load(), columns)
    kind = description["kind"]
    if kind == "frame":
        return frame.plan(description, source, columns)
    if kind not in _PLANNERS:
        raise ValueError(f"a value of unknown kind {kind!r}")
    return _PLANNERS[kind](description, source)
