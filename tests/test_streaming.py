"""Saving more than fits in memory."""

from __future__ import annotations

import os

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import pytest

import ckpt_spill as cs
from tests.clusters import running_cluster

LIMIT = 420 << 20  # of which a worker with pandas and pyarrow takes some 200 MiB before it has any data
PARTITION = 16 << 20
NO_SPILL = {f"distributed.worker.memory.{k}": False for k in ("target", "spill", "pause")}


def rows(n):
    values = np.arange(PARTITION // 16, dtype="f8") + n
    return pd.DataFrame({"x": values, "y": values[::-1]})


def frame(npartitions):
    return dd.from_map(rows, range(npartitions), meta=rows(0).iloc[:0]).map_partitions(lambda p: p * 2)


def array(npartitions):
    return da.arange(npartitions * PARTITION // 8, chunks=PARTITION // 8, dtype="f8") + 1


@pytest.mark.slow
@pytest.mark.parametrize("make", [frame, array])
def test_ten_times_the_memory(tmp_path, make):
    """Ten times what a worker may use is saved and read again by the same process, with spilling off."""
    n = 10 * LIMIT // PARTITION + 1
    with dask.config.set(NO_SPILL), running_cluster(1, memory_limit=LIMIT, validate=False) as client:
        pids = client.run(os.getpid)
        m = cs.persist_to_disk(make(n), name="x", root=str(tmp_path / "root"), durable=False)
        assert m.nbytes >= 10 * LIMIT
        total = cs.rehydrate(m).sum().compute()
        assert client.run(os.getpid) == pids
        peaks = [psutil.Process(p).memory_info().rss for p in pids.values()]
    assert max(peaks) < LIMIT
    if make is array:
        count = n * PARTITION // 8
        assert total == count * (count + 1) / 2
    else:
        count = PARTITION // 16
        assert total.x == total.y == sum(count * (count - 1) + 2 * count * i for i in range(n))
