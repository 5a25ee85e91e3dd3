"""Partition files against pandas' parquet: one partition at a time, one process, both in the same run.

    python benchmarks/partition_files.py [--rounds 5] [--threads N] [--codec auto] [--directory DIR] [--check]

Written: `DataFrame.to_parquet` with its defaults (pyarrow, snappy) followed by `fdatasync` of its file, and a partition
file with `durable=True`. Read: `pandas.read_parquet`, and the partition file with every check on. Each round writes and
reads all data both ways, in turns; the table has the medians of the rounds, after one round that is not counted. Before
each timed step memory is touched and given back, so that neither side pays for the first use of memory that a virtual
machine gets from its host; `--fresh-memory` leaves that out. `--cold` drops a file from the page cache before reading.

The promise, over the DataFrames taken together: at least twice as fast to write and to read, at no more bytes.
`--check` makes it the exit status. The arrays, which pandas cannot write as parquet, are compared with `numpy.save`,
for information.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ckpt_spill.store import partition

IDENTITY = partition.Identity("benchmark", 1, 0)


# ---------------------------------------------------------------------------------------------------------------- data
def timeseries(rng: np.random.Generator, scale: float) -> pd.DataFrame:
    """A sensor log by the second: few names, small integers, two columns of noise."""
    n = int(3_600_000 * scale)
    names = np.array(
        [f"{a}{b}" for a in ("Anna", "Bert", "Carl", "Dora", "Emil") for b in ("", "o", "ine", "sen", "a")]
    )
    return pd.DataFrame(
        {
            "name": pd.array(names[rng.integers(0, len(names), n)], dtype="str"),
            "id": rng.poisson(1000, n),
            "x": rng.uniform(-1, 1, n),
            "y": rng.uniform(-1, 1, n),
        },
        index=pd.DatetimeIndex(pd.date_range("2000-01-01", periods=n, freq="s").values, name="timestamp"),
    )


def lineitem(scale: float, directory: str) -> pd.DataFrame | None:
    """A million rows of TPC-H lineitem; None where its generator is not installed."""
    program = shutil.which("tpchgen-cli") or shutil.which("tpchgen-cli", path=os.path.dirname(sys.executable))
    if program is None:
        return None
    command = [program, "parquet", "-s", "1", "--tables=lineitem", f"--output-dir={directory}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file = os.path.join(directory, "lineitem.parquet")
    table = pq.read_table(file).slice(0, int(1_000_000 * scale))
    os.remove(file)
    for position, column in enumerate(table.schema):
        wanted = column.type
        if pa.types.is_decimal(wanted):
            wanted = pa.float64()
        elif pa.types.is_date(wanted):
            wanted = pa.timestamp("ms")
        elif pa.types.is_string_view(wanted):
            wanted = pa.large_string()
        # In one piece, as a computed partition is.
        values = pa.chunked_array([table.column(position).cast(wanted).combine_chunks()])
        table = table.set_column(position, column.name, values)
    return table.to_pandas().copy()


def weblog(rng: np.random.Generator, scale: float) -> pd.DataFrame:
    """An access log: rising times, few levels and hosts, long messages with addresses and random ids."""
    n = int(900_000 * scale)
    routes = ["/shop/item/{}", "/shop/cart?user={}", "/img/{}.webp", "/account/{}/orders?page=2", "/ping?id={}"]
    route, user, took = rng.integers(0, len(routes), n), rng.integers(0, 1_000_000, n), rng.integers(1, 5000, n)
    address, trace = rng.integers(0, 256, (n, 4)), rng.integers(0, 1 << 63, n)
    message = [
        f'{a}.{b}.{c}.{d} "GET {routes[r].format(u)} HTTP/1.1" {200 if t % 7 else 404} {t * 37} '
        f'"Mozilla/5.0 (X11; Linux x86_64)" trace={i:016x} in {t} ms'
        for (a, b, c, d), r, u, t, i in zip(
            address.tolist(), route.tolist(), user.tolist(), took.tolist(), trace.tolist(), strict=True
        )
    ]
    levels = np.array(["INFO", "INFO", "INFO", "DEBUG", "WARNING", "ERROR"])
    return pd.DataFrame(
        {
            "time": 1_700_000_000_000_000 + np.cumsum(rng.integers(0, 2000, n)),
            "level": pd.array(levels[rng.integers(0, len(levels), n)], dtype="str"),
            "host": pd.array([f"front-{k:02d}.example.org" for k in rng.integers(0, 40, n)], dtype="str"),
            "message": pd.array(message, dtype="str"),
        }
    )


def ids(rng: np.random.Generator, scale: float) -> pd.DataFrame:
    """Keys for a join: rising ids, groups, categoricals both shuffled and in stretches, a rare flag."""
    n = int(70_000 * scale) * 100
    stretches = np.repeat(rng.integers(0, 50, n // 100), 100)
    return pd.DataFrame(
        {
            "id": np.cumsum(rng.integers(1, 12, n)),
            "group": rng.integers(0, 1000, n),
            "kind": pd.Categorical.from_codes(rng.integers(0, 5, n), list("vwxyz")),
            "batch": pd.Categorical.from_codes(stretches, [f"batch {k}" for k in range(50)]),
            "flag": rng.random(n) < 0.1,
        }
    )


def noise(rng: np.random.Generator, scale: float) -> np.ndarray:
    """Random float64: nothing to gain but in the exponents."""
    return rng.random(int(16 * (1 << 20) * scale))


def field_of_waves(rng: np.random.Generator, scale: float) -> np.ndarray:
    """A smooth float32 field with a little noise."""
    rows = int(4096 * scale)
    y, x = np.linspace(0, 200, rows)[:, None], np.linspace(0, 300, 8192)[None, :]
    return (np.sin(x) * np.cos(y) * 20 + 15 + rng.normal(0, 0.01, (rows, 8192))).astype("f4")


# -------------------------------------------------------------------------------------------------------------- timing
@dataclass
class Times:
    """What the rounds measured of one way to store one value."""

    write: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    cpu_of_write: list[float] = field(default_factory=list)
    cpu_of_read: list[float] = field(default_factory=list)
    stored: int = 0


def touch_memory(nbytes: int) -> None:
    """Have the kernel hold this much memory that is free to be used at once, in pages as large as arrays get."""
    np.ones(nbytes, np.uint8)


@contextmanager
def timed(seconds: list[float], cpu: list[float], memory: int) -> Iterator[None]:
    """Time a step; no garbage of the one before is collected in it."""
    gc.collect()
    if memory:
        touch_memory(memory)
    start, cpu_start = time.perf_counter(), time.process_time()
    yield
    seconds.append(time.perf_counter() - start)
    cpu.append(time.process_time() - cpu_start)


def sync(path: str) -> None:
    """Flush a file that a library has written and closed."""
    fd = os.open(path, os.O_RDONLY)
    os.fdatasync(fd)
    os.close(fd)


def drop_cache(path: str) -> None:
    """Have the file's pages read from the disk next time."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


class Bench:
    """Stores values in both ways and checks what comes back."""

    def __init__(self, directory: str, options: argparse.Namespace) -> None:
        self.directory = directory
        self.options = options
        self.times: dict[tuple[str, str], Times] = {}

    def round(self, name: str, value: Any, *, check: bool) -> None:
        """Write and read one value in both ways, and perhaps see that it came back."""
        theirs = (to_parquet, pd.read_parquet) if isinstance(value, pd.DataFrame) else (save_array, np.load)
        ours = (self.write_partition, self.read_partition)
        for way, (write, read) in (("theirs", theirs), ("ours", ours)):
            times = self.times.setdefault((name, way), Times())
            path = os.path.join(self.directory, f"{way}.npy")
            with timed(times.write, times.cpu_of_write, self.memory(value)):
                write(value, path)
            times.stored = os.path.getsize(path)
            if self.options.cold:
                drop_cache(path)
            with timed(times.read, times.cpu_of_read, self.memory(value)):
                result = read(path)
            if check and way == "ours":
                same(result, value)
            os.remove(path)

    def forget_times(self) -> None:
        """Begin to count."""
        for times in self.times.values():
            for measured in (times.write, times.read, times.cpu_of_write, times.cpu_of_read):
                measured.clear()

    def memory(self, value: Any) -> int:
        """How much memory to touch before a step."""
        return 0 if self.options.fresh_memory else 3 * raw_size(value)

    def write_partition(self, value: Any, path: str) -> None:
        """Write ours."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            written = partition.write(
                fd, value, IDENTITY, codec=self.options.codec, threads=self.options.threads, durable=True
            )
        finally:
            os.close(fd)
        self.digest = written.digest

    def read_partition(self, path: str) -> Any:
        """Read ours."""
        return partition.read(path, IDENTITY, self.digest, threads=self.options.threads)


def to_parquet(value: pd.DataFrame, path: str) -> None:
    """Write theirs."""
    value.to_parquet(path)
    sync(path)


def save_array(value: np.ndarray, path: str) -> None:
    """Write an array as numpy does."""
    np.save(path, value)
    sync(path)


def raw_size(value: Any) -> int:
    """Bytes in memory."""
    return int(value.memory_usage(index=True, deep=True).sum()) if isinstance(value, pd.DataFrame) else value.nbytes


def same(result: Any, value: Any) -> None:
    """Raise unless the value came back."""
    if isinstance(value, pd.DataFrame):
        equal = result.equals(value) and list(result.dtypes) == list(value.dtypes) and result.index.equals(value.index)
    else:
        equal = np.array_equal(result, value)
    if not equal:
        raise ValueError("what was read is not what was written")


# -------------------------------------------------------------------------------------------------------------- report
COLUMNS = "{:<16}{:>8} |{:>8}{:>8}{:>7} |{:>8}{:>8}{:>7} |{:>8}{:>8}{:>7}"


def line(name: str, raw: float, theirs: tuple[float, float, float], ours: tuple[float, float, float]) -> str:
    """One line of the table: megabytes, seconds, and how many times better ours is."""
    cells: list[Any] = [name, f"{raw / 1e6:.0f}"]
    for digits, (a, b) in zip((0, 3, 3), zip(theirs, ours, strict=True), strict=True):
        cells += [f"{a:.{digits}f}", f"{b:.{digits}f}", f"{a / b:.2f}x"]
    return COLUMNS.format(*cells)


def report(values: dict[str, Any], times: dict[tuple[str, str], Times], against: str) -> tuple[float, float, float]:
    """Print one table; return how many times smaller, faster to write and faster to read ours is over its sum."""
    print(
        COLUMNS.format("", "MB raw", "MB", "ours", "", "write s", "ours", "", "read s", "ours", ""),
        f" against {against}",
    )
    sums = {"theirs": [0.0, 0.0, 0.0], "ours": [0.0, 0.0, 0.0]}
    for name, value in values.items():
        row = {}
        for way in ("theirs", "ours"):
            t = times[name, way]
            row[way] = (t.stored / 1e6, statistics.median(t.write), statistics.median(t.read))
            sums[way] = [a + b for a, b in zip(sums[way], row[way], strict=True)]
        print(line(name, raw_size(value), row["theirs"], row["ours"]))
    total = sum(raw_size(value) for value in values.values())
    print(line("together", total, tuple(sums["theirs"]), tuple(sums["ours"])))
    cpu = {
        way: [
            sum(statistics.median(getattr(times[name, way], step)) for name in values)
            for step in ("cpu_of_write", "cpu_of_read")
        ]
        for way in sums
    }
    print(line("CPU seconds", total, (sums["theirs"][0], *cpu["theirs"]), (sums["ours"][0], *cpu["ours"])), "\n")
    smaller, write, read = (a / b for a, b in zip(sums["theirs"], sums["ours"], strict=True))
    return smaller, write, read


def main() -> int:
    """Measure and print; the exit status is 1 where `--check` is given and the promise does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--codec", choices=["auto", "zstd", "lz4", "none"], default="auto")
    parser.add_argument("--scale", type=float, default=1.0, help="of the data, 1.0 being some 900 MB")
    parser.add_argument("--directory", help="on the disk to measure; default: the system's temporary directory")
    parser.add_argument("--cold", action="store_true", help="read from the disk, not from the page cache")
    parser.add_argument("--fresh-memory", action="store_true", help="do not touch memory before each step")
    parser.add_argument("--check", action="store_true", help="exit with 1 when the promise does not hold")
    options = parser.parse_args()

    rng = np.random.default_rng(20260101)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        frames = {
            "timeseries": timeseries(rng, options.scale),
            "lineitem": lineitem(options.scale, directory),
            "weblog": weblog(rng, options.scale),
            "ids": ids(rng, options.scale),
        }
        if frames["lineitem"] is None:
            print("lineitem is left out: tpchgen-cli is not installed", file=sys.stderr)
            del frames["lineitem"]
        arrays = {"noise": noise(rng, options.scale), "waves": field_of_waves(rng, options.scale)}
        bench = Bench(directory, options)
        for number in range(options.rounds + 1):
            for name, value in (frames | arrays).items():
                bench.round(name, value, check=number == 0)
            if number == 0:
                bench.forget_times()
    print(
        f"codec {options.codec}, {options.threads} threads, medians of {options.rounds} rounds, "
        f"{'cold' if options.cold else 'cached'} reads, memory {'fresh' if options.fresh_memory else 'touched'}\n"
    )
    smaller, write, read = report(frames, bench.times, "to_parquet (snappy) + fdatasync")
    report(arrays, bench.times, "numpy.save + fdatasync")
    kept = smaller >= 1 and write >= 2 and read >= 2
    print(f"promise (2x to write, 2x to read, no more bytes): {'kept' if kept else 'NOT kept'}")
    return int(options.check and not kept)


if __name__ == "__main__":
    sys.exit(main())
