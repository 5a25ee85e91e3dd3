"""Arrow data, alone and in pandas columns: types, chunks and values return, and a slice takes no more than itself."""

import datetime as dt
import decimal
import uuid

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ckpt_spill.store import frames
from tests.strict import diff
from tests.through_bytes import flatten, needs_pickle, through_bytes


def dictionary(values, **kwargs):
    return pa.DictionaryArray.from_arrays(pa.array(values, pa.int8()), pa.array(["x", "y"]), **kwargs)


def dense_union():
    kinds, places = pa.array([0, 1, 0] * 5, pa.int8()), [0, 0, 1, 2, 1, 3, 4, 2, 5, 6, 3, 7, 8, 4, 9]
    return pa.UnionArray.from_dense(kinds, pa.array(places, pa.int32()), [pa.array(range(10)), pa.array(list("abcde"))])


MOMENTS = [dt.datetime(2030, 1, 1), None, dt.datetime(2031, 1, 1)] * 5
NUMBERS = [decimal.Decimal("1.25"), None, decimal.Decimal("-3.00")] * 5

ARRAYS = {
    "int16": pa.array([1, None, 3] * 5, pa.int16()),
    "float16": pa.array([1.5, None, 2.5] * 5, pa.float16()),
    "bool": pa.array([True, None, False] * 5),
    "bool without nulls": pa.array([True, False, False] * 5),
    "null": pa.nulls(15),
    "string": pa.array(["a", None, "ccc"] * 5),
    "large string": pa.array(["a", "", "ccc"] * 5, pa.large_string()),
    "binary": pa.array([b"\0", None, b""] * 5),
    "fixed binary": pa.array([b"abc", None, b"def"] * 5, pa.binary(3)),
    "string view": pa.array(["a", None, "x" * 40] * 5, pa.string_view()),
    "decimal": pa.array(NUMBERS, pa.decimal128(9, 2)),
    "wide decimal": pa.array(NUMBERS, pa.decimal256(59, 2)),
    "zoned": pa.array(MOMENTS, pa.timestamp("ms", "Asia/Kolkata")),
    "date": pa.array([dt.date(2030, 1, 1), None, dt.date(2031, 1, 1)] * 5),
    "time": pa.array([dt.time(1), None, dt.time(2)] * 5, pa.time64("us")),
    "duration": pa.array([dt.timedelta(1), None, dt.timedelta(2)] * 5, pa.duration("ns")),
    "interval": pa.array([pa.MonthDayNano([1, 2, 3]), None, pa.MonthDayNano([4, 5, 6])] * 5),
    "list": pa.array([[1, None], None, []] * 5, pa.list_(pa.int8())),
    "large list": pa.array([["a", None], None, []] * 5, pa.large_list(pa.string())),
    "fixed list": pa.array([[1, 2], None, [3, None]] * 5, pa.list_(pa.int8(), 2)),
    "struct": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}] * 5),
    "list of structs": pa.array([[{"a": [1]}], None, []] * 5),
    "map": pa.array([[("k", 1)], None, []] * 5, pa.map_(pa.string(), pa.int64())),
    "dictionary": dictionary([0, 1, None] * 5),
    "ordered dictionary": dictionary([0, 1, None] * 5, ordered=True),
    "list of dictionaries": pa.array([["u", "v"], None, []] * 5, pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    "extension": pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([uuid.UUID(int=i).bytes for i in range(15)], pa.binary(16))
    ),
    "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([5, 15], pa.int32()), pa.array(["x", None])),
    "list view": pa.array([[1], None, []] * 5, pa.list_view(pa.int8())),
    "union": dense_union(),
}
SLICES = {"all": (0, 15), "none": (0, 0), "from 3": (3, 8), "from 8": (8, 1), "to the end": (9, 6)}


@pytest.mark.parametrize("where", SLICES)
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_return(name, where):
    """An array of each type, and each kind of slice of it, returns without a pickle."""
    array = ARRAYS[name].slice(*SLICES[where])
    assert diff(array, through_bytes(array)) == []
    assert not needs_pickle(array)


def test_an_index_into_nothing_returns():
    """A null struct has a child that points into an empty dictionary; nobody sees it."""
    array = pa.array([None], pa.struct({"a": pa.dictionary(pa.int16(), pa.int32())}))
    assert diff(array, through_bytes(array)) == []


@pytest.mark.parametrize("name", ARRAYS)
def test_chunks_return(name):
    """Chunks stay chunks, empty ones included."""
    array = ARRAYS[name]
    for chunks in ([array.slice(1, 4), array.slice(2, 0), array.slice(9, 3)], []):
        chunked = pa.chunked_array(chunks, type=array.type)
        read = through_bytes(chunked)
        assert diff(chunked, read) == []
        assert [len(chunk) for chunk in read.chunks] == [len(chunk) for chunk in chunks]


@pytest.mark.parametrize("name", sorted(ARRAYS.keys() - {"union"}))  # pandas has no dtype for it
def test_columns_return(name):
    """A pandas column of each Arrow type returns with its dtype, and so does a slice of it."""
    frame = pd.DataFrame({"a": pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([ARRAYS[name]])))})
    for part in (frame, frame.iloc[3:11], frame.iloc[:0]):
        assert diff(part, through_bytes(part)) == []
        assert not needs_pickle(part)


def test_very_many_small_chunks_become_one():
    """A column that was put together of crumbs is not stored as crumbs."""
    chunked = pa.chunked_array([pa.array(["a"])] * 100)
    _, contents = flatten(chunked)
    assert len(contents) < 5
    assert diff(chunked, through_bytes(chunked)) == []


def test_tables_and_batches_return():
    """Tables return with their schema's metadata; slices of them and of record batches, too."""
    table = pa.table({k: v for k, v in ARRAYS.items() if k not in {"union", "run ends"}})
    table = table.replace_schema_metadata({"a": "b"})
    batch = table.to_batches()[0]
    for value in (table, table.slice(3, 5), table.slice(0, 0), batch, batch.slice(3, 9), pa.table({})):
        assert diff(value, through_bytes(value)) == []


@pytest.mark.parametrize(
    "wrap", [lambda t: t, lambda t: [t], lambda t: [t.column(0)], lambda t: {"k": t.to_batches()[0]}]
)
def test_a_slice_takes_no_more_than_itself(wrap):
    """Ten rows of a table of ten megabytes take about a kilobyte, also inside other objects."""
    big = pa.table({"s": ["x" * 50] * 200_000, "n": np.arange(200_000)})
    text, contents = flatten(wrap(big.slice(1000, 10)))
    assert len(text) + sum(map(len, contents)) < 4000


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: [s]])
def test_strings_are_not_copied(wrap):
    """Neither alone nor in a pickle does a column of text in several chunks have its chunks joined."""
    chunks = [pa.array(["spam" * 10] * 10_000, pa.large_string()) for _ in range(2)]
    series = pd.Series(pd.array(pa.chunked_array(chunks), dtype="str"))
    buffers = frames.encode(wrap(series)).buffers
    for chunk in chunks:
        memory = np.frombuffer(chunk.buffers()[2], np.uint8)
        assert any(np.shares_memory(memory, buffer) for buffer in buffers)
