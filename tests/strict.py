"""Strict equality: every way in which a value that came back may differ from the one that was saved.

``diff(saved, read)`` gives a list of sentences, empty when nothing differs: types, dtypes with unit, byte order,
alignment and metadata, labels and their classes, freq, attrs, flags, memory order, and the bits of every number.
"""

import datetime as dt
import decimal
import math
import types

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy.sparse


def diff(saved, read, at="value") -> list[str]:
    """List the differences between what was saved and what was read."""
    return list(_differences(saved, read, at, {}))


def _differences(a, b, at, seen):
    if type(a) is not type(b):
        yield f"{at}: {_name(a)} became {_name(b)}"
        return
    if a is b or (id(a), id(b)) in seen:
        return
    seen[id(a), id(b)] = a, b  # kept alive: an id may not come again for another object
    for kinds, compare in _COMPARISONS:
        if isinstance(a, kinds):
            yield from compare(a, b, at, seen)
            return
    if isinstance(a, (int, str, bytes, bytearray, set, frozenset, range, slice, type, np.dtype)):
        if a != b:
            yield f"{at}: {a!r:.80} became {b!r:.80}"
    elif hasattr(a, "__dict__") and type(a).__eq__ is object.__eq__:
        yield from _differences(vars(a), vars(b), f"vars({at})", seen)
    elif not bool(a == b) and repr(a) != repr(b):
        yield f"{at}: {a!r:.80} became {b!r:.80}"


def _name(x):
    return f"{type(x).__module__}.{type(x).__qualname__}"


def _same(what, a, b, at):
    if a != b:
        yield f"{at}: {what} {a!r:.80} became {b!r:.80}"


def _frame(a, b, at, seen):
    yield from _labelled(a, b, at, seen)
    yield from _differences(a.columns, b.columns, f"{at}.columns", seen)
    yield from _same("shape", a.shape, b.shape, at)
    if a.shape == b.shape:
        for i, label in enumerate(a.columns):
            yield from _column(a.iloc[:, i], b.iloc[:, i], f"{at}[{label!r}]", seen)


def _series(a, b, at, seen):
    yield from _labelled(a, b, at, seen)
    yield from _differences(a.name, b.name, f"{at}.name", seen)
    yield from _column(a, b, at, seen)


def _labelled(a, b, at, seen):
    yield from _differences(a.index, b.index, f"{at}.index", seen)
    yield from _differences(a.attrs, b.attrs, f"{at}.attrs", seen)
    yield from _same("duplicates allowed", a.flags.allows_duplicate_labels, b.flags.allows_duplicate_labels, at)
    for field in set(a._metadata) - {"_name"}:
        yield from _differences(getattr(a, field, None), getattr(b, field, None), f"{at}.{field}", seen)


def _column(a, b, at, seen):
    if isinstance(a.dtype, np.dtype) and isinstance(b.dtype, np.dtype):
        yield from _numbers(a.to_numpy(), b.to_numpy(), at, seen)
    else:
        yield from _differences(a.array, b.array, at, seen)


def _index(a, b, at, seen):
    yield from _differences(list(a.names), list(b.names), f"{at}.names", seen)
    yield from _same("length", len(a), len(b), at)
    if isinstance(a, pd.RangeIndex):
        yield from _same("range", (a.start, a.stop, a.step), (b.start, b.stop, b.step), at)
    elif isinstance(a, pd.MultiIndex):
        yield from _same("levels", a.nlevels, b.nlevels, at)
        yield from _same("sortorder", a.sortorder, b.sortorder, at)
        for i, (x, y) in enumerate(zip(a.levels, b.levels, strict=False)):
            yield from _differences(x, y, f"{at}.levels[{i}]", seen)
        for i, (x, y) in enumerate(zip(a.codes, b.codes, strict=False)):
            yield from _numbers(x, y, f"{at}.codes[{i}]", seen)
    else:
        yield from _same("freq", getattr(a, "freq", None), getattr(b, "freq", None), at)
        yield from _column(a, b, at, seen)


def _extension(a, b, at, seen):
    yield from _pandas_dtype(a.dtype, b.dtype, at, seen)
    yield from _same("length", len(a), len(b), at)
    if len(a) != len(b):
        return
    if isinstance(a, pd.Categorical):
        yield from _numbers(a.codes, b.codes, f"{at}.codes", seen)
    elif isinstance(a, (pd.arrays.DatetimeArray, pd.arrays.TimedeltaArray, pd.arrays.PeriodArray)):
        yield from _numbers(a.asi8, b.asi8, f"{at}.asi8", seen)
    elif isinstance(a, pd.arrays.IntervalArray):
        yield from _differences(a.left, b.left, f"{at}.left", seen)
        yield from _differences(a.right, b.right, f"{at}.right", seen)
    elif isinstance(a, pd.arrays.ArrowExtensionArray):
        yield from _arrow(a.__arrow_array__(), b.__arrow_array__(), at, seen)
    elif isinstance(a, pd.arrays.SparseArray):
        yield from _numbers(a.sp_values, b.sp_values, f"{at}.sp_values", seen)
        yield from _numbers(_points(a), _points(b), f"{at}.points", seen)
    else:
        yield from _differences(list(a), list(b), at, seen)


def _points(array):
    return array.sp_index.to_int_index().indices


def _pandas_dtype(a, b, at, seen):
    if type(a) is not type(b):
        yield f"{at}: dtype {a!r} became {b!r}"
    elif isinstance(a, pd.CategoricalDtype):
        yield from _same("ordered", a.ordered, b.ordered, at)
        yield from _differences(a.categories, b.categories, f"{at}.categories", seen)
    elif isinstance(a, pd.StringDtype):
        yield from _same("dtype", (a.storage, repr(a.na_value)), (b.storage, repr(b.na_value)), at)
    elif isinstance(a, pd.DatetimeTZDtype):
        yield from _same("unit", a.unit, b.unit, at)
        yield from _differences(a.tz, b.tz, f"{at}.tz", seen)
    else:
        yield from _same("dtype", a, b, at)


def _numbers(a, b, at, seen):
    yield from _numpy_dtype(a.dtype, b.dtype, at)
    yield from _same("shape", a.shape, b.shape, at)
    if a.shape != b.shape or a.dtype != b.dtype:
        return
    if a.dtype.hasobject or a.dtype.kind == "T":
        for i, (x, y) in enumerate(zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)):
            yield from _differences(x, y, f"{at}[{i}]", seen)
    elif _bits(a) != _bits(b):
        yield f"{at}: other bits"


def _bits(array):
    if array.dtype.names:  # padding may differ
        return [_bits(array[name]) for name in array.dtype.names]
    if array.dtype == np.longdouble:  # as may the unused bytes of an 80-bit number
        return [(repr(x), math.copysign(1, x)) for x in array.ravel()]
    if array.dtype == np.clongdouble:
        return [_bits(array.real), _bits(array.imag)]
    return np.ascontiguousarray(array).tobytes()


def _numpy_dtype(a, b, at):
    yield from _same("dtype", (a, a.str), (b, b.str), at)
    if a.names:  # plain numbers may be of two classes with one meaning: int64 and longlong
        yield from _same("record class", a.type, b.type, at)
    yield from _same("metadata", a.metadata or None, b.metadata or None, at)  # numpy before 2.4 unpickles {}
    yield from _same("alignment", a.isalignedstruct, b.isalignedstruct, at)
    for name in a.names or ():
        if b.names and name in b.names:
            yield from _numpy_dtype(a.fields[name][0], b.fields[name][0], f"{at}.{name}")


def _array(a, b, at, seen):
    yield from _numbers(np.asarray(a), np.asarray(b), at, seen)
    if a.ndim > 1 and a.size and a.flags.f_contiguous and not a.flags.c_contiguous and not b.flags.f_contiguous:
        yield f"{at}: no longer in Fortran order"
    if a.flags.writeable and not b.flags.writeable:
        yield f"{at}: became read-only"


def _masked(a, b, at, seen):
    yield from _same("nomask", a.mask is np.ma.nomask, b.mask is np.ma.nomask, at)
    yield from _differences(a.data, b.data, f"{at}.data", seen)
    yield from _numbers(np.ma.getmaskarray(a), np.ma.getmaskarray(b), f"{at}.mask", seen)
    yield from _same("fill value", repr(a.fill_value), repr(b.fill_value), at)
    yield from _same("hard mask", a.hardmask, b.hardmask, at)


def _arrow(a, b, at, seen):
    yield from _same("type", a.type, b.type, at)
    yield from _same("length", len(a), len(b), at)
    yield from _differences(a.to_pylist(), b.to_pylist(), at, seen)


def _table(a, b, at, seen):
    if not a.schema.equals(b.schema, check_metadata=True):
        yield f"{at}: schema {a.schema} became {b.schema}"
    for i, (x, y) in enumerate(zip(a.columns, b.columns, strict=False)):
        yield from _arrow(x, y, f"{at}[{i}]", seen)


def _sequence(a, b, at, seen):
    yield from _same("length", len(a), len(b), at)
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        yield from _differences(x, y, f"{at}[{i}]", seen)


def _mapping(a, b, at, seen):
    yield from _differences(list(a), list(b), f"keys of {at}", seen)
    for key, x, y in zip(a, a.values(), b.values(), strict=False):
        yield from _differences(x, y, f"{at}[{key!r}]", seen)


def _inexact(a, b, at, seen):
    if np.asarray(a).tobytes() != np.asarray(b).tobytes():
        yield f"{at}: {a!r} became {b!r}"


def _decimal(a, b, at, seen):
    yield from _same("digits", a.as_tuple(), b.as_tuple(), at)


def _moment(a, b, at, seen):
    yield from _same("moment", repr(a), repr(b), at)
    yield from _differences(a.tzinfo, b.tzinfo, f"{at}.tzinfo", seen)


def _zone(a, b, at, seen):
    yield from _same("zone", repr(a), repr(b), at)


def _attributes(a, b, at, seen):
    yield from _differences(vars(a), vars(b), f"vars({at})", seen)


def _error(a, b, at, seen):
    yield from _differences(a.args, b.args, f"{at}.args", seen)


def _function(a, b, at, seen):
    yield from _same("code", a.__code__.co_code, b.__code__.co_code, at)


_COMPARISONS = [
    (pd.DataFrame, _frame),
    (pd.Series, _series),
    (pd.Index, _index),
    (np.ma.MaskedArray, _masked),
    (np.ndarray, _array),
    (pd.api.extensions.ExtensionArray, _extension),
    ((pa.ChunkedArray, pa.Array), _arrow),
    ((pa.Table, pa.RecordBatch), _table),
    ((list, tuple), _sequence),
    (dict, _mapping),
    ((float, complex, np.inexact), _inexact),
    (decimal.Decimal, _decimal),
    ((dt.datetime, dt.time), _moment),
    (dt.tzinfo, _zone),
    ((scipy.sparse.spmatrix, scipy.sparse.sparray), _attributes),
    (BaseException, _error),
    (types.FunctionType, _function),
]
