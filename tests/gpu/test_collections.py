"""Collections that are on a GPU: saved, and opened again on the GPU and on the host."""

import functools
import importlib
import itertools

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask import delayed

import ckpt_spill as cs
from tests.gpu import missing
from tests.gpu.test_frames import SERIES, same
from tests.strict import diff
from tests.test_backends import Parts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(missing() is not None, reason=str(missing()))]
cudf, cupy, dask_cudf = (None if missing() else importlib.import_module(name) for name in ("cudf", "cupy", "dask_cudf"))

CUTS = [(0, 300), (300, 300), (300, 1000)]


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


@pytest.fixture(autouse=True)
def plain():
    """What is computed without a cluster is computed in this thread; text keeps its dtype."""
    with dask.config.set({"scheduler": "sync", "dataframe.convert-string": False}):
        yield


@pytest.fixture
def known_by_name(monkeypatch):
    """Dask knows frames by names that they are given, as it cannot hash all that may be nested in them."""
    names = itertools.count()

    def name(self):
        if "_name_of_test" not in self.__dict__:
            object.__setattr__(self, "_name_of_test", f"frame {next(names)}")
        return self.__dict__["_name_of_test"]

    frames = importlib.import_module("cudf.core.indexed_frame").IndexedFrame
    monkeypatch.setattr(frames, "__dask_tokenize__", name)


@functools.cache
def whole():
    """A frame of every dtype."""
    return cudf.DataFrame({name: make().iloc[:1000].reset_index(drop=True) for name, make in SERIES.items()})


def collection(value, name):
    """Make a collection of three slices, one of them empty."""
    parts = [value.iloc[start:stop] if hasattr(value, "iloc") else value[start:stop] for start, stop in CUTS]
    return dd.from_map(Parts(name, parts), range(len(parts)), meta=parts[1], enforce_metadata=False), parts


def test_frames_of_every_dtype(root, known_by_name):
    """A collection of dask_cudf's comes back as it was, and opens as pandas with one dtype for all partitions."""
    ddf, parts = collection(whole(), "frame")
    assert type(ddf) is dask_cudf.DataFrame
    manifest = cs.persist_to_disk(ddf, name="x", root=root)
    assert manifest.library == "cudf"
    assert "dataframe of cudf" in repr(manifest)
    back, shown = cs.rehydrate(manifest), cs.rehydrate(manifest, backend="pandas")
    assert type(back) is dask_cudf.DataFrame
    assert back.divisions == ddf.divisions
    for number, part in enumerate(parts):
        read = back.get_partition(number).compute()
        assert list(read.columns) == list(part.columns) == list(back._meta.columns)
        for name in part.columns:
            same(part[name], read[name])
            assert back._meta[name].dtype == part[name].dtype
        on_host = shown.get_partition(number).compute()
        assert diff(shown._meta, on_host.iloc[:0]) == []
        for name in part.columns:
            assert list(on_host[name].isna()) == list(part[name].isnull().to_pandas())


@pytest.mark.parametrize("name", SERIES)
def test_series(name, root, known_by_name):
    """A series of each dtype, alone."""
    made, parts = collection(SERIES[name]().rename("n"), "series")
    manifest = cs.persist_to_disk(made, name="x", root=root)
    assert (manifest.kind, manifest.library) == ("series", "cudf")
    back = cs.rehydrate(manifest)
    assert type(back) is dask_cudf.Series
    for number, part in enumerate(parts):
        same(part, back.get_partition(number).compute())


def test_indexes(root):
    """An index alone, a MultiIndex of a frame, and known divisions of a sorted one."""
    frame = cudf.DataFrame({"k": np.arange(1000) // 7, "t": cudf.Series(["a", "b"] * 500), "v": np.arange(1000.0)})
    ddf = dask_cudf.from_cudf(frame.set_index("v"), npartitions=3)
    back = cs.rehydrate(cs.persist_to_disk(ddf, name="sorted", root=root))
    assert back.divisions == ddf.divisions
    assert back.known_divisions
    assert cs.rehydrate("sorted", root=root, backend="pandas").divisions == ddf.divisions
    assert len(back.loc[100:199].compute()) == 100
    index = cs.persist_to_disk(ddf.index, name="index", root=root)
    assert index.kind == "index"
    assert cs.rehydrate(index).compute().equals(ddf.index.compute())
    groups = dask_cudf.from_cudf(frame, npartitions=3).groupby(["k", "t"])["v"].sum()
    found = cs.rehydrate(cs.persist_to_disk(groups, name="groups", root=root))
    pd.testing.assert_series_equal(found.compute().to_pandas().sort_index(), groups.compute().to_pandas().sort_index())


def test_what_follows_a_read(root):
    """Projections, shuffles and reductions of what was rehydrated."""
    frame = cudf.DataFrame({"k": np.arange(1000) % 7, "x": np.arange(1000.0), "t": cudf.Series(["a"] * 1000)})
    ddf = dask_cudf.from_cudf(frame, npartitions=4).shuffle("k")
    manifest = cs.persist_to_disk(ddf, name="x", root=root)
    back = cs.rehydrate(manifest)
    want = frame.groupby("k")["x"].sum().to_pandas().sort_index()
    pd.testing.assert_series_equal(back.groupby("k")["x"].sum().compute().to_pandas().sort_index(), want)
    assert list(cs.rehydrate(manifest, columns=["t", "x"]).get_partition(0).compute().columns) == ["t", "x"]
    assert back.merge(back[["k"]].drop_duplicates(), on="k")["x"].sum().compute() == frame["x"].sum()


def test_two_backends_in_one_graph(root):
    """A checkpoint opened on the GPU and on the host at once gives each what it asked for."""
    ddf, _ = collection(whole()[["int32", "str"]], "two")
    manifest = cs.persist_to_disk(ddf, name="x", root=root)
    on_gpu, on_host = dask.compute(cs.rehydrate(manifest), cs.rehydrate(manifest, backend="pandas"))
    assert type(on_gpu) is cudf.DataFrame
    assert type(on_host) is pd.DataFrame
    assert list(on_gpu["int32"].dropna().to_pandas()) == list(on_host["int32"].dropna())


ARRAYS = {
    "plain": lambda: cupy.arange(24.0).reshape(4, 6),
    "fortran": lambda: cupy.asfortranarray(cupy.arange(24, dtype="i2").reshape(4, 6)),
    "bools": lambda: cupy.arange(24).reshape(4, 6) % 2 == 0,
    "complex": lambda: cupy.arange(24, dtype="c8").reshape(4, 6),
    "zero axes": lambda: cupy.array(3.5),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name, root):
    """Arrays of CuPy's chunks come back as such, and open as numpy's."""
    array = ARRAYS[name]()
    x = da.from_array(array, chunks=(2,) * array.ndim, asarray=False)
    manifest = cs.persist_to_disk(x, name="x", root=root, token=name)
    assert manifest.library == "cupy"
    back, shown = cs.rehydrate(manifest), cs.rehydrate(manifest, backend="pandas")
    assert type(back._meta) is cupy.ndarray
    assert type(shown._meta) is np.ndarray
    assert (back.chunks, back.dtype) == (x.chunks, x.dtype)
    assert bool((back.compute() == array).all())
    assert np.array_equal(shown.compute(), cupy.asnumpy(array))
    assert (back + 1).sum().compute() == (array + 1).sum()


def test_delayed(root):
    """A frame that is a Delayed opens with both libraries; a list of frames is a list of frames."""
    frame = cudf.DataFrame({"a": [1, None, 3]})
    one = cs.persist_to_disk(delayed(frame.copy, pure=False)(), name="one", root=root)
    assert type(cs.rehydrate(one).compute()) is cudf.DataFrame
    assert type(cs.rehydrate(one, backend="pandas").compute()) is pd.DataFrame
    many = cs.persist_to_disk(delayed(lambda: [frame, frame], pure=False)(), name="many", root=root)
    assert [type(f) for f in cs.rehydrate(many).compute()] == [cudf.DataFrame] * 2


PANDAS = {
    "numbers": pd.Series([1.5, np.nan, 3, -0.0]),
    "integers": pd.Series([1, 2, 3, 4], dtype="int16"),
    "text": pd.Series(["a", None, "", "ü"], dtype="str"),
    "objects of text": pd.Series(["a", None, "", "ü"], dtype=object),
    "times": pd.Series(pd.to_datetime(["2030", None, "1931", "1970"])),
    "zoned": pd.Series(pd.to_datetime(["2030", None, "1931", "1970"]).tz_localize("Asia/Kathmandu")),
    "categories": pd.Series(pd.Categorical(["b", None, "a", "b"], ["b", "a", "c"], ordered=True)),
    "nullable": pd.Series([1, None, 3, 4], dtype="Int64"),
    "arrow": pd.Series([1, None, 3, 4], dtype="int64[pyarrow]"),
}


@pytest.mark.parametrize("name", PANDAS)
def test_what_pandas_saved_opens_on_the_gpu(name, root):
    """The meta tells the dtypes that the partitions have, which hold what pandas had."""
    frame = pd.DataFrame({"v": PANDAS[name], "n": range(4)}, index=[4, 5, 6, 8])
    manifest = cs.persist_to_disk(dd.from_pandas(frame, npartitions=2), name="x", root=root)
    back = cs.rehydrate(manifest, backend="cudf")
    assert type(back) is dask_cudf.DataFrame
    assert back.divisions == (4, 6, 8)
    read = back.compute()
    assert type(read) is cudf.DataFrame
    assert back._meta["v"].dtype == read["v"].dtype
    assert list(read["v"].isnull().to_pandas()) == list(frame["v"].isna() & (name != "numbers"))
    assert list(read.index.to_pandas()) == list(frame.index)
    assert back["n"].sum().compute() == 6


def test_what_numpy_saved_opens_on_the_gpu(root):
    """Chunks of numpy's become CuPy's."""
    x = da.arange(24, chunks=5).astype("f4")
    back = cs.rehydrate(cs.persist_to_disk(x, name="x", root=root), backend="cudf")
    assert type(back._meta) is cupy.ndarray
    assert type(back.compute()) is cupy.ndarray
    assert float(back.sum().compute()) == 276


def test_what_a_gpu_does_not_have_is_said_at_once(root):
    """Columns that cuDF has no dtype for are refused by ``rehydrate``, which names the way out."""
    frame = pd.DataFrame({"c": [1j, 2]})
    manifest = cs.persist_to_disk(dd.from_pandas(frame, npartitions=1), name="x", root=root)
    with pytest.raises(cs.ReadError, match="backend='pandas'"):
        cs.rehydrate(manifest, backend="cudf")


@pytest.mark.slow
def test_a_cluster_is_lost_between(root):
    """A collection of dask_cudf's, saved by one LocalCUDACluster, is there after a restart and for the next cluster."""
    from dask_cuda import LocalCUDACluster
    from distributed import Client, LocalCluster

    frame = cudf.DataFrame({"k": np.arange(10_000) % 7, "x": np.arange(10_000.0)})
    with LocalCUDACluster(n_workers=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        ddf = dask_cudf.from_cudf(frame, npartitions=6).shuffle("k")
        manifest = cs.persist_to_disk(ddf, name="x", root=root)
        client.restart()
        assert cs.rehydrate("x", root=root)["x"].sum().compute() == frame["x"].sum()
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster):
        shown = cs.rehydrate(manifest, backend="pandas")
        assert type(shown.get_partition(0).compute()) is pd.DataFrame
        assert shown["x"].sum().compute() == frame["x"].sum()
