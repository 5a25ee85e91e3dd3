"""Which description a value gets, by its exact type, and how each kind of description is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ckpt_spill.store.device import copies, libraries
from ckpt_spill.store.frames import (
    arrays,
    columns,
    cupyarrays,
    extension,
    frame,
    index,
    labelled,
    pickled,
    rapids,
    tables,
)

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
    "arrays": index.plan,
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
    if describer is None and rapids.is_cudf(value):
        table = sink.access.enter_context(rapids.opened(value))
        return columns.describe(columns.read(table, copies.to_host), sink)
    if describer is None and rapids.is_cupy(value):
        return cupyarrays.describe(value, sink)
    found = describer(value, sink) if describer else tables.describe(value, sink)
    return pickled.describe(value, sink) if found is None else found


def plan(
    description: Description, source: Source, chosen: Collection[Hashable] | None, library: str | None = None
) -> Plan:
    """Take the buffers of a value, for the library that it came from or another."""
    origin = description.get("library")
    if origin not in {None, columns.CUDF, cupyarrays.CUPY}:
        raise ValueError(f"a value of the unknown library {origin!r}")
    if library == "pandas" or (library is None and origin is None):
        return _plan_on_host(description, source, chosen)
    if origin is None and "pickle" in description:  # which may be anything
        return _sent(_plan_on_host(description, source, chosen), rapids.cross)
    libraries.rapids(origin or (cupyarrays.CUPY if description["kind"] == "array" else columns.CUDF))
    libraries.check()
    if origin is None:
        return _sent(_plan_on_host(description, source, chosen), rapids.cross)
    if origin == cupyarrays.CUPY:
        return _sent(cupyarrays.plan(description, source), lambda array: array)
    return _sent(columns.plan(description, source, chosen), rapids.build)


def _sent(load: Plan, send: Callable[[Any], Any]) -> Plan:
    """Plan to make on the device what is in host memory, or there already."""

    def build() -> Any:
        with libraries.failing_to_read():
            return send(load())

    return build


def _plan_on_host(description: Description, source: Source, chosen: Collection[Hashable] | None) -> Plan:
    if "pickle" in description:
        load = pickled.plan(description, source)
        return load if chosen is None else lambda: frame.select(load(), chosen)
    kind = description["kind"]
    if kind == "frame":
        return frame.plan(description, source, chosen)
    if kind not in _PLANNERS:
        raise ValueError(f"a value of unknown kind {kind!r}")
    return _PLANNERS[kind](description, source)
