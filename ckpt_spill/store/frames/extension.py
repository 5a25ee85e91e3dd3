"""The arrays that pandas columns and indexes are made of, those apart that hold an index themselves.

Numpy arrays where that is what they are; otherwise the parts of which each pandas array class is made. What pandas does
not define itself is a pickle.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ckpt_spill.errors import ReadError
from ckpt_spill.store.frames import arrays, arrow, pickled, small
from ckpt_spill.store.frames.buffers import Sink, Source
from ckpt_spill.store.frames.untyped import pa

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckpt_spill.store.frames.buffers import Description, Plan

_TIMES = (pd.arrays.DatetimeArray, pd.arrays.TimedeltaArray)
_MANY_CHUNKS = 16
_SMALL_CHUNK = 1 << 16


def describe(array: Any, sink: Sink) -> Description:
    """Describe the array of a column or an index."""
    describer = _DESCRIBERS.get(type(array))
    found = describer(array, sink) if describer else None
    return pickled.describe(array, sink) if found is None else found


def plan(description: Description, source: Source) -> Plan:
    """Take the buffers of an array."""
    if "pickle" in description:
        return pickled.plan(description, source)
    return _PLANNERS[description["kind"]](description, source)


def as_numpy(array: Any) -> Any:
    """Return the numpy array behind a pandas array that is no more than that."""
    if type(array) is pd.arrays.NumpyExtensionArray:
        return array.to_numpy()
    if type(array) in _TIMES and isinstance(array.dtype, np.dtype):
        return array.asi8.view(array.dtype)
    return None


def _describe_numpy(array: Any, sink: Sink) -> Description:
    values = as_numpy(array)
    return _describe_zoned(array, sink) if values is None else arrays.describe(values, sink)


def _describe_zoned(array: Any, sink: Sink) -> Description:
    return {
        "kind": "zoned",
        "unit": array.dtype.unit,
        "zone": _describe_zone(array.dtype.tz, sink),
        "data": arrays.describe(array.asi8, sink),
    }


def _plan_zoned(description: Description, source: Source) -> Plan:
    data = arrays.plan(description["data"], source)

    def build() -> Any:
        dtype = pd.DatetimeTZDtype(description["unit"], _build_zone(description["zone"]))
        return pd.array(data(), dtype=dtype, copy=False)

    return build


def _describe_zone(zone: dt.tzinfo, sink: Sink) -> Any:
    if type(zone) is zoneinfo.ZoneInfo and zone.key is not None:
        return {"key": zone.key}
    if type(zone) is dt.timezone and repr(zone) == repr(dt.timezone(zone.utcoffset(None))):
        offset = zone.utcoffset(None)
        return {"seconds": offset // dt.timedelta(seconds=1)} if not offset.microseconds else small.describe(zone, sink)
    return small.describe(zone, sink)


def _build_zone(description: Any) -> Any:
    if "key" in description:
        return _zone(description["key"])
    if "seconds" in description:
        return dt.timezone(dt.timedelta(seconds=description["seconds"]))
    return small.build(description)


def _zone(key: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(key)
    except zoneinfo.ZoneInfoNotFoundError as e:
        raise ReadError(f"the time zone {key!r} is not known here: install tzdata") from e


def _describe_nullable(array: Any, sink: Sink) -> Description:
    # _data and _mask: to_numpy and isna give copies.
    return {
        "kind": "nullable",
        "data": arrays.describe(array._data, sink),  # noqa: SLF001
        "mask": arrays.describe(array._mask, sink),  # noqa: SLF001
    }


def _plan_nullable(description: Description, source: Source) -> Plan:
    data, mask = arrays.plan(description["data"], source), arrays.plan(description["mask"], source)
    return lambda: _nullable(data(), mask())


def nullable_dtype(dtype: np.dtype) -> Any:
    """Return pandas' dtype of data and mask for a numpy dtype."""
    return _nullable(np.empty(0, dtype), np.empty(0, bool)).dtype


def _nullable(values: np.ndarray, mask: np.ndarray) -> Any:
    classes = {"b": pd.arrays.BooleanArray, "f": pd.arrays.FloatingArray}
    return classes.get(values.dtype.kind, pd.arrays.IntegerArray)(values, mask)


def _describe_period(array: Any, sink: Sink) -> Description | None:
    freq = array.dtype.name.removeprefix("period[").removesuffix("]")
    try:
        if pd.PeriodDtype(freq) == array.dtype:
            return {"kind": "period", "freq": freq, "data": arrays.describe(array.asi8, sink)}
    except ValueError:
        pass
    return None


def _plan_period(description: Description, source: Source) -> Plan:
    data = arrays.plan(description["data"], source)
    return lambda: pd.arrays.PeriodArray(data(), dtype=pd.PeriodDtype(description["freq"]))


def _describe_arrow(array: Any, sink: Sink) -> Description:
    found: Description = {"kind": "arrow"}
    if isinstance(array.dtype, pd.StringDtype):
        found["string"] = describe_string(array.dtype)
    return found | describe_chunked(array.__arrow_array__(), sink)


def _plan_arrow(description: Description, source: Source) -> Plan:
    chunked = plan_chunked(description, source)
    show = _SHOWN[dtype_word(description)]
    if "string" in description:
        dtype: Any = build_string(description["string"])
        return lambda: dtype.__from_arrow__(chunked())
    return lambda: show(chunked())


def dtype_word(description: Description) -> str:
    """Return in which kind of dtype pandas shows an Arrow column array."""
    word = description.get("dtype", "arrow")
    if isinstance(word, dict) and len(word) == 1 and word.keys() <= {"list", "struct", "categories"}:
        return "arrow"
    if word not in _SHOWN:
        raise ValueError(f"{word!r} is no kind of dtype")
    return str(word)


def _as_numpy(chunked: Any) -> np.ndarray:
    """Show Arrow data in numpy's dtype: times, of which a null is one, too, or what has no nulls."""
    if chunked.null_count and not pa.types.is_temporal(chunked.type):
        raise ValueError(f"numpy has no missing {chunked.type}")
    return np.require(chunked.to_numpy(), requirements="W")


def _as_nullable(chunked: Any) -> Any:
    """Show Arrow data in pandas' dtypes of data and mask; what pandas itself makes of Arrow takes NaN for missing."""
    zero = pa.scalar(0, pa.int8()).cast(chunked.type)
    values, mask = chunked.fill_null(zero).to_numpy(), chunked.is_null().to_numpy()
    return _nullable(np.require(values, requirements="W"), np.require(mask, requirements="W"))


def _as_pandas(chunked: Any) -> Any:
    """Show Arrow data in the dtype that pandas has for it: times in a zone, intervals."""
    kind = chunked.type
    if is_interval(kind):
        dtype: Any = pd.IntervalDtype(kind.subtype.to_pandas_dtype(), kind.closed)
        return dtype.__from_arrow__(chunked)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        dtype = pd.DatetimeTZDtype(kind.unit, _zone(kind.tz))
        return pd.array(_as_numpy(chunked).view(np.int64), dtype=dtype, copy=False)
    raise ValueError(f"pandas has no dtype for {kind}")


def is_interval(kind: Any) -> bool:
    """Tell the extension type that pandas has for intervals."""
    return isinstance(kind, pa.ExtensionType) and kind.extension_name == "pandas.interval"


def _describe_python_strings(array: Any, sink: Sink) -> Description | None:
    """Describe strings kept as Python objects as what they would be in Arrow."""
    try:
        chunk = pa.array(array.to_numpy(object), pa.large_string(), from_pandas=True)
    except (pa.ArrowException, UnicodeError):  # lone surrogates
        return None
    return {"kind": "arrow", "string": describe_string(array.dtype)} | describe_chunked(pa.chunked_array([chunk]), sink)


def describe_string(dtype: pd.StringDtype) -> list[str]:
    """Describe a dtype of text: where it is kept, and what stands for a missing one."""
    return [dtype.storage, "NA" if dtype.na_value is pd.NA else "nan"]


def build_string(description: Any) -> pd.StringDtype:
    """Give back a dtype of text."""
    storage, missing = description
    return pd.StringDtype(storage, na_value=pd.NA if missing == "NA" else np.nan)


def describe_chunked(chunked: Any, sink: Sink) -> Description:
    """Describe a chunked Arrow array: chunks stay as they are, unless they are many and small."""
    if chunked.num_chunks > _MANY_CHUNKS and chunked.nbytes < chunked.num_chunks * _SMALL_CHUNK:
        chunked = pa.chunked_array([chunked.combine_chunks()], type=chunked.type)
    chunks = [arrow.describe(chunk, sink) for chunk in chunked.chunks]
    return {"type": arrow.describe_type(chunked.type), "chunks": chunks}


def plan_chunked(description: Description, source: Source) -> Callable[[], Any]:
    """Take the buffers of a chunked Arrow array."""
    kind = arrow.build_type(description["type"])
    chunks = [arrow.plan(kind, d, source) for d in description["chunks"]]
    return lambda: pa.chunked_array([c() for c in chunks], type=kind)


_DESCRIBERS: dict[type, Callable[[Any, Sink], Description | None]] = {
    np.ndarray: arrays.describe,
    pd.arrays.NumpyExtensionArray: _describe_numpy,
    pd.arrays.DatetimeArray: _describe_numpy,
    pd.arrays.TimedeltaArray: _describe_numpy,
    pd.arrays.IntegerArray: _describe_nullable,
    pd.arrays.FloatingArray: _describe_nullable,
    pd.arrays.BooleanArray: _describe_nullable,
    pd.arrays.PeriodArray: _describe_period,
    pd.arrays.ArrowExtensionArray: _describe_arrow,
    pd.arrays.ArrowStringArray: _describe_arrow,
    pd.arrays.StringArray: _describe_python_strings,
}

#: What the member `dtype` of an Arrow column array makes of it.
_SHOWN: dict[str, Callable[[Any], Any]] = {
    "arrow": pd.arrays.ArrowExtensionArray,
    "object": pd.arrays.ArrowExtensionArray,
    "numpy": _as_numpy,
    "nullable": _as_nullable,
    "pandas": _as_pandas,
}

_PLANNERS: dict[str, Callable[[Description, Source], Plan]] = {
    "array": arrays.plan,
    "zoned": _plan_zoned,
    "nullable": _plan_nullable,
    "period": _plan_period,
    "arrow": _plan_arrow,
}
