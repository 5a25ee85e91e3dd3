"""Reading a checkpoint that is there, keeping it again on local disk, a restart, and a reduction over what was kept.

    python -m benchmarks.local_checkpoint_read [--type cpu|gpu] [--backend ckpt-spill ...] [--markdown] ...

The stage of a pipeline that does nothing but read and write: the collection is kept first, in the same backend and not
timed, and the workers are restarted. Rows have integers, floats and times, some of which compress, unlike the random
floats of the other two. What each step is: see benchmarks/local_checkpoint.py.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import dask.dataframe as dd
from distributed import Client

from benchmarks import local_checkpoint_shuffle as shuffle
from benchmarks.local_checkpoint import Benchmark
from benchmarks.local_checkpoint_workers import libraries

OPTIONS = {name: shuffle.OPTIONS[name] for name in ("partition_size", "in_parts")}
COLUMNS = 5


def part(number: int, rows: int, gpu: bool) -> Any:
    """Make one partition: numbers that rise, few different ones, random ones, prices, and times."""
    frames, arrays = libraries(gpu)
    random = arrays.random.RandomState(number)
    frame = frames.DataFrame(
        {
            "id": arrays.arange(number * rows, (number + 1) * rows),
            "sensor": random.randint(0, 1000, rows).astype("int64"),
            "value": random.random_sample(rows),
            "price": random.randint(0, 100_000, rows) / 100,
            "time": arrays.cumsum(random.randint(0, 1_000_000, rows)) + 1_700_000_000_000_000_000,
        }
    )
    return frame.assign(time=frame["time"].astype("datetime64[ns]"))


def made(client: Client, args: Namespace) -> Any:
    options = {"rows": args.partition_size // (8 * COLUMNS), "gpu": args.type == "gpu"}
    return dd.from_map(part, range(args.in_parts), **options, meta=part(0, 0, options["gpu"]))


if __name__ == "__main__":
    title, description = "Read, local checkpoint", "Read what was kept on local disk, and keep it again"
    Benchmark(title, description, OPTIONS, made, shuffle.facts, existing=True).main()
