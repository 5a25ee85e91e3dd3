"""What the benchmarks of local checkpoints share: ``local_checkpoint_{shuffle,merge,read}``.

They are scripts in the manner of ``dask_cuda.benchmarks``, made of its parts: its command line and its ``Config``, run
by its ``execute_benchmark``, with its output and its result files. Each run does this with each backend in turn:

1. checkpoint: work (a shuffle, a merge, or to read an existing checkpoint) whose result is kept in the backend's way;
2. restart: ``client.restart()``. All workers are new processes that hold nothing; the scheduler stays, and so do files
   on disk, which the system's page cache is made to forget;
3. read back: a reduction over all that was kept, which has to give what it gives without any checkpoint.

The peak of a step is the most memory that any one worker had: resident memory (``VmHWM``, which is reset before), and
for ``--type gpu`` what RMM's statistics say, which are turned on.

Different from the scripts of dask-cuda:

- With ``--type cpu`` these start a ``LocalCluster`` of as many workers as ``--devs`` names, and hand its address to
  ``execute_benchmark`` as that of an external scheduler; ``LocalCUDACluster`` needs a GPU whatever the type is. Nothing
  else goes another way, and nothing of dask-cuda is replaced.
- Addresses of workers change at a restart, but dask-cuda's tables of transfers between workers are by the addresses at
  the start. So these are left out, and the bandwidth is printed as 0.
- Workers that were restarted get RMM's pools again, as those at the start did.
- ``distributed.deploy.lost-worker-timeout`` is raised: when it has passed after a restart, dask's clusters look whether
  the worker is there again, and end its nanny for good if they do so in the middle of the next restart.

Workers of an external cluster have to be able to import ``benchmarks``.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import dask
import numpy as np
import pandas as pd
from dask.utils import format_bytes, format_time
from dask_cuda.benchmarks.common import Config, execute_benchmark
from dask_cuda.benchmarks.utils import (
    parse_benchmark_args,
    print_key_value,
    print_separator,
    print_throughput_bandwidth,
    print_ucx_config,
    ucx_config_to_dict,
)
from distributed import Client, performance_report

from benchmarks.local_checkpoint_backends import BACKENDS, Backend, Summary, summary
from benchmarks.local_checkpoint_workers import forget_transfers, peaks, reset_peaks, restart, workers_without_gpus

OPTIONS: list[dict[str, Any]] = [
    {
        "name": ["-b", "--backend"],
        "choices": list(BACKENDS),
        "default": list(BACKENDS),
        "nargs": "+",
        "help": "How to keep the result; several are run in turn (default: all). "
        + " ".join(f"{name}: {backend.about}." for name, backend in BACKENDS.items()),
    },
    {
        "name": ["-t", "--type"],
        "choices": ["cpu", "gpu"],
        "default": "gpu",
        "type": str,
        "help": "Use GPU or CPU dataframes and workers (default 'gpu')",
    },
    {
        "name": "--directory",
        "default": None,
        "metavar": "PATH",
        "type": os.path.abspath,
        "help": "Directory for checkpoints, on each worker's local disk; for to-shared-parquet, the shared one. What "
        "is written there is removed (default: a new one in the system's temporary directory)",
    },
    {
        "name": "--no-flush",
        "action": "store_true",
        "help": "Do not wait until checkpoints are on the disk, but leave that to the system",
    },
]


@dataclass
class Benchmark:
    """One script.

    Parameters
    ----------
    title : str
    description : str
        For the command line.
    options : dict of dict
        Of the command line, by what they are called in the results, as ``parse_benchmark_args`` takes them.
    work : callable
        Gives the lazy collection for a client and the options.
    facts : callable
        Gives what to print of the options, by label.
    existing : bool
        Whether what is timed starts from a checkpoint of that collection.
    """

    title: str
    description: str
    options: dict[str, dict[str, Any]]
    work: Callable[[Client, Namespace], Any]
    facts: Callable[[Namespace], dict[str, Any]]
    existing: bool = False
    truth: Summary | None = None

    def main(self) -> None:
        """Run the benchmark as the command line says."""
        args = parse_benchmark_args(self.description, [dict(option) for option in (*self.options.values(), *OPTIONS)])
        args.no_show_p2p_bandwidth = True
        args.enable_rmm_statistics = args.type == "gpu"
        config = Config(args, self.bench_once, self.create_tidy_results, self.pretty_print_results)
        with contextlib.ExitStack() as stack:
            stack.enter_context(dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"}))
            if args.directory is None:
                args.directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="local-checkpoint-"))
            if args.type == "cpu" and not (args.scheduler_address or args.scheduler_file or args.multi_node):
                args.scheduler_address = stack.enter_context(workers_without_gpus(args)).scheduler_address
            execute_benchmark(config)

    def bench_once(self, client: Client, args: Namespace, write_profile: str | None = None) -> list[dict[str, Any]]:
        """Measure each backend once."""
        collection = self.work(client, args)
        if self.truth is None:
            self.truth = summary(collection)
            restart(client, args)
        with performance_report(write_profile) if write_profile else contextlib.nullcontext():
            rows = [self.measure(client, args, name, collection) for name in args.backend]
        client.run(forget_transfers)
        return rows

    def measure(self, client: Client, args: Namespace, name: str, collection: Any) -> dict[str, Any]:
        """Measure a backend: give what is in the result files for each run."""
        gpu = args.type == "gpu"

        def backend() -> Backend:
            return BACKENDS[name](client, os.path.join(args.directory, uuid.uuid4().hex), gpu, not args.no_flush)

        existing, made = backend() if self.existing else None, backend()
        if existing is not None:
            existing.write(collection)
            existing.let_go()
            restart(client, args)
        client.run(reset_peaks, gpu)
        start = perf_counter()
        if existing is None:
            made.write(collection)
        else:
            made.write_again(existing)
        checkpoint = perf_counter() - start
        row = {"backend": name, "stored_nbytes": made.stored(), **peaks(client, gpu, "checkpoint")}
        made.let_go()
        restarted = restart(client, args)
        client.run(reset_peaks, gpu)
        start = perf_counter()
        result = made.reduce()
        read_back = perf_counter() - start
        if result[:2] != self.truth[:2]:
            raise AssertionError(f"{name} gave back {result}, not {self.truth}")
        for used in filter(None, (existing, made)):
            used.delete()
        return row | {
            **peaks(client, gpu, "read_back"),
            "checkpoint": checkpoint,
            "restart": restarted,
            "read_back": read_back,
            "wallclock": checkpoint + read_back,
            "data_processed": self.truth.nbytes,
            "rows": result.rows,
            "digest": f"{result.digest:016x}",
        }

    def pretty_print_results(self, args, address_to_index, p2p_bw, results, client=None) -> None:
        """Print the results as dask-cuda's scripts do, one backend after the other, and with --markdown a table."""
        if args.markdown:
            print("```")
        print(f"{self.title} benchmark")
        print_separator(separator="-")
        print_key_value(key="Type", value=args.type)
        facts = self.facts(args) | {"Protocol": args.protocol, "Device(s)": args.devs}
        facts |= {"Worker thread(s)": args.threads_per_worker, "Flushed to disk": not args.no_flush}
        if args.type == "gpu":
            facts["RMM Pool"] = not args.disable_rmm_pool
        if args.device_memory_limit:
            facts["Device memory limit"] = format_bytes(args.device_memory_limit)
        for key, value in facts.items():
            print_key_value(key=key, value=f"{value}")
        print_ucx_config(args)
        print_key_value(key="Data kept", value=format_bytes(self.truth.nbytes))
        by_backend = {
            name: [row for rows in results for row in rows if row["backend"] == name] for name in args.backend
        }
        for name, rows in by_backend.items():
            print_separator(separator="=")
            print_key_value(key="Backend", value=name)
            times, sizes = ([row[key] for row in rows] for key in ("wallclock", "data_processed"))
            print_throughput_bandwidth(args, times, sizes, p2p_bw, address_to_index)
            print_separator(separator="-")
            for key, value in zip(HEADS, cells(rows), strict=True):
                print_key_value(key=key, value=value)
        if args.markdown:
            print("```\n\n" + "\n".join(table(by_backend)))

    def create_tidy_results(self, args, p2p_bw, results) -> tuple[pd.DataFrame, np.ndarray]:
        """Give a row for each run of each backend."""
        facts = {
            "dataframe_type": "cudf" if args.type == "gpu" else "pandas",
            **{option: getattr(args, option) for option in self.options},
            "flush": not args.no_flush,
            "protocol": args.protocol,
            "devs": args.devs,
            "worker_threads": args.threads_per_worker,
            "device_memory_limit": args.device_memory_limit,
            "rmm_pool": args.type == "gpu" and not args.disable_rmm_pool,
            **ucx_config_to_dict(args),
        }
        return pd.DataFrame([facts | row for rows in results for row in rows]), p2p_bw


PEAKS = [f"peak{where}_{step}" for where in ("", "_device") for step in ("checkpoint", "read_back")]
HEADS = ("checkpoint", "read back", "checkpoint/s", "read back/s", "on disk", "peak, checkpoint", "peak, read back")


def cells(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Format the medians of the runs of a backend, as HEADS says; of peaks, that of the device follows."""
    names = ("data_processed", "checkpoint", "read_back", "stored_nbytes", *PEAKS)
    median = {name: statistics.median(row[name] or 0 for row in rows) for name in names}
    yield from (format_time(median[step]) for step in ("checkpoint", "read_back"))
    yield from (format_bytes(median["data_processed"] / median[step]) + "/s" for step in ("checkpoint", "read_back"))
    yield format_bytes(median["stored_nbytes"])
    for step in ("checkpoint", "read_back"):
        device = median[f"peak_device_{step}"]
        yield format_bytes(median[f"peak_{step}"]) + (f" + {format_bytes(device)} on device" if device else "")


def table(by_backend: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Give the lines of a table in Markdown, of medians."""
    yield "| | " + " | ".join(HEADS) + " |"
    yield "|---" * (1 + len(HEADS)) + "|"
    for name, rows in by_backend.items():
        yield f"| {name} | " + " | ".join(cells(rows)) + " |"
