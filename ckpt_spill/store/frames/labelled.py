"""What frames and series have in common: attrs and flags; and series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from ckpt_spill.store.frames import extension, index, pickled, small

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ckpt_spill.store.frames.buffers import Description, Plan, Sink, Source


def describe(value: pd.DataFrame | pd.Series, sink: Sink) -> Description:
    """Describe attrs and flags, as far as they are not what a new object has."""
    return describe_attrs(value.attrs, sink, unique=not value.flags.allows_duplicate_labels)


def describe_attrs(attrs: dict[Hashable, Any], sink: Sink, *, unique: bool) -> Description:
    """Describe attrs, and the flag that labels may not occur twice."""
    found: Description = {}
    if attrs:
        found["attrs"] = small.describe(attrs, sink) if small.is_plain(attrs) else pickled.describe(attrs, sink)
    return found | ({"unique": True} if unique else {})


def plan_attrs(description: Description, source: Source) -> Plan:
    """Plan attrs: an empty dict where there are none."""
    attrs = description.get("attrs", {"dict": []})
    return pickled.plan(attrs, source) if "pickle" in attrs else lambda: small.build(attrs)


def plan(description: Description, source: Source) -> Callable[[Any], Any]:
    """Plan attrs and flags; the function returned adds them to a frame or a series."""
    load = plan_attrs(description, source)

    def finish(value: Any) -> Any:
        if "attrs" in description:
            value.attrs = load()
        return value.set_flags(allows_duplicate_labels=False) if description.get("unique") else value

    return finish


def describe_series(series: pd.Series, sink: Sink) -> Description:
    """Describe a series, one by its pickle if it has a name that pandas accepts in no other way."""
    if not pd.api.types.is_hashable(series.name):
        return pickled.describe(series, sink)
    values = extension.as_numpy(series.array)
    found: Description = {
        "kind": "series",
        "index": index.describe(series.index, sink),
        "data": index.describe_values(series.array if values is None else values, sink),
    }
    if series.name is not None:
        found["name"] = small.describe(series.name, sink)
    return found | describe(series, sink)


def plan_series(description: Description, source: Source) -> Plan:
    """Take the buffers of a series."""
    values = index.plan_values(description["data"], source)
    axis = index.plan(description["index"], source)
    finish = plan(description, source)

    def build() -> Any:
        array = values()
        name = small.build(description.get("name"))
        return finish(pd.Series(array, index=axis(), dtype=array.dtype, name=name, copy=False))

    return build
