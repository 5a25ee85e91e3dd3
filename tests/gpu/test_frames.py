"""Round trips of values that are on a GPU, through the file."""

import functools
import os
import uuid

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ckpt_spill.store import partition
from ckpt_spill.store.device import copies
from ckpt_spill.store.device.memory import Memory
from tests.gpu import missing
from tests.strict import diff
from tests.test_frames_cudf import COLUMNS
from tests.through_bytes import flatten, refill

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

ROWS = 1000


def arrow(name):
    """Repeat the Arrow data of a column up to a thousand rows."""
    array = COLUMNS[name][0]
    return pa.concat_arrays([array] * (ROWS // len(array)))


def of_arrow(name):
    import cudf

    return cudf.Series.from_arrow(arrow(name))


def of_pandas(values):
    import cudf

    return cudf.Series(values, nan_as_null=False)


NAMES = [
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"{kind}64[{unit}]" for kind in ("datetime", "timedelta") for unit in ("s", "ms", "us", "ns")),
    *("float32", "float64", "bool", "str", "decimal32", "decimal64", "decimal128"),
    *("list", "list of text", "list of bools", "list of lists", "struct", "struct of all", "list of structs"),
]
SERIES = {
    **{name: functools.partial(of_arrow, name) for name in NAMES},
    "object": lambda: of_arrow("str").astype("object"),
    "zoned": lambda: of_pandas(pd.Series(pd.date_range("2030", periods=ROWS, freq="h", tz="Asia/Kathmandu"))),
    "category": lambda: of_pandas(pd.Series(pd.Categorical(["b", None, "c", "a"] * 250, list("bac"), ordered=True))),
    "category of many": lambda: of_pandas(pd.Series(np.arange(ROWS) % 300).astype("category")),
    "interval": lambda: of_pandas(pd.Series(pd.IntervalIndex.from_breaks(range(ROWS + 1), closed="left"))),
    "Int64": lambda: of_pandas(pd.Series([1, None, 3, 4] * 250, dtype="Int64")),
    "boolean": lambda: of_pandas(pd.Series([True, None, False, True] * 250, dtype="boolean")),
    "float64[pyarrow]": lambda: of_pandas(pd.Series([1.5, None, 3, 4] * 250, dtype="float64[pyarrow]")),
}
PARTS = {
    "all": lambda s: s,
    "none": lambda s: s.iloc[:0],
    "a slice": lambda s: s.iloc[13:730],
    "a slice of a slice": lambda s: s.iloc[13:730].iloc[5:21],
    "every third": lambda s: s.iloc[::3],
    "without nulls": lambda s: s.dropna(),
}


def same(a, b):
    assert type(a) is type(b)
    assert a.dtype == b.dtype
    assert repr(a.dtype) == repr(b.dtype)
    assert diff(a.to_arrow(), b.to_arrow()) == []


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", SERIES)
def test_series_return(name, part):
    """Each dtype, with and without nulls, sliced and empty, as cuDF and as what cuDF itself gives pandas in Arrow."""
    series = PARTS[part](SERIES[name]()).rename("n")
    text, contents = flatten(series)
    read = refill(text, contents)
    same(series, read)
    assert read.name == "n"
    same(series.index, read.index)
    shown = refill(text, contents, None, "pandas")
    assert list(shown.isna()) == list(series.isnull().to_pandas())


@pytest.mark.parametrize("name", [name for name in NAMES if "64[" not in name and name != "str"])
def test_series_open_as_cudf_would_give_them_to_pandas(name):
    """Where pandas has Arrow's dtypes only, what is read equals what ``to_pandas(arrow_type=True)`` gives."""
    series = of_arrow(name)
    want = pd.Series(series.to_pandas(arrow_type=True))
    assert diff(want.array, refill(*flatten(series), None, "pandas").array) == []


INDEXES = {
    "range": lambda cudf: cudf.RangeIndex(3, 300, 3, name="r"),
    "numbers": lambda cudf: cudf.Index([3, None, 1], name=("a", 1)),
    "text": lambda cudf: cudf.Index(["b", None, "a"]),
    "times": lambda cudf: cudf.DatetimeIndex(pd.date_range("2030", periods=5, freq="2h")),
    "categories": lambda cudf: cudf.CategoricalIndex(["b", "a", "b"]),
    "intervals": lambda cudf: cudf.IntervalIndex.from_breaks([0, 1, 2]),
    "levels": lambda cudf: cudf.MultiIndex.from_arrays([[1, 2, 1], ["x", "y", None]], names=["n", None]),
    "of groups": lambda cudf: cudf.DataFrame({"a": [1, 2, 1], "b": [3, 3, 4], "c": 1}).groupby(["a", "b"]).sum().index,
}


@pytest.mark.parametrize("name", INDEXES)
def test_indexes_return(name):
    """Indexes of each class, alone and under a frame."""
    import cudf

    index = INDEXES[name](cudf)
    for value in (index, cudf.DataFrame({"v": range(len(index))}, index=index)):
        read = refill(*flatten(value))
        read, saved = getattr(read, "index", read), getattr(value, "index", value)
        assert type(read) is type(saved)
        assert list(read.names) == list(saved.names)
        assert getattr(read, "freq", None) == getattr(saved, "freq", None)
        assert read.equals(saved)


@pytest.mark.parametrize("codec", ["auto", "none"])
def test_frames_return_through_a_file(codec, tmp_path):
    """A frame of all dtypes comes back from a file; some of its columns, too."""
    import cudf

    frame = cudf.DataFrame({name: make().iloc[:900].reset_index(drop=True) for name, make in SERIES.items()})
    frame["wide"] = np.arange(len(frame) * 1.0)
    frame.attrs["unit"] = "mm"
    identity = partition.Identity(str(uuid.uuid4()), 0, 0)
    path = tmp_path / "p"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        digest = partition.write(fd, frame, identity, codec=codec, threads=4).digest
    finally:
        os.close(fd)
    read = partition.read(path, identity, digest, threads=4)
    assert read.attrs == frame.attrs
    for name in frame.columns:
        same(frame[name], read[name])
    few = partition.read(path, identity, digest, columns=["wide", "category"])
    assert sorted(few.columns) == ["category", "wide"]


def test_big_copies_are_cut_and_joined():
    """Memory of several times the pinned one, in pieces of odd sizes, comes to the host as it is."""
    import cupy

    sizes = [1, 0, copies.ROOM - 1, copies.ROOM * 5 + 3, 17, 5]
    arrays = [cupy.random.randint(0, 256, n, dtype=cupy.uint8) for n in sizes]
    fetched = copies.to_host([Memory(a.data.ptr, a.nbytes) for a in arrays])
    for array, got in zip(arrays, fetched, strict=True):
        assert np.array_equal(array.get(), got)


ARRAYS = {
    "plain": lambda cp: cp.arange(24.0).reshape(2, 3, 4),
    "fortran": lambda cp: cp.asfortranarray(cp.arange(12, dtype="i2").reshape(3, 4)),
    "turned": lambda cp: cp.arange(24, dtype="u1").reshape(2, 3, 4).transpose(2, 0, 1),
    "with gaps": lambda cp: cp.arange(24.0).reshape(4, 6)[::2, 1::2],
    "turned with gaps": lambda cp: cp.arange(24, dtype="c8").reshape(4, 6)[:, ::3].T,
    "backwards": lambda cp: cp.arange(12, dtype="f4").reshape(3, 4)[::-1],
    "zero axes": lambda cp: cp.array(3.5, "f2"),
    "nothing": lambda cp: cp.empty((0, 3)),
    "bools": lambda cp: cp.array([True, False]),
    "repeated": lambda cp: cp.broadcast_to(cp.arange(3), (4, 3)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_return(name):
    """Arrays of any layout and dtype, as CuPy's and as numpy's."""
    import cupy

    array = ARRAYS[name](cupy)
    text, contents = flatten(array)
    read = refill(text, contents)
    assert type(read) is cupy.ndarray
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert bool((read == array).all())
    assert np.array_equal(refill(text, contents, None, "pandas"), array.get())
    if name in {"plain", "fortran", "turned", "repeated"}:
        assert read.strides == array.strides


PANDAS = {
    "frame": pd.DataFrame({"a": [1.5, np.nan], "b": ["x", None], "c": pd.to_datetime(["2030", None])}, index=[5, 7]),
    "series": pd.Series([1, 2], name="n"),
    "categories": pd.Series(pd.Categorical(["b", None, "a"], ["b", "a"], ordered=True)),
    "index": pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=["n", None]),
    "array": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}


@pytest.mark.parametrize("name", PANDAS)
def test_what_pandas_saved_can_be_read_on_a_gpu(name):
    """NaN stays NaN, None and NaT are nulls, names and order are kept."""
    import cudf
    import cupy

    value = PANDAS[name]
    read = refill(*flatten(value), None, "cudf")
    assert type(read).__module__.partition(".")[0] in {"cudf", "cupy"}
    if name == "array":
        assert read.flags.f_contiguous
        assert np.array_equal(cupy.asnumpy(read), value)
    elif name == "frame":
        assert read["a"].null_count == 0
        assert read["b"].null_count == read["c"].null_count == 1
        assert list(read.columns) == list(value.columns)
    else:
        assert cudf.from_pandas(value, nan_as_null=False).equals(read)
