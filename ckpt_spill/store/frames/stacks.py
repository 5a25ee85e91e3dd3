"""Columns of one numpy dtype: big ones a buffer each, small ones many to a buffer; read into one block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ckpt_spill.store.frames.buffers import Sink, Source, count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckpt_spill.store.frames.buffers import Description

_SMALL = 1 << 16
_STACK = 1 << 20


def describe(columns: dict[int, np.ndarray], sink: Sink) -> Description:
    """Describe columns of one dtype and length, given by their positions in the frame."""
    values = list(columns.values())
    found: Description = {"kind": "stack", "dtype": values[0].dtype.str, "at": _runs(list(columns))}
    nbytes = values[0].nbytes
    if not nbytes:
        return found
    each = _STACK // nbytes if nbytes < _SMALL else 1
    found["buffer"] = len(sink.buffers)
    if each > 1 and len(values) > 1:
        found["each"] = each
        for start in range(0, len(values), each):
            group = values[start : start + each]
            # By itself numpy would join them in the byte order of the machine.
            sink.add(np.concatenate(group, out=np.empty(len(group) * group[0].size, group[0].dtype)))
    else:
        for column in values:
            sink.add(column)
    return found


def width(description: Description) -> int:
    """Return how many columns are in a stack."""
    return sum(count(stop - count(start)) for start, stop in description["at"])


def positions(description: Description) -> list[int]:
    """Return where in the frame the columns of a stack belong."""
    return [i for start, stop in description["at"] for i in range(start, stop)]


def plan(
    description: Description, rows: int, wanted: Callable[[int], bool], source: Source
) -> Callable[[], tuple[np.ndarray, list[int]]]:
    """Take the buffers that hold wanted columns; the function returned gives the block and the columns' positions."""
    dtype = np.dtype(description["dtype"])
    if dtype.hasobject:
        raise ValueError(f"a stack cannot be of dtype {dtype}")
    at = positions(description)
    chosen = [i for i in at if wanted(i)]
    nbytes = rows * dtype.itemsize
    if not nbytes:
        return lambda: (np.empty((len(chosen), rows), dtype), chosen)
    each, first = count(description.get("each", 1)), count(description["buffer"])
    groups = [at[start : start + each] for start in range(0, len(at), each)]
    for number, group in enumerate(groups, first):
        source.expect(number, len(group) * nbytes)
    memory = np.empty((len(chosen), nbytes), np.uint8)
    partial: list[tuple[np.ndarray, np.ndarray, list[int]]] = []
    row = 0
    for number, group in enumerate(groups, first):
        kept = [k for k, i in enumerate(group) if wanted(i)]
        part = memory[row : row + len(kept)]
        row += len(kept)
        if len(kept) == len(group):
            source.fill(number, part.reshape(-1))
        elif kept:
            partial.append((part, source.take(number).reshape(len(group), nbytes), kept))

    def build() -> tuple[np.ndarray, list[int]]:
        for part, whole, kept in partial:
            part[:] = whole[kept]
        return memory.view(dtype), chosen

    return build


def _runs(at: Sequence[int]) -> list[list[int]]:
    """Write ascending positions as half-open ranges."""
    runs: list[list[int]] = []
    for i in at:
        if runs and runs[-1][1] == i:
            runs[-1][1] = i + 1
        else:
            runs.append([i, i + 1])
    return runs
