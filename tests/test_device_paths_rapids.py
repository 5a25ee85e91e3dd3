"""The ways between a file and a device with real objects of cuDF's and CuPy's, on a device that is in host memory."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ckpt_spill.store import partition
from ckpt_spill.store.device.paths import Paths
from tests import host_columns as host
from tests.strict import diff
from tests.test_device_paths import ALL, COLUMNS, IDENTITY, NONE, ROWS, save
from tests.test_frames_rapids import MISSING, cudf, cupy, host_for_device, made, numpy_of, on_host, same

__all__ = ["host_for_device"]  # a fixture, which pytest finds here

pytestmark = [pytest.mark.rapids, pytest.mark.skipif(MISSING, reason="needs cuDF")]
WAYS = [ALL, NONE, Paths(gds=True, nvcomp=False), Paths(gds=False, nvcomp=True)]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.part")


@pytest.fixture(scope="module")
def table():
    codes = pa.array(np.arange(ROWS) % 7, pa.uint8())
    columns = [host.column(array, words, start=3) for array, words in COLUMNS.values()]
    columns.append(
        host.column(codes, {}, host.column(pa.array(list("abcdefg")), {"string": ["pyarrow", "nan"]}), start=3)
    )
    return host.frame(columns, labels=pd.Index([*COLUMNS, "category"]))


@pytest.mark.parametrize("paths", WAYS)
@pytest.mark.parametrize("codec", ["auto", "zstd", "none"])
def test_frames_of_cudf(host_for_device, path, table, codec, paths):
    """Frames, whole and in a few columns, are what was saved, whichever way they took; series and indexes as well."""
    value = made(table)
    written = save(path, value, codec=codec, paths=paths)
    assert bool(written.direct_nbytes) == bool(paths.gds and codec != "zstd")
    assert same(partition.read(path, IDENTITY, written.digest, paths=paths, threads=2), value)
    few = partition.read(path, IDENTITY, written.digest, columns=["text", "noise"], paths=paths)
    assert same(few, value[["noise", "text"]])
    for part in (value["text"], cudf.Index(value["nulls"])):
        written = save(path, part, codec=codec, paths=paths)
        assert same(partition.read(path, IDENTITY, written.digest, paths=paths), part)


@pytest.mark.parametrize("paths", WAYS)
@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_arrays_of_cupy(path, codec, paths):
    """Arrays with their layout; the memory they show is kept as long as they are."""
    cube = np.random.default_rng(0).integers(0, 9, (60, 50, 100))
    for array in (
        cube,
        cube.transpose(2, 0, 1),
        cube[::2],
        cube[:, ::-1],
        np.broadcast_to(cube[:1], (4, 50, 100)),
        cube[:0],
    ):
        written = save(path, on_host(array), codec=codec, paths=paths)
        back = partition.read(path, IDENTITY, written.digest, paths=paths)
        assert type(back) is cupy.ndarray
        assert diff(partition.read(path, IDENTITY, written.digest, library="pandas"), numpy_of(back)) == []
        assert np.array_equal(numpy_of(back), array)
