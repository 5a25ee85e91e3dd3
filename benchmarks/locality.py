"""Reading where the data lies: memory, locality and time, beside a shared directory and beside hard pins, in one run.

    python -m benchmarks.locality [--rounds N] [--partitions N] [--size MIB] [--works sum ...] [--check]

Four nodes of one worker with one thread, each with a disk of its own (see tests/nodes.py; needs Linux and the right to
make mount namespaces), and as many partitions on each. Every work is done in three ways:

- shared: from a directory that all nodes see, by a scheduler without any plugin, which queues the reads and sends them
  to any worker that has a free slot;
- pins: from the nodes' own disks, by the same scheduler, with every read restricted to the worker that has the file;
- ckpt-spill: from the nodes' own disks, as ``rehydrate`` does it.

The ways take turns in each round, after one round that is not counted, and the table has medians. ``peak`` is the most
resident memory of the fullest worker during the work (``VmHWM``, which is reset before), ``before`` that of the fullest
one at its start, and ``local`` how many partitions were read from the disk of the reader's own node. All results are
compared with what numpy makes of the same data. Spilling and pausing are off.

The promise, for every work: at most 1.1 times the memory of ``shared``, 95 % of the partitions read locally, no more
time than ``pins``. ``--check`` makes it the exit status, and allows 5 % of noise in the time.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
from distributed import Client, SchedulerPlugin

import ckpt_spill as cs
from ckpt_spill.cluster.worker import NAME, Sharing
from ckpt_spill.jobs import ReadJob
from tests.nodes import Nodes

NODES, KEYS = 4, 10_000
WAYS = ("shared", "pins", "ckpt-spill")
PEAK, LOCAL, SLOWER, NOISE = 1.1, 0.95, 1.0, 1.05
CONFIG = {f"distributed.worker.memory.{what}": False for what in ("target", "spill", "pause", "terminate")}
STAY = {"distributed.scheduler.work-stealing": False}  # for partitions to be written where they were made
ROW = "{:<14}{:<12}{:>9}{:>11}{:>13}{:>8}{:>13}{:>13}"


# ---------------------------------------------------------------------------------------------------------------- data
def part(number: int, rows: int) -> pd.DataFrame:
    """One partition of four columns of eight bytes; ``t`` goes on from partition to partition."""
    rng = np.random.default_rng(number)
    columns = {"k": rng.integers(0, KEYS, rows), "t": np.arange(rows) + number * rows}
    return pd.DataFrame(columns | {"x": rng.random(rows), "y": rng.normal(size=rows)})


@dataclass
class Facts:
    """What numpy says of the data; sums of it are those of several partitions."""

    rows: int
    sums: np.ndarray
    squares: np.ndarray
    least: np.ndarray
    most: np.ndarray
    keys: np.ndarray  # rows of each key
    sums_of_keys: np.ndarray

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Facts:
        values, k = frame.to_numpy("f8").T, frame["k"].to_numpy()
        of_keys = np.stack([np.bincount(k, column, KEYS) for column in values])
        extremes = values.min(1), values.max(1)
        return cls(len(frame), values.sum(1), (values**2).sum(1), *extremes, np.bincount(k, minlength=KEYS), of_keys)

    def __add__(self, other: Facts) -> Facts:
        extremes = np.minimum(self.least, other.least), np.maximum(self.most, other.most)
        squares, keys = self.squares + other.squares, self.keys + other.keys
        sums_of_keys = self.sums_of_keys + other.sums_of_keys
        return Facts(self.rows + other.rows, self.sums + other.sums, squares, *extremes, keys, sums_of_keys)


def save(nodes: Nodes, root: Path, partitions: int, rows: int) -> tuple[cs.Manifest, Facts]:
    """Save the data, as many partitions on one node as on another, and say what is in it."""
    client = nodes.client
    places = [nodes.addresses(number % NODES) for number in range(partitions)]
    parts = [client.submit(part, n, rows, workers=place, pure=False) for n, place in enumerate(places)]
    facts = client.gather([client.submit(Facts.of, p) for p in parts])
    frame = dd.from_delayed(parts, meta=part(0, 1), verify_meta=False)
    manifest = cs.persist_to_disk(frame, name=root.name, root=root, durable=False, codec="none")
    return manifest, sum(facts[1:], facts[0])


# --------------------------------------------------------------------------------------------------------------- works
def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Give one row: how many rows there are, how many keys, and the sum of all else."""
    facts = {"rows": len(frame), "keys": frame["k"].nunique(), "t": frame["t"].sum(), "x": frame["x"].sum()}
    return pd.DataFrame([facts], dtype="f8")


def summaries(frame: Any) -> Any:
    """Give the sum of the summaries of all partitions."""
    return frame.map_partitions(summary, meta=summary(part(0, 1))).sum()


def steps(frame: pd.DataFrame) -> pd.DataFrame:
    """Give the difference of each row to the one before."""
    return frame.diff()


def is_sum(result: pd.Series, facts: Facts) -> bool:
    return np.allclose(result, facts.sums)


def is_description(result: pd.DataFrame, facts: Facts) -> bool:
    mean = facts.sums / facts.rows
    deviation = np.sqrt((facts.squares - facts.rows * mean**2) / (facts.rows - 1))
    exact = {"count": [facts.rows] * 4, "mean": mean, "std": deviation, "min": facts.least, "max": facts.most}
    good = all(np.allclose(result.loc[name], value, rtol=1e-4) for name, value in exact.items())
    quartiles = result.loc[["25%", "50%", "75%"], "x"]  # of numbers between 0 and 1; dask approximates
    return good and np.allclose(quartiles, [0.25, 0.5, 0.75], atol=0.05)


def is_mean_of_keys(result: pd.DataFrame, facts: Facts) -> bool:
    return np.allclose(result.sort_index().T, facts.sums_of_keys[1:] / facts.keys)


def is_shuffled(result: pd.Series, facts: Facts) -> bool:
    """Tell whether all rows are there, and each key in one partition only."""
    return np.allclose(result, [facts.rows, (facts.keys > 0).sum(), *facts.sums[1:3]])


def is_complete(result: pd.Series, facts: Facts) -> bool:
    return np.allclose(result[["rows", "t", "x"]], [facts.rows, *facts.sums[1:3]])


def is_steps(result: pd.Series, facts: Facts) -> bool:
    """Tell whether each partition saw the last row of the one before: then every step of ``t`` is one."""
    return result["t"] == facts.rows - 1


Work = tuple[Callable[[Any], Any], Callable[[Any, Facts], bool]]
WORKS: dict[str, Work] = {
    "sum": (lambda df: df.sum(), is_sum),
    "describe": (lambda df: df.describe(), is_description),
    "groupby-mean": (lambda df: df.groupby("k").mean(), is_mean_of_keys),
    "task shuffle": (lambda df: summaries(df.shuffle("k", shuffle_method="tasks")), is_shuffled),
    "p2p shuffle": (lambda df: summaries(df.shuffle("k", shuffle_method="p2p")), is_shuffled),
    "repartition": (lambda df: summaries(df.repartition(npartitions=df.npartitions // 4)), is_complete),
    "map_overlap": (lambda df: df.map_overlap(steps, before=1, after=0).sum(), is_steps),
}


# ----------------------------------------------------------------------------------------------------------- measuring
class Pins(SchedulerPlugin):
    """Restricts each read from the nodes' own disks to the workers of a node that holds the partition.

    Parameters
    ----------
    root : str
        Where nodes have their disks.
    addresses : dict of str to list of str
        Workers by host name.
    """

    name = "pins"

    def __init__(self, root: str, addresses: dict[str, list[str]]) -> None:
        self.root, self.addresses = root, addresses

    def update_graph(self, scheduler: Any, *, tasks: list[Any], **kwargs: Any) -> None:
        for key in tasks:
            ts = scheduler.tasks[key]
            args = getattr(ts.run_spec, "args", ())
            if args and isinstance(args[0], ReadJob):
                job, _, _, holders = args
                hosts = [job.stores[h].host for h in holders if job.stores[h].root == self.root]
                if hosts:
                    ts.worker_restrictions = {address for host in hosts for address in self.addresses[host]}
                    ts.loose_restrictions = False


def memory(field: str) -> float:
    """Give a value of this process from /proc, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) / 1024


def start(dask_worker: Any) -> float:
    """Give back what memory is free, start to watch this worker; the resident memory it has now."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is resident
    dask_worker.plugins[NAME].counts.clear()
    return memory("VmRSS")


def finish(dask_worker: Any) -> tuple[float, Counter[str]]:
    """Give the peak of this worker, and how often it read from where."""
    return memory("VmHWM"), dask_worker.plugins[NAME].counts


@dataclass
class Measured:
    """What the rounds measured of one work done in one way."""

    seconds: list[float] = field(default_factory=list)
    peak: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    local: list[float] = field(default_factory=list)


def measure(client: Client, frame: Any, work: Work, facts: Facts, into: Measured) -> None:
    """Do a work once."""
    make, is_right = work
    while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
        time.sleep(0.05)  # results of what went before are still being released
    into.before.append(max(client.run(start).values()))
    with client.as_current():
        started = time.perf_counter()
        result = make(frame).compute()
        into.seconds.append(time.perf_counter() - started)
    peaks, counts = zip(*client.run(finish).values(), strict=True)
    reads = sum(counts, Counter())
    if not is_right(result, facts):
        raise AssertionError(f"a wrong result: {result}")
    local, of_all = reads["local"], reads["local"] + reads["fetched"]
    if of_all < frame.npartitions:
        raise AssertionError(f"{frame.npartitions} partitions, but {of_all} reads")
    into.peak.append(max(peaks))
    into.local.append(local / of_all)


@contextmanager
def clusters(directory: Path, partitions: int, rows: int) -> Iterator[tuple[dict[str, tuple[Client, Any]], Facts]]:
    """Start two clusters of the same disks, one without and one with this project's scheduler plugin; save the data.

    Yields
    ------
    client and collection by way, and what is in the data
    """
    options = {"directory": directory, "memory_limit": "4GB", "config": CONFIG, "validate": False}
    shared = directory / "shared"
    shared.mkdir(mode=0o700)
    with ExitStack() as stack:
        with Nodes(NODES, **options | {"config": CONFIG | STAY}) as nodes, nodes.client.as_current():
            manifests = {root: save(nodes, root, partitions, rows) for root in (shared, nodes.root)}
        stock, ours = (stack.enter_context(Nodes(NODES, **options)) for _ in range(2))
        held = Counter(host_of(manifests[ours.root][0]))
        if set(held.values()) != {partitions // NODES}:
            raise AssertionError(f"the partitions are not even: {held}")
        frames = {root: cs.rehydrate(manifest, client=ours.client) for root, (manifest, _) in manifests.items()}
        addresses = {f"node{i}": stock.addresses(i) for i in range(NODES)}
        stock.client.register_plugin(Pins(str(stock.root), addresses))
        stock.client.register_plugin(Sharing())  # which counts
        ways = {
            "shared": (stock.client, frames[shared]),
            "pins": (stock.client, frames[stock.root]),
            "ckpt-spill": (ours.client, frames[ours.root]),
        }
        yield ways, manifests[shared][1]


def host_of(manifest: cs.Manifest) -> Iterator[str]:
    """Give the host of each partition of a manifest."""
    for partition in manifest.partitions:
        [holder] = partition.holders
        yield manifest.stores[holder].host


# ----------------------------------------------------------------------------------------------------------- reporting
def report(name: str, measured: dict[str, Measured]) -> bool:
    """Print the lines of one work; tell whether it keeps the promise."""
    seconds, peaks, before, local = (
        {way: statistics.median(getattr(m, what)) for way, m in measured.items()}
        for what in ("seconds", "peak", "before", "local")
    )
    for way in WAYS:
        slower, fuller = seconds[way] / seconds["pins"], peaks[way] / peaks["shared"]
        numbers = f"{seconds[way]:.2f}", f"{peaks[way]:.0f}", f"{before[way]:.0f}", f"{local[way]:.0%}"
        print(ROW.format(name if way == WAYS[0] else "", way, *numbers, f"{slower:.2f}", f"{fuller:.2f}"))
    way = WAYS[-1]
    in_time = seconds[way] <= seconds["pins"] * SLOWER * NOISE
    return in_time and peaks[way] <= peaks["shared"] * PEAK and local[way] >= LOCAL


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--partitions", type=int, default=64, help="a multiple of 16; default 64")
    parser.add_argument("--size", type=int, default=32, metavar="MIB", help="of a partition in memory; default 32")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS), help="default: all")
    parser.add_argument("--directory", help="on the disk to use; default: the system's temporary directory")
    parser.add_argument("--check", action="store_true", help="fail where the promise is not kept")
    options = parser.parse_args()
    rows = (options.size << 20) // 32
    measured: dict[str, dict[str, Measured]] = {}
    with (
        tempfile.TemporaryDirectory(dir=options.directory) as scratch,
        dask.config.set({"ckpt-spill.root": None}),
        clusters(Path(scratch), options.partitions, rows) as (ways, facts),
    ):
        for number in range(options.rounds + 1):
            for name in options.works:
                of_work = measured.setdefault(name, defaultdict(Measured))
                for way in (*WAYS[number % 3 :], *WAYS[: number % 3]):
                    measure(*ways[way], WORKS[name], facts, of_work[way])
            if number == 0:
                measured.clear()
    print(f"{NODES} nodes, {options.partitions} partitions of {options.size} MiB, medians of {options.rounds} rounds\n")
    print(ROW.format("", "", "seconds", "peak MiB", "before MiB", "local", "time/pins", "peak/shared"))
    kept = [report(name, measured[name]) for name in options.works]
    print(ROW.format("limit", "ckpt-spill", "", "", "", f">= {LOCAL:.0%}", f"<= {SLOWER}", f"<= {PEAK}"))
    return all(kept) or not options.check


if __name__ == "__main__":
    sys.exit(not main())
