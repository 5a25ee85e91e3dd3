"""Ways to keep a collection beyond a restart of the workers, for the benchmarks of local checkpoints.

Each backend writes a collection, and gives what it wrote back, partition by partition, to a function that runs on the
workers. What is on disk when ``write`` returns has been flushed to it, unless ``flush`` is False.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, wait

import ckpt_spill as cs
from benchmarks.local_checkpoint_workers import libraries

PRIME = 0x9E3779B97F4A7C15


class Summary(NamedTuple):
    """A reduction that is exact in any order of the rows: how many, and a sum modulo 2**64 over a mix of each row."""

    rows: int
    digest: int
    nbytes: int

    @classmethod
    def of(cls, partitions: pd.DataFrame) -> Summary:
        """Add up the summaries of partitions."""
        return cls(*(sum(map(int, partitions[name])) % 2**64 for name in cls._fields))


def summarise(partition: Any) -> pd.DataFrame:
    """Reduce a partition of columns of eight bytes, of pandas or cuDF, to one row."""
    mixed, indexed = 0, partition.index.values.view("uint64")
    for name in partition.columns:
        column = partition[name]
        values = (column.astype("int64") if column.dtype.kind == "M" else column).values
        mixed = (mixed * PRIME) ^ values.view("uint64")
    digest = (int(mixed.sum()) + PRIME * int(indexed.sum())) % 2**64
    width = len(partition.columns) + (type(partition.index).__name__ != "RangeIndex")
    columns = {"rows": len(partition), "digest": np.uint64(digest), "nbytes": 8 * width * len(partition)}
    return pd.DataFrame(columns, index=[0])


META = summarise(pd.DataFrame({"x": np.zeros(0)})).iloc[:0]


def summary(collection: Any) -> Summary:
    """Reduce a collection."""
    return Summary.of(collection.map_partitions(summarise, meta=META, enforce_metadata=False).compute())


# ------------------------------------------------------------------------------------------------ files, on the workers
def files(directory: str) -> list[str]:
    return [os.path.join(at, name) for at, _, names in os.walk(directory) for name in names]


def sizes(directory: str) -> dict[tuple[str, str], int]:
    """Give the sizes of the files below a directory, by host and path: workers of one host may see the same ones."""
    return {(socket.gethostname(), path): os.path.getsize(path) for path in files(directory)}


def sync(path: str) -> None:
    """Wait until a file is on the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def drop_cache(directory: str) -> None:
    """Let the system's page cache forget the files below a directory, so that they are read from the disk."""
    for path in files(directory):
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def numbers(directory: str) -> list[int]:
    """Give the numbers of the partitions that this worker sees."""
    return [int(os.path.basename(path).split(".")[1]) for path in files(directory)]


def part_file(directory: str, number: int) -> str:
    return os.path.join(directory, f"part.{number}.parquet")


def save_part(partition: Any, directory: str, number: int, flush: bool) -> None:
    os.makedirs(directory, exist_ok=True)
    path = part_file(directory, number)
    partition.to_parquet(path)
    if flush:
        sync(path)


def with_part(function: Callable[..., Any], directory: str, number: int, gpu: bool, *args: Any) -> Any:
    """Read the file of a partition, and call a function with what is in it."""
    frames, _ = libraries(gpu)
    return function(frames.read_parquet(part_file(directory, number)), *args)


# ------------------------------------------------------------------------------------------------------------- backends
class Backend:
    """A way to keep one collection.

    Parameters
    ----------
    client : distributed.Client
    directory : str
        Of this checkpoint alone, made when it is needed. What it is on each worker is for the backend to say.
    gpu : bool
        Whether partitions are of cuDF.
    flush : bool
        Whether what is written has to be on the disk, and not only in the page cache.
    """

    about: str

    def __init__(self, client: Client, directory: str, gpu: bool, flush: bool):
        self.client, self.directory, self.gpu, self.flush = client, directory, gpu, flush

    def write(self, collection: Any) -> None:
        """Compute a collection and keep it."""
        raise NotImplementedError

    def collection(self) -> Any:
        """Give the lazy collection that was kept."""
        raise NotImplementedError

    def write_again(self, other: Any) -> None:
        """Read what another object of this class has kept, and keep it here, too."""
        self.write(other.collection())

    def reduce(self) -> Summary:
        """Read all that was kept, and reduce it."""
        return summary(self.collection())

    def let_go(self) -> None:
        """Forget what is in memory, in the page cache as well."""
        self.client.run(drop_cache, self.directory)

    def stored(self) -> int:
        """Give the bytes of the files, on all hosts."""
        seen: dict[tuple[str, str], int] = {}
        for of_worker in self.client.run(sizes, self.directory).values():
            seen |= of_worker
        return sum(seen.values())

    def delete(self) -> None:
        self.client.run(shutil.rmtree, self.directory, ignore_errors=True)


class CkptSpill(Backend):
    about = "persist_to_disk to each worker's local disk, rehydrate"

    def write(self, collection):
        self.manifest = cs.persist_to_disk(
            collection, name=self.directory, root=self.directory, durable=self.flush, progress=False
        )

    def collection(self):
        return cs.rehydrate(self.manifest)

    def delete(self):
        self.manifest.delete()
        super().delete()


class Parquet(Backend):
    about = (
        "to_parquet of each partition to the local disk of the worker that has it; read by hand, as dask has no way to "
        "say that a partition of a DataFrame is on some disk: each file by a task that is restricted to the workers "
        "that see it"
    )

    def write(self, collection):
        save = dask.delayed(save_part, pure=False)
        parts = collection.to_delayed()
        self.npartitions = len(parts)
        dask.compute(*(save(part, self.directory, number, self.flush) for number, part in enumerate(parts)))

    def write_again(self, other):
        self.npartitions = other.npartitions
        other.each(save_part, lambda number: (self.directory, number, self.flush))

    def reduce(self):
        return Summary.of(pd.concat(self.each(summarise)))

    def each(self, function: Callable[..., Any], args: Callable[[int], tuple[Any, ...]] = lambda _: ()) -> list[Any]:
        """Call a function with each partition, on a worker that sees its file."""
        holders: dict[int, list[str]] = {}
        for worker, seen in self.client.run(numbers, self.directory).items():
            for number in seen:
                holders.setdefault(number, []).append(worker)
        if len(holders) != self.npartitions:
            raise RuntimeError(f"{len(holders)} of {self.npartitions} partitions are left in {self.directory}")
        options = {"pure": False, "allow_other_workers": False}
        futures = [
            self.client.submit(
                with_part, function, self.directory, number, self.gpu, *args(number), workers=workers, **options
            )
            for number, workers in sorted(holders.items())
        ]
        return self.client.gather(futures)


class ToSharedParquet(Backend):
    about = "dask's to_parquet and read_parquet, to one directory that the client and all workers have to share"

    def write(self, collection):
        collection.to_parquet(self.directory)
        if self.flush:
            self.client.gather(self.client.map(sync, files(self.directory), pure=False))

    def collection(self):
        with dask.config.set({"dataframe.backend": "cudf" if self.gpu else "pandas"}):
            return dd.read_parquet(self.directory)

    def stored(self):
        return sum(sizes(self.directory).values())

    def delete(self):
        shutil.rmtree(self.directory, ignore_errors=True)


class Persist(Backend):
    about = (
        "dask's persist, to the memory of the workers, which is lost at the restart: to read it back is to compute all "
        "of it again. Shows what the work costs without a checkpoint"
    )

    def write(self, collection):
        self.source, self.kept = collection, collection.persist()
        wait(self.kept)

    def collection(self):
        return self.source

    def let_go(self):
        self.kept = None

    def stored(self):
        return 0

    def delete(self):
        self.kept = None


BACKENDS: dict[str, type[Backend]] = {
    "ckpt-spill": CkptSpill,
    "parquet": Parquet,
    "to-shared-parquet": ToSharedParquet,
    "persist": Persist,
}
