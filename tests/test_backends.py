"""Checkpoints of one library opened with another. That they came from a GPU is what their descriptions say.

Partitions stand for objects of cuDF's and CuPy's: their columns are described by the code that describes those.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask import delayed
from dask.core import flatten

import ckpt_spill as cs
from ckpt_spill.collections import ArrayAdapter, FrameAdapter, token_of
from ckpt_spill.store.device import libraries
from ckpt_spill.store.frames import columns, rapids, values
from ckpt_spill.store.inline import embed
from tests import host_columns as host
from tests.spilling import keep, spill_all, written
from tests.strict import diff
from tests.test_frames_cudf import AXES, CATEGORIES, COLUMNS, ROWS, TEXT, axis_of, expected

PARTS = list(ROWS.values())
NUMBERS, LABELS = pa.array([1, 2, None]), pd.Index(["a", "b"])


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


@pytest.fixture(autouse=True)
def no_cudf(monkeypatch):
    """None of it is installed, wherever this runs."""
    for name in ("cudf", "cupy"):
        monkeypatch.setitem(sys.modules, name, None)


class Parts:
    """Gives partitions by their numbers; known to dask by a name, as it cannot tell what is in them."""

    def __init__(self, name, parts):
        self.name, self.parts = name, parts

    def __call__(self, number):
        return self.parts[number]

    def __dask_tokenize__(self):
        return self.name


def saved(parts, meta, root, kind=dd.DataFrame, name="gpu"):
    """Save partitions that stand for those of a GPU, through the store, with a manifest that tells of such a meta."""
    known = {dd.DataFrame: pd.DataFrame({"a": [1]}), dd.Series: pd.Series([1]), dd.Index: pd.Index([1])}[kind]
    with telling_of(meta, FrameAdapter), dask.config.set({"scheduler": "sync", "dataframe.convert-string": False}):
        frame = dd.from_map(Parts(name, parts), range(len(parts)), meta=known, enforce_metadata=False)
        return cs.persist_to_disk(frame, name=name, root=root, token=name)


@contextlib.contextmanager
def telling_of(meta, adapter):
    """Let manifests have this meta: dask has to have one of a library that is here."""
    describe = adapter.describe
    with host.standing_in(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "describe", lambda self, value: describe(self, value) | {"meta": embed(meta)})
        yield


def table(start, stop):
    made = [host.column(*COLUMNS[name], start=start, stop=stop) for name in COLUMNS]
    return host.OfCudf(host.frame(made, labels=pd.Index(list(COLUMNS))))


@pytest.fixture
def manifest(root):
    """A frame of every dtype, in partitions with and without nulls, sliced and empty."""
    return saved([table(*rows) for rows in PARTS], table(0, 0), root)


def small(root, name="gpu"):
    """A frame of two columns, in two partitions."""
    text = pa.array(["x", None, "z"])
    whole, empty = (
        host.OfCudf(host.frame([host.column(NUMBERS, stop=stop), host.column(text, TEXT, stop=stop)], labels=LABELS))
        for stop in (3, 0)
    )
    return saved([whole, whole], empty, root, name=name)


WANT = pd.DataFrame({"a": pd.array([1, 2, None], "int64[pyarrow]"), "b": pd.array(["x", None, "z"], "str")})


# --------------------------------------------------------------------------- from a GPU to a machine without one
def test_a_checkpoint_of_cudf_opens_as_pandas(manifest):
    """A column of each dtype shows in each partition what pandas makes of the data, in the dtype of the meta."""
    back = cs.rehydrate(manifest, backend="pandas")
    assert list(back.columns) == list(COLUMNS)
    for number, (start, stop) in enumerate(PARTS):
        part = back.get_partition(number).compute()
        assert diff(back._meta, part.iloc[:0]) == []
        for name, (array, _) in COLUMNS.items():
            want = expected(name, array.slice(start, stop - start))
            assert diff(want, part[name].rename(None)) == [], (name, start, stop)


def test_the_manifest_and_its_file_tell_the_library(manifest, tmp_path):
    """Of what library the partitions are can be told without it, also from a manifest that was saved and loaded."""
    manifest.save(tmp_path / "m.json")
    loaded = cs.Manifest.load(tmp_path / "m.json")
    assert loaded.library == "cudf"
    assert "dataframe of cudf" in repr(loaded)
    back = cs.rehydrate(str(tmp_path / "m.json"), backend="pandas")
    assert back.npartitions == len(PARTS)


@pytest.mark.parametrize("name", CATEGORIES)
def test_categoricals(name, root):
    """Categories are known to the collection."""
    labels, words, want = CATEGORIES[name]
    codes = pa.array([0, None, 2] if len(labels) else [None] * 3, pa.uint8())
    whole, empty = (
        host.OfCudf(host.frame([host.column(codes, {}, host.column(labels, words), ordered=True, stop=stop)]))
        for stop in (3, 0)
    )
    back = cs.rehydrate(saved([whole], empty, root), backend="pandas")
    assert list(back["c0"].cat.categories) == list(want)
    signed = np.array([0, -1, 2] if len(labels) else [-1] * 3, "i1")
    assert diff(pd.Categorical.from_codes(signed, want, ordered=True), back.compute()["c0"].array) == []


@pytest.mark.parametrize("name", AXES)
def test_indexes(name, root):
    """Frames, series and indexes, by each class of index, of which those without levels are collections themselves."""
    axis, want = axis_of(AXES[name][0]), AXES[name][1]
    of_series = columns.Table("series", axis, [host.column(NUMBERS)], "n", {"unit": "mm"}, unique=False)
    series = host.OfCudf(of_series)
    back = cs.rehydrate(saved([series], series, root, dd.Series, "series"), backend="pandas").compute()
    assert diff(want, back.index) == []
    assert (back.name, back.attrs) == ("n", {"unit": "mm"})
    if not axis.levels:
        alone = host.OfCudf(columns.Table("index", axis, [], None, {}, unique=False))
        back = cs.rehydrate(saved([alone], alone, root, dd.Index, "index"), backend="pandas")
        assert isinstance(back, dd.Index)
        assert diff(want, back.get_partition(0).compute()) == []


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.ones((2, 3), "c8"))])
def test_arrays(array, root):
    """Arrays of CuPy's open as numpy's, with their layout."""
    blocks = [[da.from_delayed(delayed(host.OfCupy)(array), array.shape, array.dtype)] * 2]
    meta = host.OfCupy(np.empty((0, 0), array.dtype))
    with telling_of(meta, ArrayAdapter), dask.config.set(scheduler="sync"):
        made = cs.persist_to_disk(da.block(blocks), name="x", root=root)
    assert made.library == "cupy"
    assert "array of cupy" in repr(made)
    back = cs.rehydrate(made, backend="pandas")
    assert type(back._meta) is np.ndarray
    assert diff(array, back.to_delayed()[0, 1].compute()) == []
    assert np.array_equal(back.compute(), np.hstack([array, array]))


def test_delayed_and_bags(root):
    """A Delayed that is a frame of cuDF's opens as pandas', too; what is neither a frame nor an array stays itself."""
    with host.standing_in(), dask.config.set(scheduler="sync"):
        value = host.OfCudf(host.frame([host.column(NUMBERS)]))
        one = cs.persist_to_disk(delayed(lambda: value, pure=False)(), name="one", root=root)
        two = cs.persist_to_disk(db.from_sequence([1, "x"], npartitions=1), name="two", root=root)
    assert one.library is two.library is None
    assert diff(WANT["a"].rename("c0"), cs.rehydrate(one, backend="pandas").compute()["c0"]) == []
    assert cs.rehydrate(two, backend="pandas").compute() == [1, "x"]
    with pytest.raises(cs.ReadError, match="backend='pandas'"):
        cs.rehydrate(one).compute()


def test_projections(manifest, monkeypatch):
    """Columns that are not wanted are not read, whatever the library."""
    asked = []
    decode = values.plan
    monkeypatch.setattr(values, "plan", lambda *args: asked.append(args[2:]) or decode(*args))
    back = cs.rehydrate(manifest, backend="pandas")
    asked.clear()
    with dask.config.set(scheduler="sync"):
        assert back[["list", "int8"]].compute().columns.tolist() == ["list", "int8"]
        assert len(back["struct"].compute()) == sum(stop - start for start, stop in PARTS)
        chosen = cs.rehydrate(manifest, backend="pandas", columns=["str"])
        assert chosen.columns.tolist() == ["str"]
        assert len(chosen.compute()) == sum(stop - start for start, stop in PARTS)
    of_partitions = {(tuple(some), library) for some, library in asked if some is not None}
    assert of_partitions == {(("int8", "list"), "pandas"), (("struct",), "pandas"), (("str",), "pandas")}


# ----------------------------------------------------------------------------------------------------- what is refused
def test_the_way_out_is_named_at_once(root):
    """Where nothing of RAPIDS is, ``rehydrate`` itself says how a checkpoint can be opened, and computes nothing."""
    of_cudf = small(root)
    with pytest.raises(cs.ReadError, match=r"cudf.*backend='pandas'"):
        cs.rehydrate(of_cudf)
    for collection, name in ((da.ones(3), "cupy"), (dd.from_pandas(pd.DataFrame({"a": [1]})), "cudf")):
        made = cs.persist_to_disk(collection, root=root)
        assert made.library == {"array": "numpy", "dataframe": "pandas"}[made.kind]
        with pytest.raises(cs.ReadError, match=rf"{name}.*backend='pandas'"):
            cs.rehydrate(made, backend="cudf")


def test_what_is_neither_a_frame_nor_an_array_stays_what_it_is(root):
    """Also where there is no GPU; a Delayed may be a frame, which is found out when it is read."""
    with dask.config.set(scheduler="sync"):
        made = cs.persist_to_disk(db.range(3, npartitions=1), name="bag", root=root)
        assert made.library is None
        assert cs.rehydrate(made, backend="cudf").compute() == [0, 1, 2]
        one = cs.persist_to_disk(delayed(lambda: pd.DataFrame({"a": [1]}), pure=False)(), name="one", root=root)
        with pytest.raises(cs.ReadError, match=r"cudf.*backend='pandas'"):
            cs.rehydrate(one, backend="cudf").compute()


@pytest.mark.parametrize("backend", ["polars", "numpy", "", ["pandas"]])
def test_other_words_are_refused(backend, root):
    """The choices are listed before anything is looked for."""
    with pytest.raises(cs.RefusedError, match="'pandas', 'cudf'"):
        cs.rehydrate("no such checkpoint", backend=backend, root=root)


def test_a_copy_is_not_to_blame_for_what_is_not_installed(root):
    """A partition that cannot be made here is not taken for damaged: nobody is told to repair it."""
    with host.standing_in(), dask.config.set(scheduler="sync"):
        value = host.OfCudf(host.frame([host.column(NUMBERS)]))
        one = cs.persist_to_disk(delayed(lambda: value, pure=False)(), name="one", root=root)
    with pytest.raises(cs.ReadError) as caught:
        cs.rehydrate(one).compute()
    assert not isinstance(caught.value, cs.CorruptPartitionError | cs.MissingPartitionError)
    assert "repair" not in str(caught.value)
    one.verify()


# ------------------------------------------------------------------------------------------------------ two at once
@pytest.fixture
def device_in_the_mind(monkeypatch):
    """What is read for a device is pandas' and numpy's, doubled: a value that cannot be taken for the other."""
    monkeypatch.setattr(libraries, "rapids", lambda name: None)
    monkeypatch.setattr(libraries, "check", lambda: None)
    monkeypatch.setattr(rapids, "cross", lambda value: value * 2)


def make(kind):
    frame = pd.DataFrame({"a": [1.0, 2, 3, 4]})
    return {
        "dataframe": lambda: dd.from_pandas(frame, npartitions=2),
        "series": lambda: dd.from_pandas(frame["a"], npartitions=2),
        "array": lambda: da.from_array(frame["a"].to_numpy(), chunks=2),
        "bag": lambda: db.from_delayed([delayed(list)([1.0, 2, 3, 4])]),
        "delayed": delayed(frame.to_numpy),
    }[kind]()


@pytest.mark.parametrize("kind", ["dataframe", "series", "array", "bag", "delayed"])
def test_a_key_names_one_content(kind, root, device_in_the_mind):
    """One checkpoint with three backends in one graph: each is what was asked for, and no two share a key."""
    made = cs.persist_to_disk(make(kind), name=kind, root=root)
    backends = [None, "pandas", "cudf"]
    opened = [cs.rehydrate(made, backend=backend) for backend in backends]
    keys = [set(flatten(c.__dask_keys__())) for c in opened]
    assert len(set.union(*keys)) == sum(map(len, keys))
    assert len(set(map(token_of, opened))) == len(opened)  # nor may a checkpoint of one be taken for that of another
    plain, host_only, doubled = dask.compute(*opened, scheduler="sync")
    want = make(kind).compute()
    same = list.__eq__ if kind == "bag" else lambda a, b: bool(np.all(np.asarray(a) == np.asarray(b)))
    assert same(plain, want)
    assert same(host_only, want)
    assert same(doubled, want * 2)
    assert [cs.rehydrate(made, backend=b).__dask_keys__() for b in backends] == [c.__dask_keys__() for c in opened]


def test_two_backends_in_one_expression(root, device_in_the_mind):
    """Optimising an expression does not make one of two reads, nor do projections."""
    made = cs.persist_to_disk(make("dataframe"), name="x", root=root)
    one, two = cs.rehydrate(made), cs.rehydrate(made, backend="cudf")
    assert (one["a"] + two["a"]).sum().compute(scheduler="sync") == 3 * 10


def test_checkpoint_and_the_other_spelling_pass_it_on(root, tmp_path, device_in_the_mind):
    """``checkpoint`` and ``DataFrameCheckpoint.load`` take it, too."""
    back = cs.checkpoint(make("dataframe"), "x", backend="cudf", root=root)
    assert back["a"].sum().compute(scheduler="sync") == 20
    other = cs.DataFrameCheckpoint.create(make("dataframe"), tmp_path / "other").load(backend="cudf")
    assert other["a"].sum().compute(scheduler="sync") == 20


# ------------------------------------------------------------------------------------------------------------ losses
def lose(manifest, partition):
    """Remove the file of a partition."""
    (store,) = manifest.stores
    name, _ = manifest.files(0)[partition]
    (path,) = Path(store.root).rglob(name)
    path.unlink()


def test_skipping(root):
    """What is left when partitions are skipped is of the library that is asked for."""
    made = small(root)
    lose(made, 0)
    with pytest.warns(UserWarning, match="1 of 2 partitions are skipped"):
        back = cs.rehydrate(made, backend="pandas", missing="skip")
    assert back.npartitions == 1
    assert diff(WANT.iloc[:0], back._meta) == []
    assert diff(WANT, back.compute()) == []


def test_computing_again(root, device_in_the_mind):
    """What is made again when partitions are lost is read as what is asked for."""
    source = make("dataframe")
    made = cs.persist_to_disk(source, name="x", root=root)
    lose(made, 1)
    back = cs.rehydrate(made, backend="cudf", missing="recompute", source=source)
    assert back["a"].sum().compute(scheduler="sync") == 20


# ---------------------------------------------------------------------------------------------------------- spilling
@pytest.mark.slow
def test_what_was_crossed_is_not_what_the_file_holds(cluster, root):
    """Evicting it writes nothing, but a new checkpoint of it has files of its own, which open without RAPIDS."""
    made = small(root)
    client = cluster(2, data=cs.host_spill(root))
    kept = keep(client, cs.rehydrate(made, backend="pandas"))
    spill_all(client)
    assert written(client) == 0
    again = cs.persist_to_disk(kept, name="again", root=root)
    assert again.library == "pandas"
    assert diff(WANT, cs.rehydrate(again).get_partition(1).compute()) == []
    assert diff(WANT, kept.get_partition(0).compute()) == []
