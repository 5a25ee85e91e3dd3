"""The main job on real data: save a shuffled collection, lose the cluster, read it back on another one.

``make demo`` runs it: the line items of TPC-H, made by ``tpchgen-cli``, shuffled by order key, are saved by two workers
with ``persist_to_disk``, and for comparison with ``to_parquet``. The cluster is shut down. A new one of three workers
reads both back, and TPC-H query 1 on what was read has to give exactly what it gave on the original.

Both start from the same collection in memory. Both are on the disk, and not only in the page cache, when the clock
stops; both are read after the page cache was asked to forget them. Everything stays below ``demo-data/``.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
from dask.utils import format_bytes
from distributed import Client, LocalCluster, wait

import ckpt_spill as cs

DATA = Path(__file__).parents[1] / "demo-data"
PRICES = ["l_quantity", "l_extendedprice", "l_discount", "l_tax"]
EXPLANATION = """
write: from the memory of two workers, until everything is on the disk. read: from the disk into the memory of three.
query: TPC-H query 1 from the files, 7 of {columns} columns.
"""
ROW = "{:<28}{:>11}{:>12}{:>12}{:>12}{:>9}{:>9}{:>9}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--scale", type=float, default=0.5, help="TPC-H scale factor; 1 is 6 million rows (default 0.5)"
    )
    parser.add_argument("--partitions", type=int, default=24, help="partitions after the shuffle (default 24)")
    options = parser.parse_args()
    start = time.perf_counter()
    files = line_items(options.scale)

    parquet, checkpoint = DATA / "by-order.parquet", DATA / "checkpoints"
    for old in (parquet, checkpoint):
        shutil.rmtree(old, ignore_errors=True)
    with cluster(2) as client:
        print("shuffling by order key, two workers")
        # Prices are decimals in the files. They become floats, as in dask's own TPC-H queries, before the clock starts.
        items = dd.read_parquet(files).astype(dict.fromkeys(PRICES, "float64"))
        shuffled = items.shuffle("l_orderkey", npartitions=options.partitions).persist()
        wait(shuffled)
        rows, expected, contents = len(shuffled), query_1(shuffled), digests(shuffled)
        print("saving with persist_to_disk, and with to_parquet")
        saved, write_seconds = timed(lambda: cs.persist_to_disk(shuffled, name="by-order", root=checkpoint))
        saved.save(DATA / "by-order.json")
        _, parquet_write_seconds = timed(lambda: (shuffled.to_parquet(parquet), flush(parquet)))
        client.shutdown()
    print("that cluster is gone; reading back, three workers")

    with cluster(3):
        forget(checkpoint)
        read, read_seconds = timed(lambda: in_memory(cs.rehydrate(DATA / "by-order.json")))
        assert digests(read) == contents, "a partition came back changed"
        pd.testing.assert_frame_equal(query_1(read), expected, check_exact=True)
        del read
        forget(parquet)
        read, parquet_read_seconds = timed(lambda: in_memory(dd.read_parquet(parquet)))
        query_1(read)
        del read
        forget(checkpoint)
        answer, query_seconds = timed(lambda: query_1(cs.rehydrate(DATA / "by-order.json")))
        forget(parquet)
        parquet_answer, parquet_query_seconds = timed(lambda: query_1(dd.read_parquet(parquet)))
    pd.testing.assert_frame_equal(answer, expected, check_exact=True)
    pd.testing.assert_frame_equal(parquet_answer, expected, rtol=1e-9, check_dtype=False)

    stored = sum(path.stat().st_size for path in parquet.rglob("*.parquet"))
    times = [f"{seconds:.2f}" for seconds in (write_seconds, read_seconds, query_seconds)]
    parquet_times = [
        f"{seconds:.2f}" for seconds in (parquet_write_seconds, parquet_read_seconds, parquet_query_seconds)
    ]
    size = f"{rows:,}", saved.npartitions, format_bytes(saved.nbytes)
    print()
    print(ROW.format("", "rows", "partitions", "raw", "stored", "write s", "read s", "query s"))
    print(ROW.format("persist_to_disk, rehydrate", *size, format_bytes(saved.stored_nbytes), *times))
    print(ROW.format("to_parquet, read_parquet", *size, format_bytes(stored), *parquet_times))
    print(EXPLANATION.format(columns=len(items.columns)))
    print(answer.to_string(index=False, float_format="{:,.2f}".format))
    types = zip(items.dtypes.astype(str), dd.read_parquet(parquet).dtypes.astype(str), strict=True)
    changed = [f"{saved_as} as {read_as}" for saved_as, read_as in types if saved_as != read_as]
    print(
        "\nTPC-H query 1 gives exactly the answer of the original, and every partition came back with the same types,\n"
        "labels and values. From parquet the answer is the same but for rounding and types: "
        f"{len(changed)} columns came back\nas another type ({', '.join(dict.fromkeys(changed)) or 'none'})."
        f"\n\n{time.perf_counter() - start:.0f} s in all; the files are in {DATA}"
    )


def line_items(scale: float) -> Path:
    """Make the table's files with the generator of the environment, unless they are there."""
    directory = DATA / f"tpch-{scale:g}"
    if not directory.exists():
        print(f"making line items of TPC-H, scale factor {scale:g}")
        DATA.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=DATA) as fresh:
            generator = shutil.which("tpchgen-cli", path=os.path.dirname(sys.executable)) or "tpchgen-cli"
            options = [
                "--tables=lineitem",
                "--parts=8",
                f"--scale-factor={scale:g}",
                f"--output-dir={fresh}",
                "--quiet",
            ]
            subprocess.run([generator, "parquet", *options], check=True)
            os.rename(fresh, directory)
            os.mkdir(fresh)  # for the context to remove
    return directory / "lineitem"


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[Client]:
    """Start worker processes of one thread each."""
    with (
        dask.config.set({"temporary-directory": str(DATA)}),
        LocalCluster(workers, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.ERROR) as local,
        Client(local) as client,
    ):
        yield client


def query_1(items: dd.DataFrame) -> pd.DataFrame:
    """TPC-H query 1, the pricing summary report."""
    items = items[items.l_shipdate <= pd.Timestamp("1998-09-02").date()]
    discounted = items.l_extendedprice * (1 - items.l_discount)
    summary = items.assign(discounted=discounted, charge=discounted * (1 + items.l_tax))
    summary = summary.groupby(["l_returnflag", "l_linestatus"]).agg(
        sum_qty=("l_quantity", "sum"),
        sum_base_price=("l_extendedprice", "sum"),
        sum_disc_price=("discounted", "sum"),
        sum_charge=("charge", "sum"),
        avg_qty=("l_quantity", "mean"),
        avg_price=("l_extendedprice", "mean"),
        avg_disc=("l_discount", "mean"),
        count_order=("l_quantity", "count"),
        split_out=1,
    )
    return summary.compute().sort_index().reset_index()


def digests(items: dd.DataFrame) -> list[tuple[Any, ...]]:
    """Give the type, the labels and a hash of the values of every partition, in order."""
    return list(dask.compute(*[dask.delayed(digest)(partition) for partition in items.to_delayed()]))


def digest(partition: pd.DataFrame) -> tuple[Any, ...]:
    values = pd.util.hash_pandas_object(partition, index=True)
    return len(partition), type(partition.index).__name__, str(partition.dtypes.tolist()), int(values.sum())


def in_memory(items: dd.DataFrame) -> dd.DataFrame:
    items = items.persist()
    wait(items)
    return items


def timed(work: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def flush(directory: Path) -> None:
    """Wait until all files are on the disk, as ``persist_to_disk`` does by itself."""
    for path in directory.rglob("*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def forget(directory: Path) -> None:
    """Ask the system to drop the files from its page cache, so that they are read from the disk."""
    for path in directory.rglob("*"):
        if path.is_file() and hasattr(os, "posix_fadvise"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
