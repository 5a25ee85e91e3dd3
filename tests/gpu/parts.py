"""Collections that are on a GPU, the clusters that hold them, and how their parts are compared.

What workers call is here, as they import the module it is in: those of tests look for a GPU at once.
"""

from __future__ import annotations

import contextlib

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import futures_of

from tests.clusters import running_cluster

MiB = 1 << 20
PART = 4 * MiB
"""Bytes of a part of any of the collections, but for the masks of nulls."""

_ROWS = PART // 4 // 8
_WORDS = pd.array([f"{n:04}" for n in range(100)], dtype="str")


def on_host(number):
    """Make a part of a frame: four columns of the same size, the last with nulls."""
    random = np.random.default_rng(number)
    numbers = random.integers(0, 2**62, _ROWS)
    columns = {
        "a": numbers,
        "b": random.random(_ROWS),
        "c": _WORDS.take(numbers % 100),
        "d": pd.arrays.IntegerArray(numbers, numbers % 7 == 0),
    }
    return pd.DataFrame(columns)


def block_on_host(number):
    return np.random.default_rng([1, number]).integers(0, 256, PART, dtype="u1")


def part(number):
    import cudf

    return cudf.from_pandas(on_host(number))


def text(number):
    return part(number)["c"]


def index(number):
    import cudf

    return cudf.Index(part(number)["a"], name="a")


def block(number):
    import cupy

    return cupy.asarray(block_on_host(number))


def frames(n):
    """Make a lazy collection of dask_cudf's, with the dtypes that its parts have."""
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(part, range(n), meta=part(0).iloc[:0])


def arrays(n):
    """Make a lazy array whose chunks are CuPy's."""
    import cupy

    return da.map_blocks(_block, chunks=((PART,) * n,), dtype="u1", meta=cupy.empty(0, "u1"))


def _block(block_info=None):
    (number,) = block_info[None]["chunk-location"]
    return block(number)


PARTS = {frames: part, arrays: block}
"""How each part of a collection is made alone."""


def same(a, b):
    """Compare two values on the GPU: classes, dtypes, names, cells."""
    import cupy

    assert type(a) is type(b)
    if isinstance(a, cupy.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert bool((a == b).all())
    elif hasattr(a, "columns"):
        assert list(a.columns) == list(b.columns)
        assert a.index.equals(b.index)
        for name in a.columns:
            same(a[name], b[name])
    else:
        assert a.dtype == b.dtype
        assert a.name == b.name
        assert a.to_arrow().equals(b.to_arrow())


def each(kept):
    """Fetch the parts of what is kept on a cluster with their numbers, one after the other."""
    for future in sorted(futures_of(kept), key=lambda future: future.key[1]):
        yield future.key[1], future.result()


@contextlib.contextmanager
def gpu_cluster(**options):
    """Start a LocalCUDACluster of one worker and yield a client of it."""
    import cudf
    from dask_cuda import LocalCUDACluster

    try:
        with running_cluster(1, kind=LocalCUDACluster, **options) as client:
            yield client
    finally:
        cudf.set_option("spill", False)  # which LocalCUDACluster sets in this process as well
        cudf.set_option("spill_stats", 0)


def tiers(client):
    """Say what the only worker has in which tier: keys, and bytes where they are counted."""
    (found,) = client.run(_tiers).values()
    return found


def _tiers(dask_worker):
    data = dask_worker.data
    device, host = data.device_buffer.fast, data.host_buffer.fast
    return {
        "device": len(device),
        "device bytes": device.total_weight,
        "host": len(host),
        "host bytes": host.total_weight,
        "managed by cudf": len(data.others.fast),
        "disk": len(data.tier),
        "disk bytes": data.spilled_total.disk,
    }


def moved_by_cudf():
    """Give the bytes that cuDF itself has moved to the host, and all that it manages."""
    from cudf.core.buffer.spill_manager import get_global_manager

    buffers = get_global_manager().buffers()
    return sum(buffer.size for buffer in buffers if buffer.is_spilled), sum(buffer.size for buffer in buffers)


def lift_the_limit():
    """Let RMM take as much of the device as it wants."""
    import rmm

    rmm.mr.set_current_device_resource(rmm.mr.CudaMemoryResource())
