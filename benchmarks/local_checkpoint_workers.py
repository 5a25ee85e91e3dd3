"""Workers of the benchmarks of local checkpoints: starting and restarting them, their libraries, their memory."""

from __future__ import annotations

import logging
from argparse import Namespace
from time import perf_counter
from typing import Any

import dask
from dask_cuda.benchmarks.utils import setup_memory_pool
from distributed import Client, LocalCluster


def libraries(gpu: bool) -> tuple[Any, Any]:
    """Give what has DataFrames, and what has arrays."""
    if gpu:
        import cudf
        import cupy
        import dask_cudf  # noqa: F401  (lets dask make collections of what cuDF has)

        return cudf, cupy
    import numpy as np
    import pandas as pd

    return pd, np


def workers_without_gpus(args: Namespace) -> LocalCluster:
    """Start the cluster for ``--type cpu``."""
    with dask.config.set({"distributed.worker.multiprocessing-method": args.multiprocessing_method}):
        return LocalCluster(
            n_workers=len(args.devs.split(",")),
            threads_per_worker=args.threads_per_worker,
            protocol=args.protocol,
            interface=args.interface,
            dashboard_address=args.dashboard_address,
            silence_logs=False if args.no_silence_logs else logging.ERROR,
        )


def restart(client: Client, args: Namespace) -> float:
    """Restart all workers; give how long that took until they were there again."""
    workers = len(client.scheduler_info(n_workers=-1)["workers"])
    start = perf_counter()
    client.restart()
    client.wait_for_workers(workers)
    seconds = perf_counter() - start
    if args.type == "gpu":  # which a new process has not, whatever the cluster's own plugin does
        client.run(
            setup_memory_pool,
            disable_rmm=args.disable_rmm,
            disable_rmm_pool=args.disable_rmm_pool,
            pool_size=args.rmm_pool_size,
            maximum_pool_size=args.rmm_maximum_pool_size,
            rmm_async=args.enable_rmm_async,
            rmm_managed=args.enable_rmm_managed,
            release_threshold=args.rmm_release_threshold,
            log_directory=args.rmm_log_directory,
            statistics=args.enable_rmm_statistics,
            rmm_track_allocations=args.enable_rmm_track_allocations,
        )
    return seconds


def forget_transfers(dask_worker: Any) -> None:
    """Leave dask-cuda no transfers to look up: it knows workers by the addresses that they had at the start."""
    dask_worker.transfer_incoming_log.clear()


def reset_peaks(gpu: bool) -> None:
    """Start to look for the most memory that this process has."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    if gpu:
        from rmm import statistics as of_rmm

        of_rmm.push_statistics()


def own_peaks(gpu: bool) -> tuple[int, int | None]:
    """Give the most resident memory of this process since ``reset_peaks``, and the most of its GPU's memory."""
    with open("/proc/self/status") as file:
        resident = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    if not gpu:
        return resident, None
    from rmm import statistics as of_rmm

    counters = of_rmm.pop_statistics()
    return resident, counters and counters.peak_bytes


def peaks(client: Client, gpu: bool, step: str) -> dict[str, int | None]:
    """Give the peaks of the fullest workers, by name for the results."""
    resident, device = zip(*client.run(own_peaks, gpu).values(), strict=True)
    on_device = [peak for peak in device if peak is not None]
    return {f"peak_{step}": max(resident), f"peak_device_{step}": max(on_device, default=None)}
