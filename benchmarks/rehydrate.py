"""What it costs to have 10,000 partitions back: the time of ``rehydrate``, and the size of the graph it makes.

    python -m benchmarks.rehydrate [--partitions N] [--check]

The time is the median of seven calls with the address of a saved manifest, by a client of two worker processes, which
are asked whether all files are there. The size is that of the message in which the client sends the whole collection
to the scheduler to be computed, keys and all. The promise is half a second, and 300 bytes for each partition;
``--check`` makes it the exit status.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster
from distributed.protocol import dumps
from distributed.utils import nbytes

import ckpt_spill as cs

SECONDS, BYTES = 0.5, 300
ROW = "{:<12}{:>12}{:>12}{:>17}{:>16}"


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000, help="default 10,000")
    parser.add_argument("--check", action="store_true", help="fail where the promise is not kept")
    options = parser.parse_args()
    kept = True
    print(ROW.format("", "partitions", "seconds", "bytes/partition", "manifest bytes"))
    with tempfile.TemporaryDirectory() as scratch:
        saved = {name: save(name, make(options.partitions), Path(scratch)) for name, make in COLLECTIONS.items()}
        quiet = {"dashboard_address": ":0", "silence_logs": logging.ERROR, "local_directory": scratch}
        with LocalCluster(n_workers=2, threads_per_worker=1, **quiet) as cluster, Client(cluster) as client:
            for name, path in saved.items():
                seconds = statistics.median(seconds_of(path) for _ in range(7))
                size = sent(client, cs.rehydrate(path)) / options.partitions
                in_file = path.stat().st_size / options.partitions
                print(ROW.format(name, f"{options.partitions:,}", f"{seconds:.3f}", f"{size:.0f}", f"{in_file:.0f}"))
                kept = kept and seconds < SECONDS and size < BYTES
    print(ROW.format("limit", "", SECONDS, BYTES, ""))
    return kept or not options.check


def one_row(number: int) -> pd.DataFrame:
    return pd.DataFrame({"n": np.array([number], "i4")})


COLLECTIONS = {
    "DataFrame": lambda number: dd.from_map(one_row, range(number), meta=one_row(0).iloc[:0]),
    "Array": lambda number: da.arange(number, chunks=1),
    "Bag": lambda number: db.range(number, npartitions=number),
}


def save(name: str, collection: Any, scratch: Path) -> Path:
    """Save a collection from this process, without waiting for the disk."""
    path = scratch / f"{name}.json"
    cs.persist_to_disk(collection, name=name, root=scratch / "root", manifest=path, durable=False)
    return path


def seconds_of(path: Path) -> float:
    start = time.perf_counter()
    cs.rehydrate(path)
    return time.perf_counter() - start


def sent(client: Client, collection: Any) -> int:
    """Give the size of the message that asks the scheduler for a whole collection; it is not sent."""
    sizes = []

    def measure(message: dict[str, Any]) -> None:
        if message["op"] == "update-graph":
            sizes.append(sum(map(nbytes, dumps(message))))

    client._send_to_scheduler = measure  # the one place through which everything goes to the scheduler
    try:
        collection.persist()
    finally:
        del client._send_to_scheduler
    [size] = sizes
    return size


if __name__ == "__main__":
    sys.exit(not main())
