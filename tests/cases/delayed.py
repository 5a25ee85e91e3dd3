"""Delayed values: any object, one of them to a collection."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
from dask import delayed

from tests.cases.building import Piece, collection
from tests.cases.classes import Thing


def value_of(name, make):
    """Register the case of a delayed value."""
    value = lambda: [make()]  # noqa: E731
    value.__name__ = name
    collection("A62")(_named(lambda: delayed(Piece(value), pure=True)(0), name))


def _named(function, name):
    function.__name__ = name
    return function


value_of("nothing", lambda: None)
value_of("a_dict", lambda: {"a": (1, [2.5, None]), 3: dt.date(2030, 1, 1)})
value_of(
    "a_frame", lambda: pd.DataFrame({"a": [1, 2], "c": pd.Categorical(["x", None])}, index=pd.Index([3, 4], name="i"))
)
value_of("an_array", lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)))
value_of("an_object", lambda: Thing("a", [Thing("b"), np.arange(3)]))
value_of("a_tuple_that_looks_like_a_task", lambda: (sum, [1, 2]))
value_of("a_number", lambda: np.float32(1.5))
value_of("views_of_text", lambda: pd.Series(["a" * 20, None, "b"], dtype=pd.ArrowDtype(pa.string_view())))
value_of("text", lambda: "a\x00\U0001f600")
value_of("an_empty_list", list)
