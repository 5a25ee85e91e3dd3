"""Pandas objects return: dtypes, index classes, labels, freq, names, attrs, flags, subclasses."""

import datetime as dt
import decimal
import uuid
import zoneinfo

import dateutil.tz
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.strict import diff
from tests.through_bytes import needs_pickle, through_bytes


class Tagged(pd.DataFrame):
    """A frame with a field of its own."""

    _metadata = ["crs"]

    @property
    def _constructor(self):
        return Tagged


def zoned(zone, unit="us"):
    return pd.to_datetime(["2035-03-25", None, "2035-07-25"]).as_unit(unit).tz_localize("UTC").tz_convert(zone)


def text(storage, missing, values=("a", None, "")):
    return pd.array(list(values), dtype=pd.StringDtype(storage, na_value=missing))


ARRAYS = {
    "str": pd.array(["a", None, "c"], dtype="str"),
    "text as Python objects": text("python", pd.NA),
    "text as Python objects with NaN": text("python", np.nan),
    "text in Arrow": text("pyarrow", pd.NA),
    "no text": text("python", pd.NA, []),
    "text that is all missing": text("python", pd.NA, [None]),
    "text without UTF-8": text("python", pd.NA, ["\ud800"]),
    "categories": pd.Categorical(["b", None, "a"], categories=["b", "a", "z"], ordered=True),
    "categories of numbers": pd.Categorical([1.5, None, 2.5]),
    "categories of tuples": pd.Categorical.from_codes([0, 1], pd.Index([(1, 2), (3,)], tupleize_cols=False)),
    "categories of intervals": pd.Categorical.from_codes([0, -1], pd.interval_range(0, 2)),
    "categories of times with a freq": pd.Categorical.from_codes([0, -1], pd.date_range("2030", periods=2, freq="D")),
    "three hundred categories": pd.Categorical.from_codes(np.arange(300), pd.Index(map(str, range(300)), name="n")),
    "no categories": pd.Categorical([], categories=[]),
    "periods": pd.period_range("2030-01", periods=3, freq="2M").array,
    "weeks": pd.period_range("2030-01", periods=3, freq="W-THU").array,
    "periods with a gap": pd.PeriodIndex(["2030-01-01 05:00", None], freq="h").array,
    "intervals": pd.arrays.IntervalArray.from_tuples([(0, 1), None, (2.5, 3)], closed="neither"),
    "intervals of times": pd.interval_range(pd.Timestamp("2030", tz="UTC"), periods=3, closed="both").array,
    "no intervals": pd.arrays.IntervalArray.from_tuples([]),
    "sparse": pd.arrays.SparseArray([5, 5, 1], fill_value=5, dtype="int8"),
    "objects": np.array(["a", None, np.nan, pd.NA, pd.NaT, b"x", dt.date(2030, 1, 1), uuid.uuid4(), 7, 7.0], object),
    "more objects": np.array([decimal.Decimal("1.0"), [1, {2}], {"k": None}, np.arange(3, dtype="u1"), True], object),
    "no objects": np.array([], object),
    "big-endian": np.arange(3, dtype=">i4"),
    "with metadata": np.zeros(3, np.dtype("i4", metadata={"a": 1})),
}
ARRAYS |= {name: pd.array([1, None, 0], dtype=name) for name in ("Int8", "UInt64", "Float32", "Float64", "boolean")}
ARRAYS |= {f"times in {unit}": np.array(["2035", "NaT"], f"M8[{unit}]") for unit in ("s", "ms", "us", "ns")}
ARRAYS |= {f"durations in {unit}": np.array([1, -1], f"m8[{unit}]") for unit in ("s", "ms", "us", "ns")}
ARRAYS |= {
    f"zone {zone!r} in {unit}": zoned(zone, unit).array
    for unit in ("s", "ns")
    for zone in (
        "UTC",
        "Europe/Lisbon",
        zoneinfo.ZoneInfo("UTC"),
        dt.UTC,
        dt.timezone(dt.timedelta(hours=5, minutes=45)),
        dt.timezone(dt.timedelta(hours=1), "SUMMER"),
        dateutil.tz.tzoffset("MADE", 12600),
    )
}
PICKLED_ARRAYS = {
    *("text without UTF-8", "sparse", "objects", "more objects", "with metadata"),
    *(name for name in ARRAYS if "SUMMER" in name or "tzoffset" in name),
}

INDEXES = {
    "text": pd.Index(["a", "b"], name="x"),
    "text with a missing one": pd.Index(["a", None]),
    "a hundred texts": pd.Index([f"l{i}" for i in range(100)]),
    "texts as objects": pd.Index(["a", "b"], dtype=object),
    "a hundred texts as objects": pd.Index([f"l{i}" for i in range(100)], dtype=object),
    "plain objects": pd.Index(["a", 1, None, True, 1.5, -0.0], dtype=object),
    "odd objects": pd.Index([np.nan, None, ("a", 1), pd.Timestamp("2030"), b"b", frozenset("x")], dtype=object),
    "tuples": pd.Index([(1, 2), (3,)], tupleize_cols=False),
    "a lone surrogate": pd.Index(["\ud800"], dtype=object),
    "a number too big for JSON": pd.Index([1 << 70], dtype=object),
    "control characters": pd.Index(["", "\n\t\0é\U0001d538"]),
    "no objects": pd.Index([], dtype=object),
    "int8": pd.Index([1, 2], dtype="i1"),
    "floats": pd.Index([1.5, np.nan, -0.0], name=1.5),
    "bools": pd.Index([True, False]),
    "complex": pd.Index([1j]),
    "nullable": pd.Index([1, None], dtype="Int64"),
    "arrow": pd.Index([1, 2], dtype="int8[pyarrow]"),
    "sparse": pd.Index(pd.arrays.SparseArray([1, 0])),
    "categories": pd.CategoricalIndex(["a", "b"], ordered=True, name="q"),
    "intervals": pd.interval_range(0, 3, closed="left"),
    "periods": pd.period_range("2030", periods=2, freq="M"),
    "range": pd.RangeIndex(1, 9, 3, name="tick"),
    "empty range": pd.RangeIndex(0),
    "range downwards": pd.RangeIndex(5, 0, -2),
    "days": pd.date_range("2030", periods=4, freq="D", name="d"),
    "days in seconds": pd.date_range("2030", periods=3, freq="D", unit="s"),
    "months in a zone": pd.date_range("2030", periods=4, freq="ME", tz="Europe/Lisbon"),
    "days over a change of clocks": pd.date_range("2030-10-25", periods=6, freq="D", tz="Europe/Lisbon"),
    "hours over a change of clocks": pd.date_range("2030-10-25", periods=96, freq="h", tz="Europe/Lisbon"),
    "hours backwards": pd.date_range("2030", periods=4, freq="-1h"),
    "business days": pd.date_range("2030", periods=4, freq="B"),
    "days but for holidays": pd.date_range(
        "2030", periods=4, freq=pd.offsets.CustomBusinessDay(holidays=["2030-01-02"])
    ),
    "steps of a kind": pd.date_range("2030", periods=4, freq=pd.DateOffset(months=1, days=2)),
    "no days": pd.date_range("2030", periods=0, freq="D"),
    "every second day": pd.date_range("2030", periods=4, freq="D")[::2],
    "times without freq": pd.DatetimeIndex(["2030", "2031", None]),
    "durations": pd.timedelta_range("1D", periods=3, freq="6h", unit="s"),
    "levels": pd.MultiIndex.from_product(
        [[True, False], ["x", "y"], pd.date_range("2030", periods=2, freq="D")], names=["a", None, ("t", 1)]
    ),
    "levels with unused labels": pd.MultiIndex.from_product([list("abc"), range(3)])[2:5],
    "levels with gaps": pd.MultiIndex.from_tuples([("a", None), (None, 1.5)]),
    "empty levels": pd.MultiIndex.from_arrays([[], []]),
    "levels of one name": pd.MultiIndex.from_arrays([[1, 2], [3, 4]], names=["z", "z"], sortorder=0),
    "a named set": pd.Index([1], name=frozenset([1])),
    "a name that is a time": pd.Index([1], name=pd.Timestamp("2030")),
    "a name that is a numpy number": pd.Index([1], name=np.int64(4)),
    "a name that is a nested tuple": pd.Index([1], name=("a", (1, None))),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_columns_return(name):
    """A series and a column of each dtype return, and so does a part of them; most without a pickle."""
    series = pd.Series(ARRAYS[name], dtype=ARRAYS[name].dtype, copy=False)
    for value in (series, series[::-1], series.iloc[1:], series.iloc[:0], pd.DataFrame({"a": series, "n": 1})):
        assert diff(value, through_bytes(value)) == []
    assert needs_pickle(series) == (name in PICKLED_ARRAYS)


@pytest.mark.parametrize("name", INDEXES)
def test_indexes_return(name):
    """An index of each class returns by itself, as rows, as columns, as a level and as categories."""
    index = INDEXES[name]
    values = [
        index,
        pd.DataFrame({"v": np.arange(len(index))}, index=index),
        pd.Series(np.arange(len(index)), index=index),
        pd.DataFrame(np.zeros((2, len(index))), columns=index),
        pd.MultiIndex.from_arrays([index, index], names=["p", "q"]),
    ]
    if not isinstance(index, pd.MultiIndex) and not index.hasnans and name != "odd objects":
        values.append(pd.Categorical.from_codes([-1], index))
    for value in values:
        assert diff(value, through_bytes(value)) == []


@pytest.mark.parametrize(
    "attrs",
    [
        {"unit": "mm", "deep": [1, {"y": None}], "pair": (1, 2.5)},
        {3: (1, 2), "made": dt.date(2030, 1, 1), "array": np.arange(3)},
        {"nan": float("nan"), "huge": 1 << 90},
    ],
)
def test_attrs_and_flags_return(attrs):
    """Attributes with keys of any kind return, and whether labels may repeat."""
    frame = pd.DataFrame({"a": [1]}).set_flags(allows_duplicate_labels=False)
    frame.attrs = attrs
    assert diff(frame, through_bytes(frame)) == []
    assert diff(frame["a"], through_bytes(frame["a"])) == []


FRAMES = {
    "no columns": pd.DataFrame(index=range(5)),
    "no rows": pd.DataFrame({"a": [], "b": pd.array([], "Int8"), "c": pd.Series([], dtype=object)}),
    "nothing": pd.DataFrame(),
    "a repeated label": pd.DataFrame([[1, "a", 2.0]], columns=["q", "q", "r"]),
    "row by row in memory": pd.DataFrame(np.arange(60.0).reshape(10, 6)),
    "an index and a column of one name": pd.DataFrame({"id": [3, 4]}).set_index("id", drop=False),
    "wide": pd.DataFrame(np.zeros((1, 500)), columns=[f"c{i}" for i in range(500)]),
    "dtypes by turns": pd.DataFrame(
        {i: np.arange(9000).astype(("i8", "f4", "M8[s]", "m8[ms]", "?")[i % 5]) for i in range(23)}
    ),
    "exact numbers": pd.DataFrame(
        {
            "half": np.array([65504, -0.0], "f2"),
            "complex": np.array([1 + 2j, complex(0, -np.inf)], "c8"),
            "nan": np.array([0x7FF8000000000ABC, 0xFFF8000000000001], "u8").view("f8"),
            "long": np.array([1, 2], np.longdouble) / 3,
        }
    ),
    "big-endian columns": pd.DataFrame({i: np.arange(3, dtype=(">i2", "<i2", ">f8")[i % 3]) for i in range(6)}),
    "objects beside numbers": pd.DataFrame({"o": [{1}, None], "n": [1, 2], "p": [b"x", []]}),
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_return(name):
    """Frames of odd shapes return, whole and in part."""
    frame = FRAMES[name]
    for value in (frame, frame.iloc[::-2], frame.iloc[:, ::-1], frame.iloc[:0]):
        assert diff(value, through_bytes(value)) == []


def test_a_series_with_a_name_that_pandas_forbids_returns():
    """A column taken from a frame whose labels are lists has a list for its name."""
    labels = pd.Index(pd.array([[1], [2]], dtype=pd.ArrowDtype(pa.list_(pa.int8()))))
    series = pd.DataFrame([[1, 2]], columns=labels).iloc[:, 0]
    assert isinstance(series.name, list)
    assert diff(series, through_bytes(series)) == []


def test_subclasses_return():
    """A subclass of a frame returns as what it was, with its own field."""
    frame = Tagged({"a": [1, 2], "b": ["x", None]})
    frame.crs = "EPSG:4326"
    read = through_bytes(frame)
    assert diff(frame, read) == []
    assert read.crs == "EPSG:4326"


def test_what_is_read_can_be_changed():
    """Every column of a frame that was read can be assigned to."""
    frame = through_bytes(FRAMES["dtypes by turns"])
    for i in range(frame.shape[1]):
        frame.iloc[0, i] = frame.iloc[1, i]
        assert frame.iloc[0, i] == frame.iloc[1, i]


def test_columns_of_one_dtype_are_one_block():
    """A frame that was read is as whole in memory as one that was made."""
    frame = through_bytes(FRAMES["dtypes by turns"])
    assert len(frame._mgr.blocks) == 5
