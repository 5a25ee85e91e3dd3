"""How the cases are written down, and collections made of ready partitions.

A case is a function of a test module, decorated with the number of the kind of report it stands for and the kind of
collection its partitions make. A worker makes a partition by calling that function itself: pickle, which would carry
it there, does not keep everything that has to be kept (a hard mask, for one).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
from dask import delayed

CASES: dict[str, Case] = {}


@dataclasses.dataclass(frozen=True)
class Case:
    """One hard collection: ``build()`` makes it; ``name`` is the number of its kind and what is special about it."""

    name: str
    build: Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Piece:
    """Gives the i-th of the partitions that a function makes."""

    make: Callable[[], list[Any]]

    def __call__(self, number: int) -> Any:
        return self.make()[number]


def collection(number: str):
    """Register a case whose function makes the collection itself."""

    def register(make):
        name = f"{number}-{make.__name__}"
        assert name not in CASES, name
        CASES[name] = Case(name, make)
        return make

    return register


def _of_partitions(build, number, **options):
    def register(make):
        collection(number)(_named(lambda: build(make, **options), make.__name__))
        return make

    return register


def _named(function, name):
    function.__name__ = name
    return function


def frame(number: str, **options):
    """Register a case whose function makes the partitions of a dask DataFrame or Series."""
    return _of_partitions(frame_of, number, **options)


def array(number: str, **options):
    """Register a case whose function makes the blocks of a dask Array along its first axis."""
    return _of_partitions(array_of, number, **options)


def bag(number: str):
    """Register a case whose function makes the partitions of a dask Bag."""
    return _of_partitions(bag_of, number)


def frame_of(make, *, divisions=None):
    """A dask DataFrame or Series of exactly the partitions that ``make`` gives.

    Dask rewrites object columns to strings while a collection is built, unless told not to.
    """
    parts = make()
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(
            Piece(make), range(len(parts)), meta=parts[0].iloc[:0], divisions=divisions, enforce_metadata=False
        )


def array_of(make, *, meta=None):
    """A dask Array with the blocks that ``make`` gives along its first axis, each kept as the object it is."""
    blocks = make()
    meta = blocks[0][:0] if meta is None else meta
    piece = delayed(Piece(make), pure=True)
    return da.concatenate(
        [
            da.from_delayed(piece(number), shape=block.shape, dtype=block.dtype, meta=meta)
            for number, block in enumerate(blocks)
        ]
    )


def bag_of(make):
    """A dask Bag with the partitions that ``make`` gives."""
    piece = delayed(Piece(make), pure=True)
    return db.from_delayed([piece(number) for number in range(len(make()))])
