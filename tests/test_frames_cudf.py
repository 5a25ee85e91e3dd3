"""Descriptions of cuDF's columns, made of Arrow data in host memory through the same code, open as pandas."""

import datetime as dt
import decimal
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckpt_spill.errors import ReadError
from ckpt_spill.store.frames import columns, layout, parts
from ckpt_spill.store.frames.buffers import Sink, Source
from tests import host_columns as host
from tests.strict import diff
from tests.through_bytes import refill

DAYS = [dt.datetime(2030, 1, 1), None, dt.datetime(1931, 1, 1, 2, 3, 4)] * 7
STEPS = [dt.timedelta(1), None, dt.timedelta(-2, 3)] * 7
NUMBERS = [decimal.Decimal("1.25"), None, decimal.Decimal("-3.00")] * 7
TEXT = {"string": ["pyarrow", "nan"]}
INTERVALS = pa.array(pd.arrays.IntervalArray.from_breaks([0, 1])).type  # registered with Arrow by being used


def interval(subtype, closed):
    return type(INTERVALS)(subtype, closed)


def intervals(kind):
    storage = pa.array([{"left": 1, "right": 2}, None, {"left": None, "right": 4}] * 7, kind.storage_type)
    return pa.ExtensionArray.from_storage(kind, storage)


#: Arrow data, and the words that say of which cuDF dtype it is where the type does not.
COLUMNS = {
    **{f"{s}int{b}": (pa.array([1, None, 100] * 7, f"{s}int{b}"), {}) for s in ("", "u") for b in (8, 16, 32, 64)},
    "float32": (pa.array([1.5, None, float("nan"), -0.0] * 5, pa.float32()), {}),
    "float64": (pa.array([1.5, None, float("nan"), -0.0] * 5), {}),
    "bool": (pa.array([True, None, False] * 7), {}),
    "str": (pa.array(["a", None, "", "çöö"] * 5), TEXT),
    "string": (pa.array(["a", None, "", "çöö"] * 5), {"string": ["pyarrow", "NA"]}),
    "object": (pa.array(["a", None, "", "çöö"] * 5), {**TEXT, "dtype": "object"}),
    **{f"datetime64[{u}]": (pa.array(DAYS, pa.timestamp(u)), {"dtype": "numpy"}) for u in ("s", "ms", "us", "ns")},
    **{f"timedelta64[{u}]": (pa.array(STEPS, pa.duration(u)), {"dtype": "numpy"}) for u in ("s", "ms", "us", "ns")},
    "zoned": (pa.array(DAYS, pa.timestamp("us", "Asia/Kathmandu")), {"dtype": "pandas"}),
    "decimal32": (pa.array(NUMBERS, pa.decimal32(5, 2)), {}),
    "decimal64": (pa.array(NUMBERS, pa.decimal64(15, 2)), {}),
    "decimal128": (pa.array(NUMBERS, pa.decimal128(38, 10)), {}),
    "list": (pa.array([[1, None], None, [], [3]] * 5, pa.list_(pa.int16())), {}),
    "list of text": (pa.array([["a", None], None, [], [""]] * 5, pa.list_(pa.string())), {}),
    "list of bools": (pa.array([[True, None], None, [], [False]] * 5), {}),
    "list of lists": (pa.array([[[1], None, []], None, [], [[2, None]]] * 5), {}),
    "struct": (pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": None}] * 7), {}),
    "struct of all": (pa.array([{"a": [True], "b": {"c": [dt.datetime(2030, 1, 1)]}}, {"a": None, "b": None}] * 9), {}),
    "list of structs": (pa.array([[{"a": [1, None]}, None], None, []] * 7), {}),
    "interval of ints": (intervals(interval(pa.int64(), "left")), {}),
    "interval of times": (intervals(interval(pa.timestamp("ns"), "both")), {}),
    "Int32": (pa.array([1, None, -7] * 7, pa.int32()), {"dtype": "nullable"}),
    "UInt8": (pa.array([1, None, 7] * 7, pa.uint8()), {"dtype": "nullable"}),
    "Float64": (pa.array([1.5, None, float("nan")] * 7), {"dtype": "nullable"}),
    "boolean": (pa.array([True, None, False] * 7), {"dtype": "nullable"}),
    "int64[pyarrow]": (pa.array([1, None, 3] * 7), {"dtype": "arrow"}),
    "string[pyarrow]": (pa.array(["a", None, "b"] * 7), {"dtype": "arrow"}),
    "large_string[pyarrow]": (pa.array(["a", None, "b"] * 7, pa.large_string()), {"dtype": "arrow"}),
    "null[pyarrow]": (pa.nulls(20), {"dtype": "arrow"}),
}
#: The dtypes of pandas' own that hold all that is in such a column; other columns are shown in Arrow's dtype.
OWN = {
    "str": pd.StringDtype(na_value=np.nan),
    "object": pd.StringDtype(na_value=np.nan),
    "string": pd.StringDtype("pyarrow"),
    "zoned": pd.DatetimeTZDtype("us", "Asia/Kathmandu"),
    **{name: pd.api.types.pandas_dtype(name) for name in ("Int32", "UInt8", "Float64", "boolean")},
    **{name: np.dtype(name) for name in COLUMNS if "64[" in name and "pyarrow" not in name},
}
ROWS = {"all": (0, 18), "none": (0, 0), "from 3": (3, 14), "from 8": (8, 9), "valid": (2, 3), "null": (1, 2)}


def expected(name, array):
    """Give what pandas itself makes of Arrow data in the dtype that a column is to have."""
    if name == "Float64":  # pandas itself takes NaN for missing
        return pd.Series(pd.arrays.FloatingArray(array.fill_null(0).to_numpy(), array.is_null().to_numpy(False)))
    dtype = OWN.get(name, pd.ArrowDtype(array.type))
    if isinstance(dtype, np.dtype):
        return pd.Series(array.to_numpy(zero_copy_only=False), dtype=dtype)
    return pd.Series(dtype.__from_arrow__(pa.chunked_array([array])))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_open_as_pandas(name, rows):
    """A column of each dtype, with and without nulls, sliced and empty, shows what pandas makes of the Arrow data."""
    array, words = COLUMNS[name]
    start, stop = ROWS[rows]
    read = host.opened(host.frame([host.column(array, words, start=start, stop=stop)]))
    want = expected(name, array.slice(start, stop - start))
    assert diff(want, read["c0"].rename(None)) == []


def test_columns_are_what_arrow_tables_become():
    """A frame of columns of whose dtype pandas has none is what Arrow's own conversion to Arrow's dtypes gives."""
    names = [name for name in COLUMNS if name not in OWN]
    table = pa.table({name: COLUMNS[name][0].slice(1, 17) for name in names})
    made = [host.column(*COLUMNS[name], start=1, stop=18) for name in names]
    read = host.opened(host.frame(made, labels=pd.Index(names)))
    assert diff(table.to_pandas(types_mapper=pd.ArrowDtype), read) == []


@pytest.mark.parametrize("name", COLUMNS)
def test_a_dtype_does_not_depend_on_what_is_in_a_partition(name):
    """With nulls, without, only nulls, and empty: the partitions of one collection agree on the dtype."""
    array, words = COLUMNS[name]
    parts = [host.column(array, words, start=start, stop=stop) for start, stop in ROWS.values()]
    assert len({str(host.opened(host.frame([part]))["c0"].dtype) for part in parts}) == 1


def test_offsets_of_64_bits_are_read():
    """Text whose offsets have 64 bits, as libcudf has it beyond 2 GiB, is read; a slice may begin beyond them."""
    array = pa.array(["a", None, "ccc", ""] * 3)
    column = host.column(array, TEXT, start=2, stop=9)
    narrow = column.view.children[0]
    wide = np.frombuffer(host.fetch([layout.Memory(narrow.data, narrow.size * 4)])[0], np.int32).astype(np.int64)
    wide += 1 << 40
    host.kept.append(wide)
    view = column.view._replace(
        data=column.view.data - (1 << 40), children=(narrow._replace(width=8, data=wide.ctypes.data),)
    )
    read = host.opened(host.frame([column._replace(view=view)]))
    assert diff(expected("str", array.slice(2, 7)), read["c0"].rename(None)) == []


def test_text_of_more_than_two_gibibytes_is_large(monkeypatch):
    """Text keeps its dtype whatever it takes; in lists, and where the dtype is Arrow's, it needs Arrow's large one."""
    monkeypatch.setattr(layout, "_MOST_SMALL_OFFSET", 2)
    text, lists = pa.array(["ab", None, "cdef"]), pa.array([["ab"], None, ["cdef", "g"]])
    inside = pa.array([{"a": "ab"}, None, {"a": "cdef"}])
    table = pa.table({"str": text, "arrow": text, "list": lists, "struct": inside})
    words = [TEXT, {"dtype": "arrow"}, {}, {}]
    made = [host.column(c.combine_chunks(), w) for c, w in zip(table.columns, words, strict=True)]
    read = host.opened(host.frame(made, labels=pd.Index(table.column_names)))
    kinds = [pa.list_(pa.large_string()), pa.struct({"a": pa.large_string()})]
    assert list(read.dtypes) == [OWN["str"], *map(pd.ArrowDtype, [pa.large_string(), *kinds])]
    assert list(read["str"].dropna()) == list(read["arrow"].dropna()) == ["ab", "cdef"]
    assert [list(value) for value in read["list"].dropna()] == [["ab"], ["cdef", "g"]]
    assert list(read["struct"].dropna()) == [{"a": "ab"}, {"a": "cdef"}]


def test_levels_of_an_index_are_sorted():
    """What is kept of a MultiIndex is its rows, not the order of its levels nor what is in them unused."""
    axis = columns.Axis([host.column(pa.array(["b", "a", "b"]), TEXT)] * 2, ["x", "x"], levels=True)
    read = host.opened(columns.Table("index", axis, [], None, {}, unique=False))
    assert list(read) == [("b", "b"), ("a", "a"), ("b", "b")]
    assert list(read.names) == ["x", "x"]
    assert [list(level) for level in read.levels] == [["a", "b"]] * 2


def test_only_what_a_slice_shows_is_fetched():
    """A few rows of long columns, nested ones included, take a few bytes of the device's memory."""
    whole = pa.table(
        {"s": ["x" * 50] * 50_000, "l": [[1, 2]] * 50_000, "t": [{"a": "y"}] * 50_000, "b": [True] * 50_000}
    )
    made = [host.column(c.combine_chunks(), start=40_000, stop=40_010) for c in whole.columns]
    fetched = []

    def fetch(windows):
        fetched.append(sum(w.nbytes for w in windows))
        return host.fetch(windows)

    table = columns.read(host.frame(made), fetch)
    far = [piece.nbytes for values in table.columns for piece in parts.far(values.array)]
    assert 0 < sum(fetched) + sum(far) < 1500
    assert len(fetched) == 1  # as often as they are deep, not once a column


CATEGORIES = {
    "text": (pa.array(["b", "a", "ü"]), TEXT, pd.Index(["b", "a", "ü"], dtype="str")),
    "ints": (pa.array([3, 1, 2], pa.int16()), {}, pd.Index([3, 1, 2], dtype="int16")),
    "floats": (pa.array([3.5, 1, 2]), {}, pd.Index([3.5, 1, 2])),
    "times": (
        pa.array([5, 3, 1], pa.timestamp("s")),
        {"dtype": "numpy"},
        pd.DatetimeIndex(np.array([5, 3, 1], "M8[s]")),
    ),
    "intervals": (
        pa.array(pd.arrays.IntervalArray.from_breaks([0, 1, 2, 3], closed="left")),
        {},
        pd.IntervalIndex.from_breaks([0, 1, 2, 3], closed="left"),
    ),
    "none": (pa.array([], pa.string()), TEXT, pd.Index([], dtype="str")),
}


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", CATEGORIES)
def test_categoricals_open_as_pandas(name, ordered):
    """Codes without a sign and a bitmap are codes with -1; categories have their order and pandas' plain dtypes."""
    labels, words, want = CATEGORIES[name]
    codes = [0, None, 2, 1, 0] if len(labels) else [None] * 5
    column = host.column(pa.array(codes, pa.uint8()), {}, host.column(labels, words), ordered=ordered, start=1, stop=5)
    read = host.opened(host.frame([column]))["c0"].array
    signed = np.array([-1 if code is None else code for code in codes[1:]], "i1")
    assert diff(pd.Categorical.from_codes(signed, want, ordered=ordered), read) == []


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_categories_that_pandas_does_not_have_open_in_arrows_dtype(missing):
    """A category that is missing or NaN is one in Arrow's dictionary, and comes back to cuDF."""
    labels, codes = pa.array([2.5, missing]), pa.array([0, 1, None, 0], pa.uint8())
    table = host.frame([host.column(codes, {}, host.column(labels), ordered=True)])
    want = pd.Series(pd.arrays.ArrowExtensionArray(pa.DictionaryArray.from_arrays(codes, labels, ordered=True)))
    assert diff(want, host.opened(table)["c0"].rename(None)) == []


@pytest.mark.parametrize("labels", [126, 127, 200, 256, 40_000])
def test_codes_have_the_width_that_pandas_has_for_so_many_categories(labels):
    """Pandas' codes have a sign and so need more bits sooner than cuDF's."""
    codes = np.arange(labels, dtype=np.min_scalar_type(labels))
    column = host.column(pa.array(codes), {}, host.column(pa.array(range(labels))))
    read = host.opened(host.frame([column]))["c0"].array
    assert diff(pd.Categorical.from_codes(codes, range(labels)), read) != []  # categories of a range, not of integers
    assert diff(pd.Categorical.from_codes(codes, pd.Index(np.arange(labels))), read) == []


AXES = {
    "range": (columns.Axis([], ["r"], range=range(5, 11, 2)), pd.RangeIndex(5, 11, 2, name="r")),
    "ints": (([pa.array([4, 5, None])], [{}], ["i"]), pd.Index([4, 5, None], dtype="int64[pyarrow]", name="i")),
    "text": (
        ([pa.array(["a", "b", None])], [TEXT], [("t", 1)]),
        pd.Index(["a", "b", None], dtype="str", name=("t", 1)),
    ),
    "times": (
        ([pa.array([0, 86400, 172800], pa.timestamp("s"))], [{"dtype": "numpy"}], [None], pd.offsets.Day()),
        pd.date_range("1970", periods=3, unit="s"),
    ),
    "levels": (
        ([pa.array([1, 1, 2]), pa.array(["x", None, "x"])], [{}, TEXT], ["a", None]),
        pd.MultiIndex.from_arrays(
            [pd.array([1, 1, 2], dtype="int64[pyarrow]"), pd.array(["x", None, "x"], dtype="str")], names=["a", None]
        ),
    ),
}


def axis_of(made):
    if isinstance(made, columns.Axis):
        return made
    arrays, words, names, *freq = made
    columns_of = [host.column(a, w) for a, w in zip(arrays, words, strict=True)]
    return columns.Axis(columns_of, names, levels=len(arrays) > 1, freq=freq[0] if freq else None)


@pytest.mark.parametrize("name", AXES)
def test_indexes_open_as_pandas(name):
    """Indexes of each class, alone, under a series and under a frame."""
    axis, want = axis_of(AXES[name][0]), AXES[name][1]
    values = host.column(pa.array([1, 2, None]))
    alone = columns.Table("index", axis, [], None, {}, unique=False)
    assert diff(want, host.opened(alone)) == []
    series = columns.Table("series", axis, [values], "n", {"unit": "mm"}, unique=False)
    expected_series = pd.Series([1, 2, None], index=want, dtype="int64[pyarrow]", name="n")
    expected_series.attrs["unit"] = "mm"
    assert diff(expected_series, host.opened(series)) == []
    assert diff(want, host.opened(host.frame([values], axis)).index) == []


LABELS = [
    pd.Index(["a", "b"]),
    pd.Index(["a", 1], dtype=object),
    pd.RangeIndex(2),
    pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["x", None]),
    pd.DatetimeIndex(["2030", "2031"]),
]


@pytest.mark.parametrize("labels", LABELS)
def test_labels_of_columns_open_as_pandas(labels):
    """The labels of columns, which cuDF has on the host, keep their class; single columns can be read."""
    table = host.frame([host.column(pa.array([1, 2])), host.column(pa.array(["x", "y"]), TEXT)], labels=labels)
    assert diff(labels, host.opened(table).columns) == []
    assert diff(labels[1:], host.opened(table, [labels[1]]).columns) == []


def test_attrs_and_flags_open_as_pandas():
    """Attributes come back, and so does the promise that labels are unique."""
    table = host.frame([host.column(pa.array([1]))], unit="mm")._replace(unique=True)
    read = host.opened(table)
    assert read.attrs == {"unit": "mm"}
    assert not read.flags.allows_duplicate_labels


def test_what_was_read_can_be_changed():
    """Columns that are shown in dtypes of numpy's and pandas' own, with and without nulls, are not read-only."""
    for name in OWN:
        array, words = COLUMNS[name]
        for rows in (slice(2, 3), slice(0, 9)):
            read = host.opened(host.frame([host.column(array, words, start=rows.start, stop=rows.stop)]))["c0"]
            missing = pd.NaT if read.dtype.kind in "mM" else pd.NA
            read.iloc[0] = missing
            assert read.isna().iloc[0]


@pytest.mark.parametrize("library", [None, "cudf"])
def test_without_cudf_the_way_out_is_named(library, monkeypatch):
    """Where cuDF is not installed, reading what came from it says how it can be read."""
    monkeypatch.setitem(__import__("sys").modules, "cudf", None)
    text, contents = host.describe(host.frame([host.column(pa.array([1]))]))
    with pytest.raises(ReadError, match="backend='pandas'"):
        refill(text, contents, None, library)


def test_a_series_and_its_index_are_of_one_length():
    """Nothing on a device is shown with more rows than there are."""
    axis = columns.Axis([], [None], range=range(3))
    sink = Sink()
    table = columns.Table("series", axis, [host.column(pa.array([1, 2, 3, 4]))], None, {}, unique=False)
    description = columns.describe(columns.read(table, host.fetch), sink)
    plan = columns.plan(description, Source([b.nbytes for b in sink.buffers]), None)
    with pytest.raises(ValueError, match="4 values do not go with an index of 3"):
        plan()


@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_mangled_descriptions_are_refused(name):
    """A description that lost a member or has another value is a ValueError, never another error."""
    array, words = COLUMNS[name]
    text, contents = host.describe(host.frame([host.column(array, words)]))
    refused = 0
    for mangled in mangle(json.loads(text)):
        try:
            refill(json.dumps(mangled), contents, None, "pandas")
        except ValueError:
            refused += 1
    assert refused > 20


def mangle(description):
    if isinstance(description, dict):
        for key, value in description.items():
            rest = {k: v for k, v in description.items() if k != key}
            yield rest
            yield rest | {key: -1}
            yield rest | {key: "?"}
            for inner in mangle(value):
                yield rest | {key: inner}
    elif isinstance(description, list):
        for i, value in enumerate(description):
            for inner in mangle(value):
                yield [*description[:i], inner, *description[i + 1 :]]


LEAVES = st.sampled_from(
    [
        (pa.int8(), st.integers(-9, 9)),
        (pa.uint64(), st.integers(0, 2**64 - 1)),
        (pa.float64(), st.floats()),
        (pa.bool_(), st.booleans()),
        (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
        (pa.timestamp("ns"), st.integers(0, 2**60)),
        (pa.duration("ms"), st.integers(0, 2**40)),
        (pa.decimal32(6, 2), st.decimals(-99, 99, places=2)),
        (pa.decimal128(30, 2), st.decimals(-99, 99, places=2)),
    ]
)


@st.composite
def any_array(draw):
    """Arrow data of a type that cuDF has, nested and with nulls anywhere."""
    kind, values = draw(LEAVES)
    for _ in range(draw(st.integers(0, 2))):
        values = st.none() | values
        if draw(st.booleans()):
            kind, values = pa.list_(kind), st.lists(values, max_size=3)
        else:
            kind, values = (
                pa.struct({"a": kind, "b": pa.int16()}),
                st.fixed_dictionaries({"a": values, "b": st.just(1)}),
            )
    return pa.array(draw(st.lists(st.none() | values, max_size=20)), kind)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(any_array(), st.integers(0, 20), st.integers(0, 20))
def test_any_slice_of_any_column(array, start, stop):
    """Whatever is nested in what, and wherever a slice begins and ends."""
    start, stop = sorted((min(start, len(array)), min(stop, len(array))))
    read = host.opened(host.frame([host.column(array, start=start, stop=stop)]))
    want = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([array.slice(start, stop - start)])))
    assert diff(want, read["c0"].rename(None)) == []
