"""Object columns: what is in the cells comes back as the same kind of object."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import ipaddress
import pathlib
import uuid

import numpy as np
import pandas as pd

from tests.cases.building import frame
from tests.cases.classes import Colour, Level, Point, Slotted, Thing, Words


def objects(*cells, **options):
    return pd.Series(list(cells), dtype=object, **options)


@frame("A01")
def mixed_python_types():
    """Numbers, text, bytes and dates in one column."""
    cells = [7, "seven", 7.0, b"\x07", None, (7, "vii"), dt.date(2007, 7, 7), True]
    return [pd.DataFrame({"x": objects(*cells)}), pd.DataFrame({"x": objects(*cells[::-1])})]


@frame("A01")
def numbers_of_several_kinds():
    """Python's and numpy's numbers side by side, some too large for any fixed width."""
    numbers = [1, True, 1.0, 1 + 0j, np.int8(1), np.float32(1), np.bool_(1), 1 << 80, -(1 << 64), np.float64(-0.0)]
    return [pd.DataFrame({"x": objects(*numbers)}), pd.DataFrame({"x": objects(*numbers[::-2])})]


@frame("A03")
def bytes_and_what_is_not_text():
    """Byte strings, invalid UTF-8 among them, and text with half a surrogate pair."""
    cells = [b"", b"\x00\xff\xfe", bytearray(b"ab"), "\ud800", "a\x00b", b"plain"]
    return [pd.DataFrame({"b": objects(*cells)}), pd.DataFrame({"b": objects(b"\xc3\x28")})]


@frame("A17")
def nested_cells():
    """Lists, dicts, sets and arrays as cells, nested in each other."""
    cells = [[1, 2], {"a": None}, {"b": [3.5]}, {9}, np.arange(3, dtype="u1"), [], None, [[{"deep": (1,)}]]]
    lists = [[number] * number for number in range(8)]
    whole = pd.DataFrame({"any": objects(*cells), "lists": objects(*lists)})
    return [whole.iloc[:5], whole.iloc[5:]]


@frame("A17")
def cells_of_pandas_and_numpy():
    """Series, frames, indexes, time stamps and arrays of several shapes as cells."""
    cells = [
        pd.Series([1.5], name="s"),
        pd.DataFrame({"q": [1]}),
        pd.Index(["a"], name="i"),
        pd.Timestamp("2030-01-01", tz="UTC"),
        pd.Timedelta(3, "s"),
        pd.Period("2030-01", "M"),
        pd.Interval(0, 1, closed="both"),
        np.zeros((2, 0)),
        np.array(5, "i2"),
        np.datetime64("2030-01-01", "D"),
        pd.Categorical(["x"]),
    ]
    return [pd.DataFrame({"x": objects(*cells)})]


@frame("A17")
def cells_of_dicts():
    """Dicts whose keys are not text and whose order counts, and the dict-like ones of the standard library."""
    cells = [
        {1: "a", None: "b", (2, 3): {}},
        {"z": 1, "a": 2},
        collections.OrderedDict([("z", 1), ("a", 2)]),
        collections.defaultdict(list, {"k": [1]}),
        collections.Counter("abca"),
    ]
    return [pd.DataFrame({"d": objects(*cells)}), pd.DataFrame({"d": objects({})})]


@frame("A18")
def four_kinds_of_missing():
    """None, NaN, NA and NaT stay apart."""
    return [
        pd.DataFrame({"m": objects("a", None, np.nan, pd.NA, pd.NaT)}),
        pd.DataFrame({"m": objects(np.nan, None)}),
        pd.DataFrame({"m": objects(decimal.Decimal("NaN"), np.float32("nan"), np.datetime64("NaT"), complex("nan"))}),
    ]


@frame("A19")
def exact_numbers_and_identifiers():
    """Decimals with their exponents, fractions, UUIDs, paths, addresses."""
    cells = [
        decimal.Decimal("1.10"),
        decimal.Decimal("1.1"),
        decimal.Decimal("-0"),
        decimal.Decimal("Infinity"),
        fractions.Fraction(1, 3),
        uuid.UUID(int=7),
        pathlib.PurePosixPath("/a/../b"),
        pathlib.PureWindowsPath("c:/d"),
        ipaddress.ip_address("::1"),
    ]
    return [pd.DataFrame({"x": objects(*cells)}), pd.DataFrame({"x": objects(*cells[:2])})]


@frame("A19")
def objects_of_classes():
    """Members of enumerations, named tuples, slotted and plain instances, subclasses of built-in types."""
    cells = [Colour.RED, Level.LOW, Point(1, 2.0), Slotted(1, (2,)), Thing("t", [Colour.BLUE]), Words(["w"]), Colour]
    return [pd.DataFrame({"x": objects(*cells)}), pd.DataFrame({"x": objects(*cells[::-1])})]


@frame("A12")
def dates_times_and_offsets():
    """Python's dates and times, with and without zones, and offsets that differ from cell to cell."""
    zones = [dt.timezone(dt.timedelta(hours=hours)) for hours in (-3, 5)] + [dt.UTC, None]
    cells = [dt.datetime(2035, 1, 1, 5, tzinfo=zone) for zone in zones]
    cells += [dt.time(1, 2, 3, 4, tzinfo=dt.UTC), dt.time(23, fold=1), dt.date.min, dt.timedelta.max, dt.datetime.max]
    return [pd.DataFrame({"t": objects(*cells)}), pd.DataFrame({"t": objects(*cells[:2])})]


@frame("A21")
def a_partition_of_nothing_but_none():
    """The object column of one partition is all None, which must not change that of another."""
    some = pd.DataFrame({"s": objects("x", "y"), "f": [1.0, 2.0]})
    none = pd.DataFrame({"s": objects(None, None), "f": [np.nan, np.nan]})
    return [none, some, none]


@frame("A32")
def series_with_a_tuple_for_a_name():
    """A Series of mixed cells, not a frame."""
    return [objects(1, "a", name=("group", 0)), objects(None, name=("group", 0))]


@frame("A32")
def series_without_a_name():
    """Nothing is invented for a name that is None, and an integer stays one."""
    return [pd.Series([1.5, 2.5]), pd.Series([3.5], index=[7])]


@frame("A32")
def series_named_by_a_number():
    """The name of a Series may be any label."""
    return [pd.Series([True, False], name=0), pd.Series([True], name=0)]
