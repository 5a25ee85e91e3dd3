"""A shuffle whose result is kept on local disk, a restart of the workers, and a reduction over what was kept.

    python -m benchmarks.local_checkpoint_shuffle [--type cpu|gpu] [--backend ckpt-spill ...] [--markdown] ...

In the manner of ``dask_cuda.benchmarks.local_cudf_shuffle``, on the same data: one column of random floats, by which
partitions are shuffled as tasks. What each step is, and what is different: see benchmarks/local_checkpoint.py.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import dask.dataframe as dd
from dask.utils import format_bytes, parse_bytes
from distributed import Client

from benchmarks.local_checkpoint import Benchmark
from benchmarks.local_checkpoint_workers import libraries

OPTIONS: dict[str, dict[str, Any]] = {
    "partition_size": {
        "name": "--partition-size",
        "default": "1 MiB",
        "metavar": "nbytes",
        "type": parse_bytes,
        "help": "Size of each partition (default '1 MB')",
    },
    "in_parts": {
        "name": "--in-parts",
        "default": 100,
        "metavar": "n",
        "type": int,
        "help": "Number of input partitions (default '100')",
    },
    "ignore_index": {
        "name": "--ignore-index",
        "action": "store_true",
        "help": "When shuffle, ignore the index",
    },
}


def part(number: int, rows: int, gpu: bool) -> Any:
    """Make one partition, the same whenever it is made."""
    frames, arrays = libraries(gpu)
    return frames.DataFrame({"data": arrays.random.RandomState(number).random_sample(rows)})


def shuffled(client: Client, args: Namespace) -> Any:
    options = {"rows": args.partition_size // 8, "gpu": args.type == "gpu"}
    made = dd.from_map(part, range(args.in_parts), **options, meta=part(0, 0, options["gpu"]))
    return made.shuffle("data", shuffle_method="tasks", ignore_index=args.ignore_index)


def facts(args: Namespace) -> dict[str, Any]:
    return {"Partition size": format_bytes(args.partition_size), "Input partitions": args.in_parts}


if __name__ == "__main__":
    Benchmark("Shuffle, local checkpoint", "Shuffle, kept on local disk", OPTIONS, shuffled, facts).main()
