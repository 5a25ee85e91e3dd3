"""Indexes, and the arrays made of indexes: categoricals and intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ckpt_spill.store.frames import arrays, extension, pickled, small
from ckpt_spill.store.frames.buffers import Sink, Source

if TYPE_CHECKING:
    from ckpt_spill.store.frames.buffers import Description, Plan

_PLAIN = (
    pd.Index,
    pd.DatetimeIndex,
    pd.TimedeltaIndex,
    pd.PeriodIndex,
    pd.CategoricalIndex,
    pd.IntervalIndex,
)
#: The classes described here.
CLASSES = (*_PLAIN, pd.RangeIndex, pd.MultiIndex)
#: Up to so many labels are written into the description.
_FEW = 64


def describe(index: Any, sink: Sink, *, few: int | None = _FEW) -> Description:
    """Describe an index; up to ``few`` plain labels inline, any number for None."""
    kind = type(index)
    if kind is pd.RangeIndex:
        found = describe_range(index)
    elif kind is pd.MultiIndex:
        found = _describe_multi(index, sink)
    elif kind in _PLAIN and _is_regular(index):
        found = _describe_labels(index, sink, few) or {"kind": "index", "data": describe_values(index.array, sink)}
        if getattr(index, "freq", None) is not None and kind is not pd.PeriodIndex:
            found["freq"] = describe_freq(index.freq, sink)
    else:
        return pickled.describe(index, sink)
    if index.name is not None and kind is not pd.MultiIndex:
        found["name"] = small.describe(index.name, sink)
    return found


def plan(description: Description, source: Source) -> Plan:
    """Take the buffers of an index."""
    if "pickle" in description:
        return _plan_pickled(description, source)
    return _PLANNERS[description["kind"]](description, source)


def describe_values(array: Any, sink: Sink) -> Description:
    """Describe the array of a column or an index."""
    if type(array) is pd.Categorical:
        found = {
            "kind": "categorical",
            "codes": arrays.describe(array.codes, sink),
            "categories": describe(array.categories, sink),
        }
        return found | ({"ordered": True} if array.ordered else {})
    if type(array) is pd.arrays.IntervalArray:
        left, right = describe(array.left, sink), describe(array.right, sink)
        return {"kind": "interval", "closed": array.closed, "left": left, "right": right}
    return extension.describe(array, sink)


def plan_values(description: Description, source: Source) -> Plan:
    """Take the buffers of the array of a column or an index."""
    kind = description.get("kind")
    if kind == "categorical":
        codes = arrays.plan(description["codes"], source)
        categories = plan(description["categories"], source)
        ordered = description.get("ordered", False)
        return lambda: pd.Categorical.from_codes(codes(), dtype=pd.CategoricalDtype(categories(), ordered))
    if kind == "interval":
        left, right = plan(description["left"], source), plan(description["right"], source)
        return lambda: pd.arrays.IntervalArray.from_arrays(left(), right(), closed=description["closed"])
    return extension.plan(description, source)


def describe_range(index: pd.RangeIndex | range) -> Description:
    """Describe the range of an index."""
    found: Description = {"kind": "range", "stop": index.stop}
    return found | ({"start": index.start} if index.start else {}) | ({"step": index.step} if index.step != 1 else {})


def build_range(description: Description) -> range:
    """Give back the range of an index."""
    return range(description.get("start", 0), description["stop"], description.get("step", 1))


def _plan_range(description: Description, _source: Source) -> Plan:
    return lambda: pd.RangeIndex(build_range(description), name=_name(description))


def _describe_multi(index: Any, sink: Sink) -> Description:
    found: Description = {
        "kind": "multi",
        "levels": [describe(level, sink) for level in index.levels],
        "codes": [arrays.describe(np.asarray(codes), sink) for codes in index.codes],
        "names": [small.describe(name, sink) for name in index.names],
    }
    return found | ({"sortorder": int(index.sortorder)} if index.sortorder is not None else {})


def _plan_multi(description: Description, source: Source) -> Plan:
    levels = [plan(d, source) for d in description["levels"]]
    codes = [arrays.plan(d, source) for d in description["codes"]]

    def build() -> pd.MultiIndex:
        made = [level() for level in levels]
        places = [_check_codes(c(), len(level)) for c, level in zip(codes, made, strict=True)]
        names = [small.build(name) for name in description["names"]]
        # What pandas would verify, and perhaps change, it verified when the index was made.
        return pd.MultiIndex(made, places, description.get("sortorder"), names, verify_integrity=False)

    return build


def _plan_arrays(description: Description, source: Source) -> Plan:
    levels = [plan_values(d, source) for d in description["arrays"]]

    def build() -> pd.MultiIndex:
        made: list[Any] = [_finish(level(), {}) for level in levels]
        return pd.MultiIndex.from_arrays(made, names=[small.build(name) for name in description["names"]])

    return build


def _check_codes(codes: np.ndarray, labels: int) -> Any:
    if codes.dtype.kind != "i" or (codes.size and not -1 <= codes.min() <= codes.max() < labels):
        raise ValueError(f"codes that point outside of a level of {labels} labels")
    return codes


def _plan_index(description: Description, source: Source) -> Plan:
    values = plan_values(description["data"], source)
    return lambda: _finish(values(), description)


def _describe_labels(index: Any, sink: Sink, few: int | None) -> Description | None:
    """Describe labels one by one if they are plain and not many."""
    text = isinstance(index.dtype, pd.StringDtype)
    if not (text or index.dtype == object) or (few is not None and len(index) > few):
        return None
    labels = index.astype(object).tolist()
    if text:
        labels = [label if isinstance(label, str) else None for label in labels]
    if not small.is_plain(labels):
        return None
    found: Description = {"kind": "labels", "labels": small.describe(labels, sink)}
    return found | ({"string": extension.describe_string(index.dtype)} if text else {})


def _plan_labels(description: Description, _source: Source) -> Plan:
    def build() -> Any:
        labels = small.build(description["labels"])
        values = np.empty(len(labels), object)
        values[:] = labels
        if "string" in description:
            return _finish(pd.array(values, dtype=extension.build_string(description["string"])), description)
        return _finish(values, description)

    return build


def _finish(values: Any, description: Description) -> Any:
    """Make an index of an array, whose dtype decides on the class."""
    index: Any = pd.Index(values, dtype=values.dtype, name=_name(description), copy=False)
    if "freq" in description:
        index.freq = small.build(description["freq"])
    return index


def _name(description: Description) -> Any:
    return small.build(description.get("name"))


def describe_freq(freq: Any, sink: Sink) -> Any:
    """Describe an offset by its text if that stands for just this one."""
    try:
        if pd.tseries.frequencies.to_offset(freq.freqstr) == freq:
            return freq.freqstr
    except ValueError:
        pass
    return small.describe(freq, sink)


def _is_regular(index: Any) -> bool:
    """Tell whether pandas will accept the freq, if there is one, when it is set again: some of its own it would not."""
    if getattr(index, "freq", None) is None or type(index) is pd.PeriodIndex:
        return True
    bare = type(index)(index.asi8, dtype=index.dtype)
    try:
        bare.freq = index.freq
    except (TypeError, ValueError):
        return False
    return True


def _plan_pickled(description: Description, source: Source) -> Plan:
    load = pickled.plan(description, source)

    def build() -> pd.Index:
        index = load()
        if isinstance(index, pd.Index):
            return index
        raise ValueError(f"a {type(index).__name__} in the place of an index")

    return build


_PLANNERS = {
    "range": _plan_range,
    "multi": _plan_multi,
    "arrays": _plan_arrays,
    "index": _plan_index,
    "labels": _plan_labels,
}
