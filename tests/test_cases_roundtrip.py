"""Every hard collection is saved by one cluster, which is shut down, and read by another one of another size."""

from __future__ import annotations

import uuid

import dask
import dask.array
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray
from dask import delayed

import ckpt_spill as cs
from tests.cases import CASES
from tests.cases.building import frame_of
from tests.cases.comparison import diff_partition, diff_structures, partitions
from tests.clusters import running_cluster
from tests.strict import diff


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """For each case the path of its manifest, or the error that saving it ended with. The cluster is gone."""
    directory = tmp_path_factory.mktemp("cases")
    outcomes = {}
    with running_cluster(2):
        for name, case in CASES.items():
            path = directory / f"{name}.json"
            try:
                cs.persist_to_disk(case.build(), name=name, root=directory / "root", manifest=path, durable=False)
            except Exception as error:
                outcomes[name] = error
            else:
                outcomes[name] = path
    return outcomes


@pytest.fixture(scope="module")
def another_cluster(saved):
    """A client of a cluster that has nothing in common with the one that saved but the disk."""
    with running_cluster(3) as client:
        yield client


@pytest.mark.parametrize("name", CASES)
def test_what_comes_back_is_what_was_saved(name, saved, another_cluster):
    """Type, meta, divisions or chunks, and every partition in its place, to the bit."""
    if isinstance(saved[name], Exception):
        raise saved[name]
    read, original = cs.rehydrate(saved[name]), CASES[name].build()
    assert diff_structures(original, read) == []
    parts = partitions(read)
    assert len(parts) == len(partitions(original))
    compare = delayed(diff_partition, pure=False)
    found = another_cluster.compute([compare(name, number, part) for number, part in enumerate(parts)], sync=True)
    assert [line for lines in found for line in lines] == []


@pytest.mark.parametrize(
    ("name", "limit"),
    [("A48-views", 20_000), ("A50-slices_of_arrow_tables", 50_000), ("A50-short_slices_of_long_text", 20_000)],
)
def test_a_part_of_something_big_is_saved_as_a_small_thing(name, limit, saved):
    """Bytes on disk follow what is in a slice or a repeated row, not what they are cut out of (A48, A50)."""
    assert cs.Manifest.load(saved[name]).stored_nbytes < limit


def assign(partition):
    """Change a partition in place."""
    if isinstance(partition, pd.DataFrame):
        partition.iloc[0, 0] = 7
        return partition.iloc[0, 0]
    partition[0, 0] = 7
    return partition[0, 0]


@pytest.mark.parametrize("name", ["A47-writeable_blocks", "A47-a_frame_made_of_an_array"])
def test_what_comes_back_can_be_changed_in_place(name, saved, another_cluster):
    """Arrays and frames are writeable (A47)."""
    parts = [delayed(assign)(part) for part in partitions(cs.rehydrate(saved[name]))]
    assert set(another_cluster.compute(parts, sync=True)) == {7}


@pytest.mark.parametrize("convert", [True, False])
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("A31")])
def test_text_is_not_converted_on_reading(name, convert, saved, another_cluster):
    """Dask's option to make strings of objects changes nothing, whatever it is when a collection is read (A31)."""
    with dask.config.set({"dataframe.convert-string": convert}):
        read = cs.rehydrate(saved[name])
        assert diff_structures(CASES[name].build(), read) == []
        parts = [delayed(diff_partition)(name, number, part) for number, part in enumerate(partitions(read))]
        assert another_cluster.compute(parts, sync=True) == [[]] * len(parts)


def test_the_known_categories_are_known_again(saved, another_cluster):
    """Code that needs the categories in advance works on what was read (A10)."""
    read = cs.rehydrate(saved["A10-known_categories"])
    assert read.c.cat.known
    assert list(read.c.cat.categories) == list("cabz")
    assert read.pivot_table(index="v", columns="c", values="v").compute().columns.tolist() == list("cabz")


def test_collections_given_together_are_computed_together(client, tmp_path):
    """Work that several collections share runs once, as only then are the results of it equal (A62)."""
    shared = delayed(uuid.uuid4, pure=False)()
    first, second = delayed(lambda x: ("a", x))(shared), delayed(lambda x: ["b", x])(shared)
    manifests = cs.persist_to_disk(first, second, root=tmp_path / "root")
    a, b = dask.compute(*map(cs.rehydrate, manifests))
    assert (a[0], b[0], type(a), type(b)) == ("a", "b", tuple, list)
    assert a[1] == b[1]


def noisy(number):
    """A partition that is another one each time it is made."""
    return pd.DataFrame({"i": [number] * 3, "r": np.random.default_rng().random(3), "t": [uuid.uuid4().hex] * 3})


def test_what_cannot_be_made_again_is_not(client, tmp_path):
    """A saved random result is the same at each reading; when a file of it is gone, that is an error (A63)."""
    manifest = cs.persist_to_disk(dd.from_map(noisy, range(6)), name="noisy", root=tmp_path / "root")
    first, second = (cs.rehydrate(manifest).compute() for _ in range(2))
    assert diff(first, second) == []
    next((tmp_path / "root").rglob("*.part")).unlink()
    with pytest.raises(cs.MissingPartitionError, match=r"out of reach: [0-5],"):
        cs.rehydrate(manifest).compute()


def test_a_source_that_can_be_read_once_is_read_once(client, tmp_path):
    """A partition that is an iterator is saved without using up anything that others need (A60)."""
    manifest = cs.persist_to_disk(CASES["A60-iterators"].build(), root=tmp_path / "root")
    read = cs.rehydrate(manifest)
    assert [read.compute() for _ in range(2)] == [CASES["A60-iterators"].build().compute(scheduler="synchronous")] * 2


def test_partitions_are_those_of_the_optimised_collection(client, tmp_path):
    """Reading few columns of small files, dask makes one partition of several; those come back (C07)."""
    (tmp_path / "files").mkdir()
    for number in range(12):
        part = pd.DataFrame({f"c{column}": np.arange(10.0) + number for column in range(20)})
        part.to_parquet(tmp_path / "files" / f"{number:02}.parquet")
    narrow = dd.read_parquet(tmp_path / "files")[["c3"]] + 1
    assert narrow.optimize().npartitions < narrow.npartitions
    read = cs.rehydrate(cs.persist_to_disk(narrow, root=tmp_path / "root"))
    assert read.npartitions == narrow.optimize().npartitions
    assert diff(narrow.compute(), read.compute()) == []


def test_xarray_is_refused_by_name(client, tmp_path):
    """What is not a collection of the supported kinds is refused, with its type and the list of them (A72)."""
    values = xarray.DataArray(dask.array.ones((4, 6), chunks=2), dims=("y", "x"), attrs={"affine": {"m": np.eye(2)}})
    for refused in (values, values.to_dataset(name="v"), pd.DataFrame({"a": [1]}), [1, 2]):
        with pytest.raises(cs.UnsupportedCollectionError, match=rf"{type(refused).__name__}.*Array, Bag and Delayed"):
            cs.persist_to_disk(refused, root=tmp_path / "root")
    assert not (tmp_path / "root").exists()


def without_a_gpu():
    """Why nothing of RAPIDS can run here; None where it can."""
    try:
        import cudf

        cudf.Series([1])
    except Exception as error:
        return f"needs a GPU and cudf: {type(error).__name__}: {error}"
    return None


@pytest.mark.gpu
@pytest.mark.skipif(without_a_gpu() is not None, reason=str(without_a_gpu()))
@pytest.mark.parametrize("number", ["A70", "A71", "A74"])
def test_collections_on_a_gpu(number, client, tmp_path):
    """Frames of cudf and arrays of cupy come back as such (A70, A71, A74)."""
    build = {"A70": nested_cudf, "A71": cudf_with_empty_partitions, "A74": cupy_by_column}[number]
    collection = build()
    read = cs.rehydrate(cs.persist_to_disk(collection, root=tmp_path / "root"))
    pairs = zip(partitions(collection), partitions(read), strict=True)
    assert [client.compute(delayed(same_on_gpu)(*pair), sync=True) for pair in pairs] == [True] * len(partitions(read))


def same_on_gpu(saved, read):
    if hasattr(saved, "to_arrow"):
        return (
            type(saved) is type(read)
            and saved.to_arrow().equals(read.to_arrow())
            and (saved.dtypes == read.dtypes).all()
        )
    return type(saved) is type(read) and saved.strides == read.strides and bool((saved == read).all())


def nested_cudf():
    import cudf

    lists = [{"l": [[number, None], []], "s": [{"a": number}, {"a": None}]} for number in range(3)]
    return frame_of(lambda: [cudf.DataFrame(columns) for columns in lists])


def cudf_with_empty_partitions():
    import cudf

    values = [[1, 2], [None, 3], []]
    return frame_of(lambda: [cudf.DataFrame({"v": cudf.Series(part, dtype="int64")}) for part in values])


def cupy_by_column():
    import cupy

    whole = dask.array.from_array(np.arange(24.0, dtype="f4").reshape(6, 4), chunks=(3, 4))
    return whole.map_blocks(lambda block: cupy.asfortranarray(cupy.asarray(block)), meta=cupy.empty((0, 0), "f4"))
