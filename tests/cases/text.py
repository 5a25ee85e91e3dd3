"""Text: object, ``str`` and the several ``string`` types are told apart, whatever dask's option to convert says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from tests.cases.building import frame

ODD = ["", "\x00", "é\u4e2d\U0001f600", " \n", "e\u0301", "long " * 20_000]


@frame("A31")
def three_types_of_text_and_dicts():
    """Object, str and string[python] columns, and dicts that must not become text."""
    whole = pd.DataFrame(
        {
            "o": pd.Series(["a", None], dtype=object),
            "s": ["b", None],
            "py": pd.array(["c", None], pd.StringDtype("python")),
            "d": pd.Series([{"k": 1}, [2]], dtype=object),
        }
    )
    return [whole, whole[::-1]]


@frame("A31")
def text_in_every_type():
    """Both storages with both kinds of missing value, and Arrow's two types of text."""
    values = [*ODD, None]
    whole = pd.DataFrame(
        {
            "str": pd.array(values, "str"),
            "python_nan": pd.array(values, pd.StringDtype("python", na_value=np.nan)),
            "python_na": pd.array(values, pd.StringDtype("python")),
            "arrow_na": pd.array(values, pd.StringDtype("pyarrow")),
            "string": pd.array(values, pd.ArrowDtype(pa.string())),
            "large": pd.array(values, pd.ArrowDtype(pa.large_string())),
            "object": pd.Series(values, dtype=object),
        }
    )
    return [whole, whole.iloc[2:5], whole.iloc[:0], whole.iloc[3:]]


@frame("A31")
def an_index_of_text():
    """The index is of objects, and so is its name's Series; it does not become one of strings."""
    index = pd.Index(["a", "b"], dtype=object, name="k")
    return [pd.DataFrame({"v": [1, 2]}, index=index), pd.DataFrame({"v": [3]}, index=index[1:])]


@frame("A31")
def text_without_any_value():
    """Columns in which all is missing keep their type."""
    whole = pd.DataFrame({"s": pd.array([None] * 3, "str"), "n": pd.array([None] * 3, pd.StringDtype("pyarrow"))})
    return [whole, whole.iloc[:1]]


@frame("A50")
def short_slices_of_long_text():
    """Slices that begin in the middle of a buffer, and of its bitmap of missing values."""
    values = [None if number % 7 == 0 else f"row {number}" for number in range(1000)]
    whole = pd.DataFrame(
        {"s": pd.array(values, "str"), "a": pd.array(values, pd.ArrowDtype(pa.string()))}, index=pd.RangeIndex(1000)
    )
    return [whole.iloc[3:11], whole.iloc[501:502], whole.iloc[990:]]


@frame("A50")
def text_in_several_chunks():
    """A column that was concatenated has several Arrow chunks, some of them empty."""
    chunks = pa.chunked_array([["a", None], [], ["b"], [None, "c"]], type=pa.large_string())
    whole = pd.DataFrame(
        {"s": pd.arrays.ArrowStringArray(chunks), "a": pd.arrays.ArrowExtensionArray(chunks)}, index=range(5)
    )
    return [whole, pd.concat([whole, whole]).iloc[1:8]]
