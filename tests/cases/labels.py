"""Labels: columns, indexes, their names and classes, and what a frame carries beside its values."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd

from tests.cases.building import collection, frame, frame_of
from tests.cases.classes import TaggedFrame


def numbered(columns, rows=2):
    """A frame of running numbers under these columns."""
    return pd.DataFrame(np.arange(float(rows * len(columns))).reshape(rows, -1), columns=columns)


@frame("A02")
def a_column_name_twice():
    """Columns are kept by position, each with its own type."""

    def part(number):
        return pd.DataFrame([[number, number + 0.5, number * 10]], columns=["q", "q", "r"]).astype({"r": "int16"})

    return [part(1), part(2)]


@frame("A02")
def one_name_for_columns_of_every_kind():
    """The repeated label is on text, categories and numbers."""
    columns = [pd.Series(["x"]), pd.Series(pd.Categorical(["y"])), pd.Series([1.5]), pd.Series([None], dtype=object)]
    whole = pd.concat(columns, axis=1)
    whole.columns = ["q"] * 4
    return [whole, whole.iloc[:0]]


@frame("A03")
def labels_that_are_not_text():
    """Numbers, tuples, None, dates and the empty string as column labels, in one frame."""
    labels = [1, "a", None, (2, 3), "", 1.5, dt.date(2030, 1, 1), True]
    return [numbered(pd.Index(labels, dtype=object, tupleize_cols=False)) for _ in range(2)]


@frame("A03")
def labels_of_integers():
    """Columns numbered by a range with a step."""
    return [numbered(pd.RangeIndex(10, 16, 2, name="n")), numbered(pd.RangeIndex(10, 16, 2, name="n"), rows=1)]


@frame("A03")
def labels_of_floats():
    """Column labels are floats, NaN and negative zero among them."""
    return [numbered(pd.Index([0.5, np.nan, -0.0]))]


@frame("A04")
def column_levels_with_booleans():
    """Levels, codes and names return with their types."""
    columns = pd.MultiIndex.from_tuples([(True, "lo"), (True, "hi"), (False, "lo")], names=["ok", None])
    return [numbered(columns), numbered(columns) + 6]


@frame("A04")
def column_levels_of_other_types():
    """Levels of dates and categories, with values that no column uses any more."""
    dates = pd.to_datetime(["2030", "2031"]).tz_localize("UTC")
    columns = pd.MultiIndex.from_product([dates, pd.CategoricalIndex(["b", "a"], categories=["b", "a", "z"])])
    return [numbered(columns)[columns[1:]], numbered(columns)[columns[1:]].iloc[:1]]


@frame("A05")
def columns_of_timedeltas():
    """The index of the columns keeps class, type and name."""
    columns = pd.to_timedelta([1, 2, 3], unit="D").rename("lag")
    return [pd.DataFrame([[1, 2, 3]], columns=columns, index=[number]) for number in range(3)]


@frame("A05")
def columns_of_dates():
    """Dates with a zone and a frequency as columns."""
    return [numbered(pd.date_range("2030-01-01", periods=3, freq="MS", tz="Europe/Oslo", name="month"))]


@frame("A05")
def columns_of_categories():
    """A categorical index of columns, ordered."""
    return [numbered(pd.CategoricalIndex(["b", "a"], categories=["b", "a", "c"], ordered=True, name=("t", 1)))]


@frame("A05")
def columns_of_periods():
    """Periods as columns."""
    return [numbered(pd.period_range("2030Q1", periods=2, freq="Q"))]


@frame("A05")
def columns_of_intervals():
    """Intervals as columns."""
    return [numbered(pd.interval_range(0, 3, closed="left"))]


@frame("A06")
def row_levels():
    """A MultiIndex of rows: names that are None or given twice, missing labels, unused levels, codes in any order."""
    index = pd.MultiIndex.from_arrays(
        [["b", "a", None, "b"], pd.to_datetime(["2031", "2030", None, "2031"]), pd.Categorical([1, 2, 1, 2])],
        names=["k", None, "k"],
    )
    whole = pd.DataFrame({"v": np.arange(4)}, index=index)
    return [whole.iloc[:2], whole.iloc[2:], whole.iloc[:0]]


@collection("A07")
def an_index_and_a_column_of_one_name():
    """Both the index and the column come back."""
    whole = pd.DataFrame({"id": [3, 4, 9, 11], "w": [0.1, 0.2, 0.3, 0.4]}).set_index("id", drop=False)
    return frame_of(lambda: [whole.iloc[:2], whole.iloc[2:]], divisions=(3, 9, 11))


@frame("A08", divisions=(0, 9, 18, 24))
def rows_without_columns():
    """No column at all, and still so many rows, under a range with a step and a name."""
    return [pd.DataFrame(index=pd.RangeIndex(start, start + 9, 3, name="tick")) for start in (0, 9, 18)]


@frame("A08")
def ranges_that_count_down():
    """A range counts down, begins below zero, or is empty somewhere else than at zero."""
    ranges = [pd.RangeIndex(9, -3, -4), pd.RangeIndex(-5, -2), pd.RangeIndex(7, 7, 3)]
    return [pd.DataFrame({"v": np.arange(len(index), dtype="i4")}, index=index) for index in ranges]


@frame("A08")
def columns_without_rows():
    """Columns and their types, but not one row in any partition."""
    empty = pd.DataFrame({"i": pd.array([], "Int8"), "o": pd.Series([], dtype=object), "t": pd.array([], "M8[s]")})
    return [empty, empty]


@frame("A24")
def attributes_and_flags():
    """Attributes with keys that are not text and nested values; duplicate labels stay forbidden."""

    def part(number):
        frame = pd.DataFrame({"v": [number]}, index=[number])
        frame.attrs = {"unit": "mm", 3: (1, 2), "nest": {"made": dt.date(2030, 1, number + 1)}}
        return frame.set_flags(allows_duplicate_labels=False)

    return [part(0), part(1)]


@frame("A24")
def attributes_of_a_series():
    """A Series has attributes and flags too."""

    def part(number):
        series = pd.Series([number], name="v")
        series.attrs = {("a", 1): [number]}
        return series.set_flags(allows_duplicate_labels=False)

    return [part(0), part(1)]


@frame("A29")
def a_subclass_with_metadata():
    """The partitions are of a subclass, each with its own value of the subclass's attribute."""

    def part(number):
        frame = TaggedFrame({"v": [number, number], "s": ["a", "b"]})
        frame.crs = {"zone": number}
        return frame

    return [part(1), part(2)]


@frame("A29")
def a_series_of_a_subclass():
    """A column of a subclass is of a subclass as well."""
    frame = TaggedFrame({"v": [1, 2]})
    frame.crs = "flat"
    return [frame["v"], frame["v"].iloc[:1]]


@frame("A30")
def indexes_with_a_frequency():
    """The frequency of an index of dates or of timedeltas, where there is one."""
    daily = pd.date_range("2030-01-01", periods=4, freq="2D", name="t")
    whole = pd.DataFrame({"v": range(4)}, index=daily)
    return [whole, whole.iloc[::2], whole.iloc[[0, 3, 1]]]


@frame("A30")
def indexes_of_timedeltas():
    """The same for timedeltas."""
    index = pd.timedelta_range("1h", periods=3, freq="90min")
    return [pd.DataFrame({"v": range(3)}, index=index), pd.DataFrame({"v": [1]}, index=index[:1])]


def one_index(name, index):
    """Register the case of a frame whose rows have this index."""

    def make():
        whole = pd.DataFrame({"v": np.arange(len(index))}, index=index)
        return [whole.iloc[:1], whole.iloc[1:]]

    make.__name__ = name
    frame("A30")(make)
    return make


index_of_floats = one_index("index_of_floats", pd.Index([np.nan, -0.0, 0.0], name="f"))
index_of_bytes = one_index("index_of_bytes", pd.Index(np.array([1, 255, 1], "u1"), name=("a", 0)))
index_of_booleans = one_index("index_of_booleans", pd.Index([True, False, True]))
index_of_objects = one_index("index_of_objects", pd.Index([1, "a", None], dtype=object, name=0))
index_of_tuples = one_index("index_of_tuples", pd.Index([(1, 2), (3,), ()], tupleize_cols=False))
index_of_categories = one_index(
    "index_of_categories", pd.CategoricalIndex(["b", None, "a"], categories=["b", "a", "z"])
)
index_of_intervals = one_index("index_of_intervals", pd.interval_range(0, 3, closed="both"))
index_of_periods = one_index("index_of_periods", pd.period_range("2030-01-01", periods=3, freq="W-WED"))
index_of_zoned_times = one_index(
    "index_of_zoned_times", pd.to_datetime(["2030", "2031", None]).tz_localize("Asia/Tokyo")
)
index_of_nullable_integers = one_index(
    "index_of_nullable_integers", pd.Index(pd.array([1, None, 3], "Int64"), name="n")
)
