"""Column types: numbers to the bit, times with unit and zone, categories, and everything pandas extends."""

from __future__ import annotations

import datetime as dt
import decimal
import zoneinfo

import numpy as np
import pandas as pd
import pyarrow as pa
from dateutil import tz

from tests.cases.building import collection, frame, frame_of
from tests.cases.classes import MetresArray

UNITS = ("s", "ms", "us", "ns")


def arrow(values, kind):
    return pd.array(values, dtype=pd.ArrowDtype(kind))


@frame("A09")
def categories_of_numbers_and_dates():
    """Categories that are not text, with an order of their own, some unused."""
    numbers = pd.CategoricalDtype([30, 10, 20, 99], ordered=True)
    dates = pd.CategoricalDtype(pd.to_datetime(["2031-01-01", "2030-01-01"]))

    def part(values):
        codes = pd.Categorical.from_codes([0, 1, -1], dtype=dates)
        return pd.DataFrame({"n": pd.Categorical(values, dtype=numbers), "d": codes})

    return [part([10, None, 30]), part([20, 20, 10])]


@frame("A11")
def categories_that_differ_between_partitions():
    """Each partition has categories of its own, as reading files one by one makes them."""
    return [
        pd.DataFrame({"c": pd.Categorical(["a", "b"]), "o": pd.Categorical(["x", None], ordered=True)}),
        pd.DataFrame({"c": pd.Categorical(["b", "z"]), "o": pd.Categorical(["y", "y"], ordered=True)}),
        pd.DataFrame({"c": pd.Categorical([None, None]), "o": pd.Categorical(["x", "y"], ordered=False)}),
    ]


@frame("A09")
def categories_of_every_kind():
    """Intervals, booleans, floats, both types of text, time zones, and so many that codes need 16 bits."""
    values = {
        "interval": pd.cut([0.5, 1.5, 9.0], [0, 1, 2]),
        "bool": pd.Categorical([True, False, None]),
        "float": pd.Categorical([0.5, -0.0, np.nan]),
        "object": pd.Categorical(pd.Series(["a", "b", "a"], dtype=object)),
        "str": pd.Categorical(pd.Series(["a", "b", "a"], dtype="str")),
        "zone": pd.Categorical(pd.to_datetime(["2030", "2031", "2030"]).tz_localize("Asia/Tokyo")),
        "many": pd.Categorical.from_codes([0, 299, -1], categories=range(300)),
        "tuple": pd.Categorical.from_codes([0, 1, 0], categories=pd.Index([(1, "a"), (2, "b")], tupleize_cols=False)),
    }
    whole = pd.DataFrame(values)
    return [whole, whole.iloc[1:2], whole.iloc[:0]]


@collection("A10")
def known_categories():
    """Dask still knows the categories, so that code which needs them goes on working."""
    categorical = pd.Categorical(list("bacab"), categories=list("cabz"))
    return frame_of(lambda: [pd.DataFrame({"c": categorical, "v": range(5)}).iloc[i : i + 2] for i in (0, 2)])


@frame("A12")
def zones_of_several_makers():
    """Fixed offsets, zoneinfo and dateutil zones: instants, and the kind and name of the zone."""
    times = pd.to_datetime(["2035-03-25 00:30", "2035-03-25 03:30"])
    whole = pd.DataFrame(
        {
            "fixed": times.tz_localize(dt.timezone(dt.timedelta(hours=5, minutes=45))),
            "named": times.tz_localize(dt.timezone(dt.timedelta(hours=-1), "MADE UP")),
            "zoneinfo": times.tz_localize(zoneinfo.ZoneInfo("Europe/Lisbon"), nonexistent="shift_forward"),
            "dateutil": times.tz_localize(tz.tzoffset("MADE", 12600)),
            "tzutc": times.tz_localize(tz.tzutc()),
            "utc": times.tz_localize(dt.UTC),
            "seconds": times.as_unit("s").tz_localize("Australia/Lord_Howe"),
        }
    )
    return [whole, whole[::-1]]


@frame("A12")
def the_hour_that_comes_twice():
    """Local times of the hour that comes twice keep their instants."""
    hour = pd.DatetimeIndex(["2030-10-27 02:30"] * 2).tz_localize("Europe/Berlin", ambiguous=np.array([True, False]))
    return [pd.DataFrame({"t": hour}), pd.DataFrame({"t": hour[::-1]})]


@frame("A13")
def units_and_dates_far_away():
    """Each unit stays, with dates that have no place in nanoseconds."""
    far, near = ["0900-01-01", "2999-12-31"], ["1999-01-01", "NaT"]
    whole = pd.DataFrame({unit: np.array(near if unit == "ns" else far, f"M8[{unit}]") for unit in UNITS})
    for unit in UNITS:
        whole[f"delta {unit}"] = np.array([-1, 10**9], f"m8[{unit}]")
    return [whole, whole.iloc[1:]]


@frame("A15")
def periods_and_intervals():
    """Periods with a multiple as frequency; intervals by subtype, and by which side is closed."""
    breaks = pd.to_datetime(["2030", "2031", "2032", "2033"])
    whole = pd.DataFrame(
        {
            "p": pd.period_range("2030-01", periods=3, freq="2M"),
            "q": pd.PeriodIndex(["2030Q1", "NaT", "2031Q4"], freq="Q-MAR"),
            "both": pd.IntervalIndex.from_breaks(breaks, closed="both"),
            "neither": pd.arrays.IntervalArray.from_tuples([(0, 1), None, (2.5, 3)], closed="neither"),
            "zone": pd.IntervalIndex.from_breaks(breaks.tz_localize("UTC"), closed="left"),
            "delta": pd.IntervalIndex.from_breaks(pd.to_timedelta([1, 2, 3, 4], "h")),
        }
    )
    return [whole, whole.iloc[::2]]


@frame("A16")
def sparse_columns():
    """Fill values that are not zero, and the very points that are stored."""
    whole = pd.DataFrame(
        {
            "i": pd.arrays.SparseArray([5, 5, 1, 5, 5, 2], fill_value=5, dtype="int8"),
            "f": pd.arrays.SparseArray([np.nan, 1.5, np.nan] * 2, dtype="float32"),
            "b": pd.arrays.SparseArray([True, False, False] * 2, fill_value=False),
            "block": pd.arrays.SparseArray([0.0, 0, 1, 2, 0, 0], fill_value=0.0, kind="block"),
            "none": pd.arrays.SparseArray([0] * 6, fill_value=0),
        }
    )
    return [whole, whole[:2]]


@frame("A25")
def floats_to_the_bit():
    """Half, complex and long double, negative zero, the payload of NaN."""
    nan = np.array([0x7FF8000000000ABC, 0xFFF8000000000001], "u8").view("f8")
    whole = pd.DataFrame(
        {
            "h": np.array([65504, -0.0], "f2"),
            "c": np.array([1 + 2j, complex(0, -np.inf)], "c8"),
            "z": np.array([0j, 3 - 1j], "c16"),
            "nan": nan,
            "zero": np.array([-0.0, 0.0]),
            "tiny": np.array([5e-324, np.finfo("f8").max]),
        }
    )
    whole["long"] = np.array([1, 2], np.longdouble) / 3
    return [whole, whole[::-1]]


@frame("A25")
def every_width_of_integer():
    """The ends of all the integer types, and booleans."""
    kinds = [f"{sign}{width}" for sign in "iu" for width in (1, 2, 4, 8)]
    whole = pd.DataFrame({kind: np.array([np.iinfo(kind).min, np.iinfo(kind).max], kind) for kind in kinds})
    whole["?"] = [True, False]
    return [whole, whole[::-1], whole.iloc[:1]]


@frame("A26")
def nullable_and_arrow_columns():
    """Masked types and Arrow's, nested ones too, with missing values."""
    struct = pa.struct([("x", pa.int32()), ("y", pa.string())])
    whole = pd.DataFrame(
        {
            "i": pd.array([1, None, 3], "Int16"),
            "b": pd.array([True, None, False], "boolean"),
            "f": pd.array([0.5, None, np.inf], "Float32"),
            "l": arrow([[1, None], None, []], pa.list_(pa.int8())),
            "st": arrow([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}], struct),
            "m": arrow([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "dec": arrow([decimal.Decimal("1.25"), None, decimal.Decimal("-3.00")], pa.decimal128(9, 2)),
            "ts": arrow([dt.datetime(2030, 1, 1), None, dt.datetime(2031, 1, 1)], pa.timestamp("ms", "Asia/Kolkata")),
            "bin": arrow([b"\x00", None, b""], pa.binary()),
        }
    )
    encoded = pa.array(["u", "v", "u"]).dictionary_encode()
    whole["dict"] = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([encoded])))
    return [whole, whole.iloc[1:2]]


@frame("A26")
def the_rest_of_arrow():
    """Times, dates, durations, wide decimals, null, fixed sizes, halves, views, and nesting three deep."""
    deep = pa.list_(pa.struct([("a", pa.list_(pa.string())), ("b", pa.dictionary(pa.int8(), pa.string()))]))
    values = {
        "time": arrow([dt.time(1, 2), None, dt.time(3)], pa.time64("us")),
        "date": arrow([dt.date(2030, 1, 1), None, dt.date(1, 1, 1)], pa.date32()),
        "duration": arrow([dt.timedelta(1), None, dt.timedelta(0)], pa.duration("ms")),
        "wide": arrow([decimal.Decimal("1e30"), None, decimal.Decimal(-1)], pa.decimal256(50, 3)),
        "null": arrow([None] * 3, pa.null()),
        "fixed": arrow([b"abc", None, b"\x00\x00\x00"], pa.binary(3)),
        "pair": arrow([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
        "large": arrow([["x"], None, []], pa.large_list(pa.large_string())),
        "bool": arrow([True, None, False], pa.bool_()),
        "deep": arrow([[{"a": ["x", None], "b": "k"}], None, [None]], deep),
        "unsigned": pd.array([2**64 - 1, None, 0], "UInt64"),
    }
    whole = pd.DataFrame(values)
    return [whole, whole.iloc[1:], whole.iloc[2:3], whole.iloc[:0]]


@frame("A27")
def nan_beside_na():
    """A masked or Arrow column may hold NaN as a value, and NA as well; what lies under a mask may be anything."""
    floats = pd.arrays.FloatingArray(np.array([np.nan, -0.0, 7.0]), np.array([False, False, True]))
    return [
        pd.DataFrame({"f": floats, "a": pd.arrays.ArrowExtensionArray(pa.array([np.nan, None, 1.0]))}),
        pd.DataFrame({"f": floats[:1], "a": pd.arrays.ArrowExtensionArray(pa.array([None], pa.float64()))}),
    ]


@frame("A28")
def a_third_party_extension_type():
    """A column of a type defined outside pandas, with its parameter."""
    return [pd.DataFrame({"m": MetresArray([1, 2, np.nan], 0.001)}), pd.DataFrame({"m": MetresArray([4], 0.001)})]


@frame("A28")
def a_series_and_an_index_of_an_extension_type():
    """The same type as a Series, with an index of it."""
    index = pd.Index(MetresArray([1, 2], 0.5), name="m")
    return [
        pd.Series(MetresArray([3, 4], 2), index=index, name="s"),
        pd.Series(MetresArray([5], 2), index=index[:1], name="s"),
    ]
