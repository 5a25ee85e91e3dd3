"""Whatever Hypothesis thinks up comes back."""

import datetime as dt
import string

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.strict import diff
from tests.through_bytes import through_bytes

RELAXED = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))

SCALAR_DTYPES = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="?"),
    npst.unsigned_integer_dtypes(endianness="?"),
    npst.floating_dtypes(endianness="?"),
    npst.complex_number_dtypes(endianness="?"),
    npst.byte_string_dtypes(endianness="?"),
    npst.unicode_string_dtypes(endianness="?"),
    npst.datetime64_dtypes(endianness="?"),
    npst.timedelta64_dtypes(endianness="?"),
)
DTYPES = st.one_of(SCALAR_DTYPES, npst.nested_dtypes(SCALAR_DTYPES, max_itemsize=200))


@st.composite
def any_array(draw):
    """Bytes seen as an array of any dtype, then turned, cut and stretched."""
    dtype = draw(DTYPES)
    shape = draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    size = int(np.prod(shape)) * dtype.itemsize
    if dtype.kind == "U":  # not all bytes are characters
        array = draw(npst.arrays(dtype, shape))
    else:
        array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8).copy()
        array = array.view(dtype).reshape(shape) if size else np.empty(shape, dtype)
    if array.ndim:
        array = array.transpose(draw(st.permutations(range(array.ndim))))
        array = array[
            tuple(draw(st.sampled_from([slice(None), slice(None, None, -1), slice(1, 3)])) for _ in array.shape)
        ]
    if draw(st.booleans()):
        array = np.broadcast_to(array, (3, *array.shape))
    return array


def has_text(dtype):
    return dtype.kind == "U" or any(has_text(dtype.fields[name][0].base) for name in dtype.names or ())


@RELAXED
@given(any_array().filter(lambda a: not (a.dtype.names and has_text(a.dtype))))
def test_arrays(array):
    """Arrays of any dtype and layout."""
    assert diff(array, through_bytes(array)) == []
    assert diff([array], through_bytes([array])) == []


@RELAXED
@given(st.data(), npst.array_shapes(max_dims=2, max_side=5))
def test_masked_arrays(data, shape):
    """Masked arrays with masks, fill values and hardness of all kinds."""
    values = data.draw(npst.arrays(st.sampled_from(["u1", "<i8", ">f4", "M8[s]", "c8"]), shape))
    mask = data.draw(st.one_of(st.just(np.ma.nomask), npst.arrays("?", shape)))
    array = np.ma.array(values, mask=mask, hard_mask=data.draw(st.booleans()))
    if data.draw(st.booleans()):
        array.fill_value = values.flat[0]
    assert diff(array, through_bytes(array)) == []
    assert diff([array], through_bytes([array])) == []


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
LABELS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=3) | st.dates(),
    lambda inner: st.tuples(inner, inner),
    max_leaves=3,
)
CELLS = st.recursive(
    LABELS | st.decimals(allow_nan=False) | st.complex_numbers() | st.uuids() | st.datetimes(timezones=st.timezones()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LABELS, inner, max_size=3),
    max_leaves=5,
)


def optional(values):
    return st.none() | values


def lists(draw, values, n):
    return draw(st.lists(values, min_size=n, max_size=n))


@st.composite
def any_column(draw, n, kinds=None):
    """The values of a column of n rows, of any of the dtypes that pandas has."""
    return draw(st.sampled_from(kinds or COLUMNS))(draw, n)


def numbers(draw, n):
    dtype = np.dtype(draw(st.sampled_from("?bBhHiIlLefdgFDG")))
    if dtype.kind == "b" or dtype.char in "gG":  # not all bytes are such numbers
        return np.array(lists(draw, st.integers(0, 1), n), dtype)
    values = np.frombuffer(draw(st.binary(min_size=n * dtype.itemsize, max_size=n * dtype.itemsize)), dtype).copy()
    return values.astype(values.dtype.newbyteorder(">")) if draw(st.booleans()) else values


def times(draw, n):
    unit, kind = draw(st.sampled_from(["s", "ms", "us", "ns"])), draw(st.sampled_from("mM"))
    return np.array(lists(draw, st.integers(-(10**9), 10**9), n), "i8").view(f"{kind}8[{unit}]")


def zoned(draw, n):
    zone = draw(st.sampled_from(["UTC", "Asia/Kathmandu", dt.UTC, dt.timezone(dt.timedelta(seconds=-7))]))
    stamps = np.array(lists(draw, st.integers(0, 10**9), n), "i8")
    return pd.array(stamps, dtype=pd.DatetimeTZDtype(draw(st.sampled_from(["s", "us"])), zone))


def nullable(draw, n):
    dtype = draw(st.sampled_from(["Int8", "UInt32", "Float64", "boolean"]))
    return pd.array(lists(draw, optional(st.integers(0, 1)), n), dtype=dtype)


def texts(draw, n):
    storage, missing = draw(st.sampled_from(["pyarrow", "python"])), draw(st.sampled_from([pd.NA, np.nan]))
    return pd.array(lists(draw, optional(TEXT), n), dtype=pd.StringDtype(storage, na_value=missing))


def categories(draw, n):
    labels = draw(st.lists(st.one_of(TEXT, st.integers(-5, 5)), unique=True, max_size=4))
    codes = lists(draw, st.integers(-1, len(labels) - 1), n)
    return pd.Categorical.from_codes(np.array(codes, "i8"), labels, ordered=draw(st.booleans()))


def periods(draw, n):
    freq = draw(st.sampled_from(["D", "2M", "h", "Q-FEB"]))
    return pd.arrays.PeriodArray(np.array(lists(draw, st.integers(0, 999), n), "i8"), dtype=pd.PeriodDtype(freq))


def intervals(draw, n):
    ends = [(a, a + b) for a, b in lists(draw, st.tuples(st.integers(0, 9), st.integers(0, 9)), n)]
    return pd.arrays.IntervalArray.from_tuples(ends, closed=draw(st.sampled_from(["left", "right", "both", "neither"])))


def objects(draw, n):
    values = np.empty(n, object)
    values[:] = lists(draw, CELLS, n)
    return values


def arrow(draw, n):
    return pd.arrays.ArrowExtensionArray(draw(any_chunked(n)))


COLUMNS = [numbers, times, zoned, nullable, texts, categories, periods, intervals, objects, arrow]
#: Pandas can not make levels of some of the others, such as of big-endian numbers.
LEVELS = [times, zoned, nullable, texts, categories, periods]

ARROW = {
    "int32": (pa.int32(), st.integers(-9, 9)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), TEXT),
    "large binary": (pa.large_binary(), st.binary(max_size=5)),
    "fixed binary": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "decimal": (pa.decimal128(9, 2), st.decimals(-99, 99, places=2)),
    "date": (pa.date32(), st.dates()),
    "null": (pa.null(), st.none()),
}


@st.composite
def arrow_types(draw):
    """An Arrow type and a strategy for its values, lists and structs and dictionaries of others included."""
    kind, values = ARROW[draw(st.sampled_from(sorted(ARROW)))]
    for _ in range(draw(st.integers(0, 2))):
        shape = draw(st.sampled_from(["list", "large list", "fixed list", "struct", "map", "dictionary"]))
        values = optional(values)
        if shape == "list":
            kind, values = pa.list_(kind), st.lists(values, max_size=3)
        elif shape == "large list":
            kind, values = pa.large_list(kind), st.lists(values, max_size=3)
        elif shape == "fixed list":
            kind, values = pa.list_(kind, 2), st.lists(values, min_size=2, max_size=2)
        elif shape == "struct":
            kind, values = pa.struct({"a": kind, "b": pa.int8()}), st.fixed_dictionaries({"a": values, "b": st.just(1)})
        elif shape == "map":
            kind, values = pa.map_(pa.string(), kind), st.lists(st.tuples(TEXT, values), max_size=2)
        elif kind in (pa.string(), pa.int32()):
            kind = pa.dictionary(pa.int16(), kind)
    return kind, optional(values)


@st.composite
def any_chunked(draw, n):
    """A chunked array of n values, its chunks cut out of longer arrays."""
    kind, values = draw(arrow_types())
    chunks, left = [], n
    while left or draw(st.integers(0, 3)) == 0:
        length, before, after = draw(st.integers(0, left)), draw(st.integers(0, 11)), draw(st.integers(0, 2))
        whole = pa.array(lists(draw, values, before + length + after), kind)
        chunks.append(whole.slice(before, length))
        left -= length
    return pa.chunked_array(chunks, type=kind)


@RELAXED
@given(st.integers(0, 12).flatmap(any_chunked))
def test_arrow(chunked):
    """Arrow arrays of nested types, in chunks that are slices."""
    assert diff(chunked, through_bytes(chunked)) == []
    assert diff([chunked], through_bytes([chunked])) == []


@st.composite
def any_index(draw, n):
    """An index of n labels, of any class."""
    kind = draw(st.sampled_from(["range", "regular", "column", "labels", "levels"]))
    name = draw(LABELS)
    if kind == "range":
        start, step = draw(st.integers(-5, 5)), draw(st.sampled_from([1, 2, -3]))
        return pd.RangeIndex(start, start + n * step, step, name=name)
    if kind == "regular":
        freq = draw(st.sampled_from(["D", "h", "ME", "2W-TUE", "-5min", "B"]))
        return pd.date_range(
            "2030-03-29", periods=n, freq=freq, tz=draw(st.sampled_from([None, "Europe/Lisbon"])), name=name
        )
    if kind == "levels":
        levels = draw(st.integers(1, 3))
        arrays = [draw(any_column(n, LEVELS)) for _ in range(levels)]
        return pd.MultiIndex.from_arrays(arrays, names=lists(draw, LABELS, levels))
    if kind == "labels":
        values = np.empty(n, object)
        values[:] = lists(draw, LABELS, n)
        return pd.Index(values, dtype=object, name=name)
    column = draw(any_column(n))
    if column.dtype in (object, np.float16, np.longdouble, np.clongdouble):  # no index has one of these
        column = np.arange(n)
    return pd.Index(column, dtype=column.dtype, name=name)


@st.composite
def any_frame(draw):
    """A frame of a few rows and columns, any index, any labels, any attrs."""
    rows, width = draw(st.integers(0, 9)), draw(st.integers(0, 5))
    frame = pd.DataFrame({i: pd.Series(c := draw(any_column(rows)), dtype=c.dtype) for i in range(width)})
    if not width:
        frame = pd.DataFrame(index=range(rows))
    frame.index = draw(any_index(rows))
    frame.columns = draw(any_index(width))
    frame.attrs = draw(st.dictionaries(st.text(max_size=3), CELLS, max_size=2))
    return frame.iloc[draw(st.sampled_from([slice(None), slice(None, None, -1), slice(1, None), slice(2, 5)]))]


@RELAXED
@given(any_frame())
def test_frames(frame):
    """Frames of anything, and each of their columns as a series."""
    assert diff(frame, through_bytes(frame)) == []
    for i in range(frame.shape[1]):
        assert diff(frame.iloc[:, i], through_bytes(frame.iloc[:, i])) == []


@RELAXED
@given(any_frame(), st.data())
def test_columns_of_frames(frame, data):
    """Any selection of columns is what pandas would select."""
    frame.columns = data.draw(
        st.lists(st.sampled_from(string.ascii_letters), min_size=frame.shape[1], max_size=frame.shape[1])
    )
    columns = data.draw(st.lists(st.sampled_from(list(frame.columns)), unique=True)) if frame.shape[1] else []
    at = [i for i, label in enumerate(frame.columns) if label in columns]
    assert diff(frame.iloc[:, at], through_bytes(frame, columns)) == []


@RELAXED
@given(CELLS)
def test_objects(value):
    """Nested Python objects."""
    assert diff(value, through_bytes(value)) == []
