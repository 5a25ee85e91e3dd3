"""Real objects of cuDF's and CuPy's over host memory: all but the copies to and from a device, without one."""

import importlib
import importlib.util
import inspect
import json
import subprocess
import sys
import types

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ckpt_spill.errors import ReadError
from ckpt_spill.store import frames
from ckpt_spill.store.device import copies, libraries
from ckpt_spill.store.frames import columns, cudtypes, rapids
from tests import host_columns as host
from tests import host_device
from tests.strict import diff
from tests.test_frames_cudf import AXES, CATEGORIES, COLUMNS, LABELS, ROWS, axis_of, expected, mangle
from tests.through_bytes import flatten, refill

MISSING = importlib.util.find_spec("cudf") is None
pytestmark = [pytest.mark.rapids, pytest.mark.skipif(MISSING, reason="needs cuDF")]
cudf, cupy, plc = (None if MISSING else importlib.import_module(name) for name in ("cudf", "cupy", "pylibcudf"))


def on_host(array):
    """Make an array of CuPy's of host memory."""
    host.kept.append(array)
    low = (
        min(sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True) if s < 0), 0) if array.size else 0
    )
    owner = cupy.cuda.UnownedMemory(array.ctypes.data + low, max(array.nbytes * 64, 1), array, 0)
    return cupy.ndarray(array.shape, array.dtype, cupy.cuda.MemoryPointer(owner, -low), array.strides)


@pytest.fixture(autouse=True)
def host_for_device():
    with host_device.standing_in(cupy=True):
        yield


def numpy_of(array):
    """See the memory of an array of CuPy's that lies in host memory."""
    return host_device.on_host(array).copy(order="K")


def made(table):
    """Make a cuDF object of a table of host columns."""
    return rapids.build(host.near(table))


def content(value):
    """Give everything that a cuDF object says of itself, its cells as pandas shows them."""
    text, contents = flatten(value)
    shown = refill(text, contents, None, "pandas")
    with rapids.opened(value) as table:
        dtypes = [repr(c.words) + str(c.kind) for c in (*table.axis.columns, *table.columns)]
    return type(value), dtypes, shown


def same(a, b):
    (kind_a, dtypes_a, shown_a), (kind_b, dtypes_b, shown_b) = content(a), content(b)
    return kind_a is kind_b and dtypes_a == dtypes_b and not diff(shown_a, shown_b)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_return_as_cudf(name, rows):
    """A column of each dtype comes back as cuDF, with its dtype; and as pandas, with the cells that were saved."""
    array, words = COLUMNS[name]
    start, stop = ROWS[rows]
    value = made(host.frame([host.column(array, words, start=start, stop=stop)]))
    read = refill(*flatten(value))
    assert type(read) is cudf.DataFrame
    assert list(read.columns) == ["c0"]
    assert type(read.index) is cudf.RangeIndex
    assert read.dtypes.iloc[0] == value.dtypes.iloc[0]
    assert type(read.dtypes.iloc[0]) is type(value.dtypes.iloc[0])
    assert same(value, read)
    assert diff(expected(name, array.slice(start, stop - start)), content(read)[2]["c0"].rename(None)) == []


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_are_slices_return_as_cudf(name):
    """A pylibcudf column with an offset, as slicing makes it, is read from where it begins."""
    array, words = COLUMNS[name]
    whole = made(host.frame([host.column(array, words)]))._columns[0]
    plain = whole.plc_column
    part = plc.Column(
        plain.type(), 9, plain.data(), plain.null_mask(), array.slice(5, 9).null_count, 5, plain.children()
    )
    value = cudf.Series._from_column(type(whole).create(part, whole.dtype), name="s")
    read = refill(*flatten(value))
    assert same(value, read)
    assert diff(expected(name, array.slice(5, 9)), content(read)[2].rename(None)) == []


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", CATEGORIES)
def test_categoricals_return_as_cudf(name, ordered):
    """Codes, categories with their dtype, and whether they have an order."""
    labels, words, _ = CATEGORIES[name]
    codes = pa.array([0, None, 2, 1, 0] if len(labels) else [None] * 5, pa.uint8())
    value = made(host.frame([host.column(codes, {}, host.column(labels, words), ordered=ordered)]))
    read = refill(*flatten(value))
    assert read.dtypes.iloc[0].ordered is ordered
    assert read.dtypes.iloc[0].categories.dtype == value.dtypes.iloc[0].categories.dtype
    assert read._columns[0].codes.dtype == value._columns[0].codes.dtype
    assert same(value, read)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_categories_that_pandas_does_not_have_return_as_cudf(missing):
    """A category that is missing or NaN stays one."""
    labels, codes = pa.array([2.5, missing]), pa.array([0, 1, None, 0], pa.uint8())
    value = made(host.frame([host.column(codes, {}, host.column(labels), ordered=True)]))
    read = refill(*flatten(value))
    assert read.dtypes.iloc[0].ordered
    assert same(value, read)


@pytest.mark.parametrize("name", AXES)
def test_indexes_return_as_cudf(name):
    """Indexes of each class, with names and freq, alone, under series and frames; attributes, too."""
    axis, values = axis_of(AXES[name][0]), host.column(pa.array([1, 2, None]))
    tables = [
        columns.Table("index", axis, [], None, {}, unique=False),
        columns.Table("series", axis, [values], "n", {"unit": "mm"}, unique=False),
        host.frame([values], axis, unit="mm"),
    ]
    for value in map(made, tables):
        read = refill(*flatten(value))
        assert same(value, read)
        index, back = getattr(value, "index", value), getattr(read, "index", read)
        assert type(index) is type(back)
        assert list(index.names) == list(back.names)
        assert getattr(index, "freq", None) == getattr(back, "freq", None)
        assert getattr(read, "attrs", None) == getattr(value, "attrs", None)


@pytest.mark.parametrize("chosen", [["b"], [], ["c", "a"]])
def test_columns_come_alone_as_cudf(chosen):
    """Some columns of a frame, in the frame's order."""
    arrays = [host.column(pa.array([1, None])), host.column(pa.array(["x", "y"]), {"string": ["pyarrow", "nan"]})] * 2
    value = made(host.frame(arrays[:3], labels=pd.Index(["a", "b", "c"])))
    read = refill(*flatten(value), chosen)
    assert list(read.columns) == [label for label in "abc" if label in chosen]
    assert len(read) == 2


@pytest.mark.parametrize("labels", LABELS)
def test_labels_of_columns_return_as_cudf(labels):
    """The labels of columns keep their class and dtype, also where there is just one column, or none."""
    arrays = [host.column(pa.array([1, 2])), host.column(pa.array([3, 4]))]
    for width in (2, 1, 0):
        table = host.frame(arrays, labels=labels[:width])._replace(columns=arrays[:width])
        value = made(table)
        read = refill(*flatten(value))
        assert diff(value.columns, read.columns) == []
        assert len(read) == 2


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"k": (v, v)}])
def test_objects_inside_others_are_pickled_once(wrap, monkeypatch):
    """A list of frames is a pickle that is known to load: it is not loaded on the device to see whether it can be."""
    value = made(host.frame([host.column(pa.array([1, 2]))]))
    loaded = []
    monkeypatch.setattr(cudf.DataFrame, "host_serialize", lambda self: ({"type-serialized-name": "DataFrame"}, []))
    monkeypatch.setattr(cudf.DataFrame, "host_deserialize", classmethod(lambda *a: loaded.append(a)))
    assert frames.needs_pickle(frames.encode(wrap(value)).description)
    assert loaded == []


DTYPES = [
    lambda: cudf.ListDtype("int8"),
    lambda: cudf.ListDtype(np.dtype(object)),
    lambda: cudf.ListDtype(pd.StringDtype("pyarrow")),
    lambda: cudf.ListDtype(pd.Int64Dtype()),
    lambda: cudf.ListDtype(cudf.ListDtype("datetime64[s]")),
    lambda: cudf.StructDtype({"a": "str", "b": cudf.ListDtype(np.dtype(object)), "c": cudf.Decimal32Dtype(5, 1)}),
    lambda: cudf.IntervalDtype("datetime64[ns]", "neither"),
    lambda: cudf.IntervalDtype("int64", "both"),
    lambda: cudf.Decimal128Dtype(38, 3),
    lambda: cudf.Decimal64Dtype(18, -2),
    lambda: pd.DatetimeTZDtype("ms", "Europe/Lisbon"),
    lambda: pd.ArrowDtype(pa.list_(pa.large_string())),
    lambda: pd.StringDtype("python"),
    pd.BooleanDtype,
    lambda: np.dtype("timedelta64[us]"),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_return(dtype):
    """What Arrow's type does not tell of a dtype, to what is inside lists and structs, is said in words."""
    dtype = dtype()
    back = cudtypes.build(*cudtypes.describe(dtype))
    assert type(back) is type(dtype)
    assert repr(back) == repr(dtype)
    assert back == dtype


@pytest.mark.parametrize("name", COLUMNS)
def test_mangled_descriptions_are_refused(name):
    """No cuDF column is made of a description that lost a member or has another value: a ValueError, no other error."""
    array, words = COLUMNS[name]
    value = made(host.frame([host.column(array, words)]))
    text, contents = flatten(value)
    refused = 0
    for mangled in mangle(json.loads(text)):
        try:
            read = refill(json.dumps(mangled), contents, None, "cudf")
        except (ValueError, ReadError):
            refused += 1
        else:
            assert len(read) == len(value) or "index" not in mangled
    assert refused > 20


def test_intervals_without_a_side_are_closed_on_the_right():
    """Arrow's type of intervals, as cuDF makes it, has no word for a side that was not said."""
    assert cudtypes.build(*cudtypes.describe(cudf.IntervalDtype("int64", None))) == cudf.IntervalDtype("int64", "right")


LAYOUTS = {
    "plain": np.arange(24.0).reshape(2, 3, 4),
    "fortran": np.asfortranarray(np.arange(12, dtype="i2").reshape(3, 4)),
    "turned": np.arange(24, dtype="u1").reshape(2, 3, 4).transpose(2, 0, 1),
    "backwards": np.arange(12.0, dtype="f4").reshape(3, 4)[::-1, ::-1],
    "zero axes": np.array(3 + 4j, "c8"),
    "nothing": np.empty((0, 3), "f2"),
    "one": np.ones((1, 1), "?"),
    "repeated": np.broadcast_to(np.arange(3), (4, 3)),
    "repeated inside": np.broadcast_to(np.arange(3)[:, None], (3, 5)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_arrays_return_as_cupy(name):
    """Arrays of any layout return with the order of their axes and with what is repeated, or as numpy's."""
    array = LAYOUTS[name]
    value = on_host(array)
    text, contents = flatten(value)
    shown = refill(text, contents, None, "pandas")
    if "repeated" in name:
        assert sum(map(len, contents)) == 3 * array.itemsize
        assert np.array_equal(array, shown)
    else:
        assert diff(array, shown) == []
    read = refill(text, contents)
    assert type(read) is cupy.ndarray
    assert read.dtype == array.dtype
    assert np.array_equal(numpy_of(read), array)
    assert read.strides == tuple(map(abs, array.strides)) or not array.size


def test_arrays_of_numpy_go_to_cupy():
    """What numpy saved can be read as CuPy's."""
    array = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    read = refill(*flatten(array), None, "cudf")
    assert type(read) is cupy.ndarray
    assert read.flags.f_contiguous
    assert np.array_equal(numpy_of(read), array)


def test_frames_of_pandas_go_through_cudf(monkeypatch):
    """What pandas saved is handed to cuDF's own conversion, which is told to keep NaN apart from nulls."""
    seen = []
    monkeypatch.setattr(cudf, "from_pandas", lambda value, **kwargs: seen.append((value, kwargs)) or "cudf")
    for value in (pd.DataFrame({"a": [1.5]}), pd.Series(["x"]), pd.Index([1]), pd.MultiIndex.from_tuples([(1, 2)])):
        assert refill(*flatten(value), None, "cudf") == "cudf"
        assert diff(value, seen[-1][0]) == []
        assert seen[-1][1] == {"nan_as_null": False}
    assert refill(*flatten([1, "x"]), None, "cudf") == [1, "x"]


PLAIN = pd.DataFrame({"a": [1]})


@pytest.mark.skipif(not MISSING and cupy.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["frame", "array", "pandas"])
def test_without_a_gpu_the_way_out_is_named(name, monkeypatch):
    """RAPIDS can be installed where there is no GPU: reading what came from one says how it can be read."""
    values = {"frame": made(host.frame([host.column(pa.array([1]))])), "array": on_host(np.ones(3)), "pandas": PLAIN}
    text, contents = flatten(values[name])
    monkeypatch.setattr(libraries, "has_device", host_device.has_device)
    monkeypatch.setattr(libraries, "check", host_device.check)
    with pytest.raises(ReadError, match="backend='pandas'"):
        refill(text, contents, None, "cudf")


def test_what_fails_on_the_device_is_no_fault_of_the_file(monkeypatch):
    """An error of CUDA's is not taken for a description that makes no sense."""
    text, contents = flatten(made(host.frame([host.column(pa.array([1]))])))

    def fail(memory):
        raise RuntimeError("cudaErrorIllegalAddress")

    monkeypatch.setattr(copies, "to_device", fail)
    with pytest.raises(ReadError, match="cudaErrorIllegalAddress"):
        refill(text, contents)


def test_what_cudf_does_not_have_is_said(monkeypatch):
    """A frame of pandas that cuDF refuses is no damaged file."""

    def refuse(value, **kwargs):
        raise TypeError("Unsupported type complex128")

    monkeypatch.setattr(cudf, "from_pandas", refuse)
    with pytest.raises(ReadError, match=r"like this DataFrame.*complex128"):
        refill(*flatten(pd.DataFrame({"a": [1j]})), None, "cudf")


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_names_and_signatures():
    """Every name of RAPIDS that is used, those that cuDF keeps to itself above all, takes what it is given."""
    import rmm
    from cudf.core.column import ColumnBase
    from rmm.pylibrmm import device_buffer, stream

    assert {"data", "index", "columns", "attrs", "allows_duplicate_labels"} <= set(
        parameters(cudf.DataFrame._from_data)
    )
    assert {"data", "index", "attrs", "allows_duplicate_labels"} <= set(parameters(cudf.Series._from_data))
    assert {"column", "name"} <= set(parameters(cudf.Index._from_column))
    assert {"column", "name", "freq"} <= set(parameters(cudf.DatetimeIndex._from_column))
    assert parameters(cudf.MultiIndex._from_data)[0] == "data"
    assert parameters(ColumnBase.create)[:2] == ["col", "dtype"]
    assert parameters(ColumnBase.access) == ["self", "kwargs"]
    assert "nan_as_null" in parameters(cudf.from_pandas)
    assert parameters(cudf.CategoricalDtype)[:2] == ["categories", "ordered"]
    assert parameters(cudf.IntervalDtype)[:2] == ["subtype", "closed"]
    assert callable(cudf.DataFrame.from_arrow)
    for name in ("type", "data", "null_mask", "size", "offset", "null_count", "children"):
        assert callable(getattr(plc.Column, name))
    assert plc.types.size_of(plc.DataType(plc.TypeId.DECIMAL128, -3)) == 16
    for name in frames.layout._TYPE_IDS.values():
        assert getattr(plc.TypeId, name)
    assert callable(device_buffer.copy_ptr_to_host)
    assert callable(stream.Stream.synchronize)
    assert stream.DEFAULT_STREAM.is_default()
    assert callable(rmm.DeviceBuffer.to_device)
    assert all(
        isinstance(getattr(rmm.DeviceBuffer, name), property | types.GetSetDescriptorType) for name in ("ptr", "size")
    )
    assert {"obj", "ptr", "size"} <= set(dir(plc.gpumemoryview))
    for name in ("deviceSynchronize", "getDevice"):
        assert callable(getattr(cupy.cuda.runtime, name))
    held = cupy.cuda.UnownedMemory(4096, 16, object(), 0)
    assert cupy.cuda.MemoryPointer(held, 0).ptr == 4096


def test_cudf_can_be_imported_after_nvcomp():
    """NVCOMP deletes from its package what cuDF looks for there."""
    line = "from ckpt_spill.store.device import nvcomp; nvcomp.import_library(); import cudf"
    subprocess.run([sys.executable, "-c", line], check=True, timeout=100)


def test_names_of_nvcomp():
    """NVCOMP, too; its functions tell of their parameters only in their documentation."""
    from nvidia import nvcomp

    assert nvcomp.BitstreamKind.RAW
    for name in ("algorithm", "bitstream_kind", "cuda_stream"):
        assert f"{name}:" in nvcomp.Codec.__init__.__doc__
    assert "srcs: list" in nvcomp.Codec.decode.__doc__
    assert "data_type: str" in nvcomp.Codec.decode.__doc__
    assert "sources: list" in nvcomp.as_arrays.__doc__
    assert isinstance(nvcomp.Array.buffer_size, property)
    assert "allocator: object" in nvcomp.set_device_allocator.__doc__
    if not cupy.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):
            nvcomp.Codec(algorithm="Zstd", bitstream_kind=nvcomp.BitstreamKind.RAW, cuda_stream=1)
    assert callable(cupy.cuda.alloc_pinned_memory)
    assert parameters(cupy.broadcast_to)[:2] == ["array", "shape"]


def test_the_classes_that_are_described():
    """The classes that are told by their names alone are where they are looked for; subclasses are left to pickle."""
    for name in rapids._CLASSES:
        kind = getattr(cudf, name)
        assert rapids.is_cudf(object.__new__(kind))

    class Own(cudf.DataFrame):
        pass

    assert not rapids.is_cudf(object.__new__(Own))
    assert rapids.is_cupy(on_host(np.zeros(2)))
    assert not rapids.is_cupy(np.zeros(2))
