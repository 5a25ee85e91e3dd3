"""Collections of dask_cudf's and CuPy's over host memory: saved, opened again as theirs and as pandas'."""

import importlib

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask import delayed

import ckpt_spill as cs
from ckpt_spill.store.device import libraries
from ckpt_spill.store.frames import columns
from ckpt_spill.store.inline import embed, extract
from tests import host_columns as host
from tests import host_device
from tests.strict import diff
from tests.test_backends import PARTS, lose, saved
from tests.test_frames_cudf import COLUMNS, expected
from tests.test_frames_rapids import MISSING, cudf, cupy, host_for_device, made, numpy_of, on_host, same

__all__ = ["host_for_device"]  # a fixture, which pytest finds here

pytestmark = [pytest.mark.rapids, pytest.mark.skipif(MISSING, reason="needs cuDF")]
dask_cudf = None if MISSING else importlib.import_module("dask_cudf")


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


def table(start, stop):
    columns_of = [host.column(*COLUMNS[name], start=start, stop=stop) for name in COLUMNS]
    return made(host.frame(columns_of, labels=pd.Index(list(COLUMNS))))


@pytest.fixture
def manifest(root):
    return saved([table(*rows) for rows in PARTS], table(0, 0), root)


def test_collections_of_cudf_are_saved(manifest, root):
    """What is rehydrated is a collection of dask_cudf's; saved again, it opens as pandas with every dtype."""
    back = cs.rehydrate(manifest)
    assert type(back) is dask_cudf.DataFrame
    assert type(back._meta) is cudf.DataFrame
    again = cs.persist_to_disk(back, name="again", root=root)
    assert (again.kind, again.library) == ("dataframe", "cudf")
    assert same(extract(again.collection["meta"]), table(0, 0))
    as_pandas, as_cudf = cs.rehydrate(again, backend="pandas"), cs.rehydrate("again", root=root)
    assert as_pandas.divisions == as_cudf.divisions == back.divisions
    for number, (start, stop) in enumerate(PARTS):
        assert same(as_cudf.get_partition(number).compute(), table(start, stop))
        part = as_pandas.get_partition(number).compute()
        for name, (array, _) in COLUMNS.items():
            assert diff(expected(name, array.slice(start, stop - start)), part[name].rename(None)) == []


def test_series_and_indexes_of_cudf_are_saved(root):
    """The other collections of dask_cudf's."""
    axis = columns.Axis([host.column(pa.array([4, 5, 7]))], ["i"])
    series = made(columns.Table("series", axis, [host.column(pa.array([1, 2, None]))], "n", {}, unique=False))
    index = made(columns.Table("index", axis, [], None, {}, unique=False))
    for value, known, kind in ((series, dd.Series, dask_cudf.Series), (index, dd.Index, dask_cudf.Index)):
        back = cs.rehydrate(saved([value, value], value, root, known, known.__name__))
        assert type(back) is kind
        again = cs.persist_to_disk(back, name="again", root=root, overwrite=True)
        assert (again.kind, again.library) == (known.__name__.lower(), "cudf")
        assert same(cs.rehydrate(again).get_partition(1).compute(), value)
        shown = cs.rehydrate(again, backend="pandas").get_partition(1).compute()
        assert list(shown) == ([1, 2, pd.NA] if known is dd.Series else [4, 5, 7])


def test_projections_and_what_is_left(manifest):
    """Columns are chosen by the read, and partitions that are lost are skipped, also in what is cuDF's."""
    lose(manifest, 0)
    with pytest.warns(UserWarning, match="1 of 6 partitions are skipped"):
        back = cs.rehydrate(manifest, columns=["str", "int8"], missing="skip")
    assert type(back) is dask_cudf.DataFrame
    part = back.get_partition(0).compute()
    assert type(part) is cudf.DataFrame
    assert list(part.columns) == ["str", "int8"]


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.ones((2, 3), "c8"))])
def test_arrays_of_cupy_are_saved(array, root):
    """Dask arrays whose chunks are CuPy's."""
    block = delayed(lambda: on_host(array), pure=False)()
    meta = on_host(np.empty((0, 0), array.dtype))
    x = da.from_delayed(block, array.shape, meta=meta)
    saved_array = cs.persist_to_disk(x, name="x", root=root)
    assert (saved_array.kind, saved_array.library) == ("array", "cupy")
    back = cs.rehydrate(saved_array)
    assert type(back._meta) is cupy.ndarray
    (read,) = dask.get(dict(back.dask), [(back.name, 0, 0)])
    assert type(read) is cupy.ndarray
    assert np.array_equal(numpy_of(read), array)
    assert diff(array, cs.rehydrate(saved_array, backend="pandas").to_delayed()[0, 0].compute()) == []


def test_arrays_of_numpy_go_to_the_device(root):
    """What was saved from numpy is opened as CuPy's: meta and chunks."""
    saved_array = cs.persist_to_disk(da.ones((4, 2), chunks=(2, 2)), name="x", root=root)
    back = cs.rehydrate(saved_array, backend="cudf")
    assert type(back._meta) is cupy.ndarray
    assert back.chunks == ((2, 2), (2,))
    (read,) = dask.get(dict(back.dask), [(back.name, 1, 0)])
    assert type(read) is cupy.ndarray
    assert np.array_equal(numpy_of(read), np.ones((2, 2)))


def test_frames_of_pandas_go_to_the_device(root, monkeypatch):
    """What was saved from pandas is opened as cuDF's, by cuDF's own conversion: meta and partitions."""
    given = []

    def from_pandas(value, **kwargs):
        given.append(len(value))
        return made(host.frame([host.column(pa.array(value["a"]))], labels=value.columns))

    monkeypatch.setattr(cudf, "from_pandas", from_pandas)
    saved_frame = cs.persist_to_disk(dd.from_pandas(pd.DataFrame({"a": [1, 2, 3]})), name="x", root=root)
    back = cs.rehydrate(saved_frame, backend="cudf")
    assert type(back) is dask_cudf.DataFrame
    assert set(given) == {0}
    assert type(back.get_partition(0).compute()) is cudf.DataFrame
    assert set(given) == {0, 3}


def test_the_device_is_missed_at_once(manifest, monkeypatch):
    """RAPIDS may be installed where there is no GPU: ``rehydrate`` says so, and how the checkpoint can be opened."""
    monkeypatch.setattr(libraries, "has_device", host_device.has_device)
    monkeypatch.setattr(libraries, "check", host_device.check)
    if cupy.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(cs.ReadError, match="backend='pandas'"):
        cs.rehydrate(manifest)
    assert len(cs.rehydrate(manifest, backend="pandas").get_partition(0).compute()) == 18


def test_meta_needs_no_device(host_for_device):
    """A collection's meta is described without asking the device for anything."""
    payload = embed(table(0, 0))
    assert payload["value"]["library"] == "cudf"
    assert not any(payload["buffers"])
