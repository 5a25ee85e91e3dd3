"""Bags: partitions of any Python objects, and partitions that are iterators."""

from __future__ import annotations

import array
import collections
import datetime as dt
import decimal
import functools
import re

import dask.bag as db
import numpy as np
import pandas as pd
import pyarrow as pa

from tests.cases.building import bag, collection
from tests.cases.classes import Colour, Point, Slotted, Thing, Words


def squares(numbers):
    for number in numbers:
        yield {"n": number, "square": number * number}


@collection("A60")
def iterators():
    """A partition that is a generator is saved as the list of what it gives, read once."""
    return db.from_sequence(range(10), npartitions=3).map_partitions(squares).filter(lambda item: item["n"] % 2)


@collection("A60")
def maps_and_zips():
    """The same for the iterators that dask makes itself."""
    numbers = db.from_sequence(range(7), npartitions=3)
    return db.zip(numbers.map(lambda number: number + 1), numbers)


@collection("A60")
def partitions_of_iterables():
    """Ranges, sets and views of dicts are iterables too."""
    numbers = db.from_sequence(range(4), npartitions=2)
    return numbers.map_partitions(lambda part: dict.fromkeys(part).keys())


@bag("A61")
def arbitrary_objects():
    """Instances, exceptions, functions, objects that hold themselves; an empty partition between them."""
    loop: list = ["loop"]
    loop.append(loop)
    items = [
        Point(1, 2.0),
        Thing("a", [Thing("b")]),
        {1, 2},
        frozenset("x"),
        ValueError("bad", 3),
        lambda value: value + 1,
        range(3),
        loop,
        1 << 80,
        "\ud800".encode("utf-8", "surrogatepass"),
        Ellipsis,
        dt.timedelta(1),
        slice(1, 2),
    ]
    return [items, [], items[:2]]


@bag("A61")
def objects_of_the_standard_library():
    """Containers, patterns, partial functions, arrays, numbers with a sign on their zero."""
    items = [
        collections.deque([1, 2], maxlen=3),
        collections.OrderedDict(b=1, a=2),
        collections.Counter("aab"),
        re.compile(r"a+", re.IGNORECASE),
        functools.partial(int, base=2),
        array.array("d", [1.5, -0.0]),
        bytearray(b"\x00"),
        -0.0,
        float("nan"),
        complex(-0.0, float("inf")),
        decimal.Decimal("1.500"),
        NotImplemented,
        Colour.RED,
        Slotted(1, (2, 3)),
        Words(["a"]),
        int,
        len,
        None,
    ]
    return [items, items[::-1], items[:1]]


@bag("A53")
def tuples_that_look_like_tasks():
    """A tuple that begins with a function is data, and so is a string that could be a key."""
    return [[(len, [1, 2]), (sum, (1,)), ("x", 0)], [[(print, "executed")], "x-0"]]


@bag("A53")
def partitions_that_are_not_lists():
    """A partition may be a tuple, a dict or a list of another class."""
    return [(1, 2, 3), {"a": 1, "b": [2]}, Words(["w"]), Point(1, 2.0)]


@bag("A53")
def one_partition():
    """A single partition of text, some of it not small."""
    return [["", "\U0001f600", "x" * 3_000_000, "a\x00"]]


@bag("A64")
def frames_and_arrays():
    """Partitions that hold frames and arrays, with all that belongs to those."""
    frame = pd.DataFrame({"c": pd.Categorical(["a", None]), "t": pd.to_datetime(["2030", None]).tz_localize("UTC")})
    frame.attrs = {1: "one"}
    fortran = np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3))
    return [[frame, fortran], [frame["c"], {"deep": [fortran[:1], np.float32(1.5)]}], [np.array([], "M8[s]")]]


@bag("A64")
def records_as_dicts():
    """Records such as JSON lines give, with times among them."""
    return [
        [{"id": number, "at": dt.datetime(2030, 1, 1, number), "tags": ["a"] * number, "n": None}]
        for number in range(3)
    ]


@bag("A64")
def the_same_object_twice():
    """An object that occurs twice in a partition is one object afterwards."""
    shared = [1, 2]
    return [[shared, shared], [{"a": shared, "b": shared}]]


@bag("A50")
def slices_of_arrow_tables():
    """A short slice of a long table is saved as a short one."""
    table = pa.table({"s": ["x" * 50] * 200_000, "n": np.arange(200_000)})
    return [[table.slice(number * 1000, 10)] for number in range(3)]


@bag("A50")
def things_of_arrow():
    """Batches, arrays, scalars and schemas."""
    batch = pa.record_batch({"a": [1, None], "b": ["x", "y"]})
    return [
        [batch, batch.slice(1)],
        [batch.schema, batch["b"], pa.scalar(3, pa.int8())],
        [pa.chunked_array([[1], [2]])],
    ]


@collection("A61")
def functions_that_close_over_something():
    """Functions of this run, which no module has, are saved by value."""
    return db.from_sequence(range(4), npartitions=2).map(lambda number: functools.partial(pow, number))
