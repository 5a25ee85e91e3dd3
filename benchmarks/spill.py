"""The spill tier against what dask does without it: time, bytes written, and checkpoints of what is spilled already.

    python -m benchmarks.spill [--parts cached disk scan links] [--rounds N] [--threads N] [--directory DIR] [--check]

Both sides in one run, in turns in each round, medians of the rounds, after one round that is not counted:

- cached and disk: each value of benchmarks/partition_files.py (DataFrames of a sensor log, of TPC-H, of a web log, of
  keys for joins; a noisy and a smooth array), evicted by ``evict`` and read by its key, once through ``host_spill``'s
  mapping (``ours``, and ``raw`` with ``codec="none"``) and once each through ``SpillBuffer`` with zstd, with lz4 and
  without compression. Memory is touched before each step, as there; what comes back is compared with what was there.
  Cached, files are written to and read from the page cache, which is memory; disk, a spill includes putting the file on
  the disk, where it has to go before its memory is free, and it is read from there.
- scan: the sum of a persisted, rehydrated collection three times as large as the memory of two workers, three times
  over, with ``host_spill`` and with stock spilling; bytes written to and read from disk are what the workers' metrics
  say. The files of the checkpoint and those of the spilling are on one disk. One round.
- links: ``persist_to_disk`` (durable) of a persisted collection right after all of it has been evicted to disk, where
  files are linked, and where it has to be read and written: with another codec, or with stock spilling.

The promises. Frames: at least twice as fast as with zstd to spill and to unspill, at no more bytes, all values
together; to and from the disk not slower than 0.9 of the fastest of the three either. That this is not so of spilling
to the page cache is printed: to copy in memory is faster than any codec on few cores. Scan: not one byte is written.
Links: under 2 % of the time of the faster of the other two. ``--check`` makes them the exit status.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.utils import parse_bytes
from distributed import Client, LocalCluster, wait
from distributed.protocol.compression import compressions
from distributed.spill import SpillBuffer

import ckpt_spill as cs
from benchmarks.partition_files import (
    drop_cache,
    field_of_waves,
    ids,
    lineitem,
    noise,
    raw_size,
    same,
    sync,
    timed,
    timeseries,
    weblog,
)
from ckpt_spill.spill.host import HostSpill, open_tier

OURS, RAW, STOCK = "host_spill", "raw", ("zstd", "lz4", "none")
FASTER, OF_FASTEST, OF_WRITING = 2.0, 0.9, 0.02
SCANS, TIMES_MEMORY, WORKERS = 3, 3, 2
PART = 16 << 20


# -------------------------------------------------------------------------------------------------------------- frames
@dataclass
class Times:
    """What the rounds measured of one value in one way."""

    spill: list[float] = field(default_factory=list)
    unspill: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    stored: int = 0


def values(scale: float, directory: str) -> dict[str, Any]:
    rng = np.random.default_rng(20260101)
    made = {
        "timeseries": timeseries(rng, scale),
        "lineitem": lineitem(scale, directory),
        "noise": noise(rng, scale),
        "waves": field_of_waves(rng, scale),
        "weblog": weblog(rng, scale),
        "ids": ids(rng, scale),
    }
    if made["lineitem"] is None:
        print("lineitem is left out: tpchgen-cli is not installed", file=sys.stderr)
        del made["lineitem"]
    return made


def memories(directory: str, threads: int) -> dict[str, MutableMapping[str, object]]:
    """Make the memory of a worker in every way; nothing leaves it unless it is evicted."""
    made: dict[str, Any] = {}
    for name in STOCK:
        if name != "none" and name not in compressions:
            print(f"{name} is left out: its package is not installed", file=sys.stderr)
            continue
        with dask.config.set({"distributed.worker.memory.spill-compression": None if name == "none" else name}):
            made[name] = SpillBuffer(os.path.join(directory, name), sys.maxsize)
    with dask.config.set({"ckpt-spill.threads": threads}):
        for name, codec in ((OURS, "auto"), (RAW, "none")):
            tier = open_tier("/nowhere/worker", (os.path.join(directory, name),), codec)
            made[name] = HostSpill(tier, sys.maxsize)
    return made


def round_trip(memory: Any, value: Any, times: Times, *, cold: str | None, check: bool) -> None:
    """Evict a value and read it again; if cold, to and from the disk, of the files in that directory."""
    # Another object on the same buffers: the mapping has to have the only reference, or it would give that back.
    memory["x"] = value.copy(deep=False) if isinstance(value, pd.DataFrame) else value.view()
    room = 3 * raw_size(value)
    with timed(times.spill, times.cpu, room):
        evicted = memory.evict()
        for path in files(cold):
            sync(path)
    for path in files(cold):
        drop_cache(path)
    if evicted == -1 or memory.fast:
        raise AssertionError("the value was not evicted")
    times.stored = memory.spilled_total.disk
    with timed(times.unspill, times.cpu, room):
        result = memory["x"]
    if check:
        same(result, value)
    del memory["x"]


def files(directory: str | None) -> list[str]:
    """Give the files below a directory that have values in them."""
    found = [os.path.join(at, name) for at, _, names in os.walk(directory or "") for name in names]
    return [path for path in found if os.path.getsize(path) > 4096]


def frames(options: argparse.Namespace, *, disk: bool) -> bool:
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        data = values(options.scale, directory)
        ways = memories(directory, options.threads)
        try:
            times: dict[tuple[str, str], Times] = defaultdict(Times)
            for number in range(options.rounds + 1):
                first = number % len(ways)
                for name, value in data.items():
                    for way in (*list(ways)[first:], *list(ways)[:first]):
                        cold = os.path.join(directory, way) if disk else None
                        round_trip(ways[way], value, times[way, name], cold=cold, check=number == 0)
                if number == 0:
                    times.clear()
        finally:
            for memory in ways.values():
                memory.close()
    place = "disk" if disk else "page cache"
    print(f"{options.threads} threads, medians of {options.rounds} rounds, to and from the {place}\n")
    return report(list(ways), data, times, disk=disk)


def report(ways: list[str], data: dict[str, Any], times: dict[tuple[str, str], Times], *, disk: bool) -> bool:
    """Print the tables; tell whether the promise is kept."""
    row = "{:<12}{:>8} |" + "{:>8}" * len(ways) + " |" + "{:>8}" * len(ways) + " |" + "{:>8}" * len(ways)
    short = ["ours" if way == OURS else way for way in ways]
    print(" " * 21 + "".join(f" |{title:>{8 * len(ways)}}" for title in ("MB", "spill s", "unspill s")))
    print(row.format("", "MB raw", *short * 3))
    sums = np.zeros((3, len(ways)))
    for name, value in data.items():
        of_way = [times[way, name] for way in ways]
        cells = [[t.stored / 1e6 for t in of_way]]
        cells += [[statistics.median(getattr(t, step)) for t in of_way] for step in ("spill", "unspill")]
        sums += cells
        print(line(row, name, raw_size(value) / 1e6, cells))
    print(line(row, "together", sum(map(raw_size, data.values())) / 1e6, sums), "\n")
    stored, spill, unspill = (dict(zip(ways, cells, strict=True)) for cells in sums)
    kept = set(STOCK) < set(ways)
    for step, seconds in (("spill", spill), ("unspill", unspill)):
        ours, against = seconds[OURS], seconds["zstd"] / seconds[OURS]
        fastest = min(STOCK, key=lambda way: seconds.get(way, math.inf))
        of_fastest = seconds[fastest] / ours
        print(f"{step}: {against:.2f}x zstd (>= {FASTER}); {of_fastest:.2f} of the fastest, {fastest}", end="")
        print(f" (>= {OF_FASTEST})" if disk else "")
        kept = kept and against >= FASTER and (of_fastest >= OF_FASTEST or not disk)
    smaller = stored[OURS] / stored["zstd"]
    print(f"bytes: {smaller:.3f} of zstd's (<= 1)")
    return kept and smaller <= 1


def line(row: str, name: str, raw: float, cells: Any) -> str:
    return row.format(name, f"{raw:.0f}", *(f"{c:.{3 if n else 0}f}" for n, step in enumerate(cells) for c in step))


# ---------------------------------------------------------------------------------------------------------------- scan
def part(number: int) -> pd.DataFrame:
    """One partition of four columns of eight bytes."""
    rng, rows = np.random.default_rng(number), PART // 32
    columns = {"k": rng.integers(0, 10_000, rows), "t": np.arange(rows) + number * rows}
    return pd.DataFrame(columns | {"x": rng.random(rows), "y": rng.normal(size=rows)})


def collection(nbytes: int) -> Any:
    return dd.from_map(part, range(nbytes // PART), meta=part(0).iloc[:0])


@contextmanager
def cluster(directory: str, root: Path | None, memory_limit: int) -> Iterator[Client]:
    """Two workers of one thread, that spill to a store or, without a root, as dask does."""
    quiet = {"dashboard_address": ":0", "silence_logs": logging.ERROR, "local_directory": directory}
    data = {} if root is None else {"data": cs.host_spill(root)}
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, memory_limit=memory_limit, **quiet, **data) as made,
        Client(made) as client,
    ):
        yield client


def on_disk(dask_worker: Any) -> np.ndarray:
    """Give the bytes that this worker has written and read."""
    return np.array([dask_worker.data.cumulative_metrics[f"disk-{way}", "bytes"] for way in ("write", "read")])


def scan(options: argparse.Namespace) -> bool:
    memory = parse_bytes(options.memory)
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch, dask.config.set({"ckpt-spill.root": None}):
        root = Path(scratch) / "root"
        source = collection(TIMES_MEMORY * WORKERS * memory)
        with cluster(scratch, None, 4 << 30):
            manifest, truth = cs.persist_to_disk(source, root=root, name="scanned"), source.sum().compute()
        size = f"{manifest.nbytes / 1e9:.1f} GB in {manifest.npartitions} partitions"
        print(f"{size}, {WORKERS} workers of {options.memory}\n")
        row = "{:<12}{:>12}" + "{:>10}" * SCANS + "{:>14}{:>14}"
        print(row.format("", "persist s", *(f"scan {n + 1} s" for n in range(SCANS)), "MB written", "MB read"))
        for way in ("stock", OURS):
            with cluster(scratch, root if way == OURS else None, memory) as client:
                seconds = []
                frame, first = kept_in_memory(cs.rehydrate(manifest))
                for number in range(SCANS):
                    start = time.perf_counter()
                    # With another key each time: the scheduler may still have the sums of the last.
                    sums = frame.map_partitions(totals, number, meta=totals(part(0), 0)).compute()
                    seconds.append(time.perf_counter() - start)
                    if not np.allclose(sums.groupby(level=0).sum(), truth):
                        raise AssertionError("a wrong sum")
                written, read = sum(client.run(on_disk).values())
            numbers = (f"{s:.2f}" for s in (first, *seconds))
            print(row.format(way, *numbers, f"{written / 1e6:,.0f}", f"{read / 1e6:,.0f}"))
    return written == 0


def totals(frame: pd.DataFrame, number: int) -> pd.Series:
    """Sum up each column; the number makes it another scan."""
    return frame.sum()


def kept_in_memory(frame: Any) -> tuple[Any, float]:
    """Persist a collection; give it, and how long it took."""
    start = time.perf_counter()
    frame = frame.persist()
    wait(frame)
    return frame, time.perf_counter() - start


# --------------------------------------------------------------------------------------------------------------- links
def evict_all(dask_worker: Any) -> bool:
    while dask_worker.data.fast and dask_worker.data.evict() != -1:
        pass
    return not dask_worker.data.fast


def save(client: Client, nbytes: int, **options: Any) -> float:
    """Persist a collection, evict all of it, save it; give the seconds of the last step."""
    frame, _ = kept_in_memory(collection(nbytes))
    if not all(client.run(evict_all).values()):
        raise AssertionError("not everything was evicted")
    start = time.perf_counter()
    manifest = cs.persist_to_disk(frame, name="saved", progress=False, **options)
    seconds = time.perf_counter() - start
    manifest.delete()
    return seconds


def links(options: argparse.Namespace) -> bool:
    nbytes, memory = parse_bytes(options.size), parse_bytes("4 GiB")
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch, dask.config.set({"ckpt-spill.root": None}):
        root = Path(scratch) / "root"
        for number in range(options.rounds_of_links + 1):
            for way, codec in (("linked", "auto"), ("stock, written", "auto"), ("zstd, written", "zstd")):
                with cluster(scratch, None if way.startswith("stock") else root, memory) as client:
                    spent = save(client, nbytes, root=root, codec=codec)
                if number:
                    seconds[way].append(spent)
    median = {way: statistics.median(of_way) for way, of_way in seconds.items()}
    linked = median.pop("linked")
    fraction = linked / min(median.values())
    print(f"{options.size} in partitions of {PART >> 20} MiB, medians of {options.rounds_of_links} rounds\n")
    for way, spent in (("linked", linked), *median.items()):
        print(f"{way:<16}{spent:>8.3f} s")
    print(f"\nlinks: {fraction:.1%} of the time of writing (< {OF_WRITING:.0%})")
    return fraction < OF_WRITING


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"cached": partial(frames, disk=False), "disk": partial(frames, disk=True), "scan": scan, "links": links}
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts), help="default: all")
    parser.add_argument("--rounds", type=int, default=5, help="of frames; default 5")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="that compress")
    parser.add_argument("--scale", type=float, default=1.0, help="of the frames, 1.0 being some 900 MB")
    parser.add_argument("--memory", default="512 MiB", help="of a worker that scans; default 512 MiB")
    parser.add_argument("--size", default="4 GB", help="of what is linked, in memory; default 4 GB")
    parser.add_argument("--rounds-of-links", type=int, default=3, help="default 3")
    parser.add_argument("--directory", help="on the disk to measure; default: the system's temporary directory")
    parser.add_argument("--check", action="store_true", help="fail where a promise is not kept")
    options = parser.parse_args()
    kept = {}
    for name in options.parts:
        print(f"-- {name}")
        kept[name] = parts[name](options)
        print(f"promise of {name}: {'kept' if kept[name] else 'NOT kept'}\n", flush=True)
    return all(kept.values()) or not options.check


if __name__ == "__main__":
    sys.exit(not main())
