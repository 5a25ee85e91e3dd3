"""A merge whose result is kept on local disk, a restart of the workers, and a reduction over what was kept.

    python -m benchmarks.local_checkpoint_merge [--type cpu|gpu] [--backend ckpt-spill ...] [--markdown] ...

In the manner of ``dask_cuda.benchmarks.local_cudf_merge``, on its data, and with its options for the merge. What each
step is, and what is different: see benchmarks/local_checkpoint.py.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from dask_cuda.benchmarks.local_cudf_merge import get_random_ddf
from distributed import Client

from benchmarks.local_checkpoint import Benchmark

OPTIONS: dict[str, dict[str, Any]] = {
    "chunk_size": {
        "name": ["-c", "--chunk-size"],
        "default": 1_000_000,
        "metavar": "n",
        "type": int,
        "help": "Chunk size (default 1_000_000)",
    },
    "base_chunks": {
        "name": "--base-chunks",
        "default": None,
        "type": int,
        "help": "Number of base-DataFrame partitions (default: n_workers)",
    },
    "other_chunks": {
        "name": "--other-chunks",
        "default": None,
        "type": int,
        "help": "Number of other-DataFrame partitions (default: n_workers)",
    },
    "broadcast_join": {
        "name": "--broadcast-join",
        "action": "store_true",
        "help": "Use broadcast join when possible.",
    },
    "shuffle_join": {
        "name": "--shuffle-join",
        "action": "store_true",
        "help": "Use shuffle join (takes precedence over '--broadcast-join').",
    },
    "frac_match": {
        "name": "--frac-match",
        "default": 0.3,
        "type": float,
        "help": "Fraction of rows that matches (default 0.3)",
    },
    "no_shuffle": {
        "name": "--no-shuffle",
        "action": "store_true",
        "help": "Don't shuffle the keys of the left (base) dataframe.",
    },
}


def broadcast(args: Namespace) -> bool | None:
    """Give what merge is told: nothing, unless an option says so."""
    return False if args.shuffle_join else (True if args.broadcast_join else None)


def merged(client: Client, args: Namespace) -> Any:
    workers = len(client.scheduler_info(n_workers=-1)["workers"])
    args.base_chunks = args.base_chunks or workers
    args.other_chunks = args.other_chunks or workers
    base, other = (
        get_random_ddf(args.chunk_size, chunks, args.frac_match, kind, args)
        for chunks, kind in ((args.base_chunks, "build"), (args.other_chunks, "other"))
    )
    return base.merge(other, on=["key"], how="inner", broadcast=broadcast(args))


def facts(args: Namespace) -> dict[str, Any]:
    return {
        "Rows-per-chunk": args.chunk_size,
        "Base-chunks": args.base_chunks,
        "Other-chunks": args.other_chunks,
        "Broadcast": "default" if broadcast(args) is None else broadcast(args),
        "Frac-match": args.frac_match,
    }


if __name__ == "__main__":
    Benchmark("Merge, local checkpoint", "Merge, kept on local disk", OPTIONS, merged, facts).main()
