"""Collections that fill the memory of workers, and what these have of them in memory and on disk."""

from __future__ import annotations

import glob
import os

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import wait

import ckpt_spill as cs
from ckpt_spill.store.store import Store

MiB = 1 << 20
LIMIT = 20 * MiB
"""Of managed memory: the target is 12 MiB."""


def noise(n=10, seed=0):
    """Partitions of 2 MiB that do not compress."""

    def block(block_info=None):
        (number,) = block_info[None]["chunk-location"]
        return np.random.default_rng([seed, number]).integers(0, 256, 2 * MiB, dtype="u1")

    return da.map_blocks(block, chunks=((2 * MiB,) * n,), dtype="u1")


def frame(n=10):
    """Partitions of 2 MiB, of which no column compresses."""

    def part(number):
        numbers = np.random.default_rng(number).integers(0, 2**62, (MiB // 8, 2))
        return pd.DataFrame(numbers, columns=["a", "b"]).assign(c=str(number))

    return dd.from_map(part, range(n), meta=part(0).iloc[:0])


def spill_all(client):
    """Evict all that workers have in memory."""

    def evict(dask_worker):
        while dask_worker.data.fast and dask_worker.data.evict() != -1:
            pass
        return len(dask_worker.data.fast)

    assert not any(client.run(evict).values())


def held(client):
    """Bytes that each worker has in host memory."""

    def weight(dask_worker):
        data = dask_worker.data
        return getattr(data, "host_buffer", data).fast.total_weight

    return list(client.run(weight).values())


def written(client):
    """Bytes that workers have written to spill."""
    found = client.run(lambda dask_worker: dask_worker.data.cumulative_metrics["disk-write", "bytes"])
    return sum(found.values())


def keep(client, collection):
    kept = client.persist(collection)
    wait(kept)
    return kept


def files(manifest, root):
    """Partition files of a checkpoint."""
    return glob.glob(os.path.join(Store.open(root).run_path(manifest.run), "*.part"))


def links(manifest, root):
    """How many names each of its files has."""
    return [os.stat(path).st_nlink for path in files(manifest, root)]


def spilled_files(root):
    return glob.glob(os.path.join(root, "spill", "*", "*.part"))


def array_of(manifest):
    return cs.rehydrate(manifest).compute()
