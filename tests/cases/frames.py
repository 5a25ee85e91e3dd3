"""Whole dask frames: the number and order of partitions, divisions, empty partitions, indexes as collections."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd

from tests.cases.building import array_of, collection, frame, frame_of


@frame("A20")
def empty_partitions():
    """Empty partitions in the middle and at both ends, with all their types."""
    some = pd.DataFrame(
        {"i": pd.array([1, 2], "Int8"), "s": ["x", "y"], "t": pd.to_datetime(["2030", "2031"])},
        index=pd.Index([10, 20], name="k"),
    )
    return [some[:0], some, some[:0], some, some[:0]]


@frame("A20")
def partitions_that_differ_from_the_meta():
    """What a partition is counts, even where its types are not those that the collection promises."""
    return [pd.DataFrame({"v": [1, 2]}), pd.DataFrame({"v": [0.5]}), pd.DataFrame({"v": ["x"], "more": [1]})]


@frame("A22", divisions=("ant", "cat", "eel", "fox"))
def divisions_of_text():
    """Divisions return, types included, without a look at the data."""
    index = pd.Index(["ant", "bee", "cat", "dog", "eel", "fox"], name="animal")
    whole = pd.DataFrame({"n": range(6)}, index=index)
    return [whole[:2], whole[2:4], whole[4:]]


def divided(name, index):
    """Register the case of a frame with two partitions that are divided by these four labels."""

    def make():
        whole = pd.DataFrame({"n": np.arange(4, dtype="i2")}, index=index)
        return [whole[:2], whole[2:]]

    make.__name__ = f"divisions_of_{name}"
    frame("A33", divisions=(index[0], index[2], index[3]))(make)
    return make


MONTHS = pd.date_range("2030-01-01", periods=4, freq="MS")
divisions_of_times = divided("times", pd.DatetimeIndex(MONTHS, freq=None))
divisions_of_seconds = divided("seconds", pd.DatetimeIndex(MONTHS, freq=None).as_unit("s"))
divisions_of_zoned_times = divided("zoned_times", pd.DatetimeIndex(MONTHS, freq=None).tz_localize("America/New_York"))
divisions_of_timedeltas = divided("timedeltas", pd.to_timedelta([1, 2, 3, 4], "h"))
divisions_of_floats = divided("floats", pd.Index([-np.inf, -0.0, 1e-300, np.inf]))
divisions_of_small_integers = divided("small_integers", pd.Index(np.array([0, 1, 200, 255], "u1")))
divisions_of_dates = divided("dates", pd.Index([dt.date(2030, 1, day) for day in (1, 2, 3, 4)], dtype=object))
divisions_of_periods = divided("periods", pd.period_range("2030-01", periods=4, freq="M"))
divisions_of_odd_text = divided("odd_text", pd.Index(["", "a\x00", "é", "\U0001f600"]))
divisions_of_bytes = divided("bytes", pd.Index([b"", b"\x00", b"a", b"\xff"], dtype=object))


@frame("A23")
def more_than_ten_partitions():
    """Partition 2 comes after partition 1, not after partition 11."""
    return [pd.DataFrame({"n": [number, -number]}) for number in range(12)]


@frame("A23")
def more_than_a_hundred_partitions():
    """The same with a digit more."""
    return [pd.DataFrame({"n": np.array([number], "i2")}) for number in range(101)]


@frame("A33", divisions=(0, 3))
def one_partition():
    """A single partition, with its divisions."""
    return [pd.DataFrame({"v": list("abcd")})]


@collection("A32")
def an_index_as_a_collection():
    """A dask Index, of time stamps with a zone."""
    index = pd.DatetimeIndex(["2030-01-01", "2030-01-02", "2030-01-03"], tz="Asia/Tokyo", name="t")
    whole = pd.DataFrame({"v": [1, 2, 3]}, index=index)
    return frame_of(lambda: [whole[:2], whole[2:]], divisions=(index[0], index[2], index[2])).index


@collection("A32")
def an_index_of_text_as_a_collection():
    """A dask Index of unknown divisions."""
    whole = pd.DataFrame({"v": [1, 2, 3]}, index=pd.Index(["b", "a", "b"], name=("x", 1)))
    return frame_of(lambda: [whole[:2], whole[2:]]).index


@collection("A32")
def a_column_of_a_frame():
    """A Series that is taken out of a frame."""
    whole = pd.DataFrame({"c": pd.Categorical(list("aba")), "v": [1, 2, 3]})
    return frame_of(lambda: [whole[:2], whole[2:]])["c"]


@collection("A47")
def a_frame_made_of_an_array():
    """Columns that share one block, row by row as the array had them, and can be assigned to afterwards."""
    return array_of(lambda: [np.arange(6.0).reshape(3, 2), np.arange(4.0).reshape(2, 2)]).to_dask_dataframe(["a", "b"])


@collection("A22")
def the_result_of_some_work():
    """A frame that was filtered, joined and grouped on the way, with what dask infers for its meta."""
    whole = pd.DataFrame({"k": [1, 2, 3, 4] * 5, "v": np.arange(20.0), "s": list("abcd") * 5})
    frame = frame_of(lambda: [whole[:10], whole[10:]])
    return frame[frame.v > 2].assign(w=frame.v * 2).merge(whole[:4][["k"]], on="k")
