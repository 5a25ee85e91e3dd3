"""Numpy arrays: their items in the order in which they lie in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ckpt_spill.store.frames import dtypes, pickled
from ckpt_spill.store.frames.buffers import Sink, Source, count
from ckpt_spill.store.frames.pickler import masked_arguments

if TYPE_CHECKING:
    from ckpt_spill.store.frames.buffers import Description, Plan


class Maker(NamedTuple):
    """How arrays of a library are made: take memory for a buffer, show it in C order, and repeat along axes."""

    take: Callable[[Source, int], Any]
    view: Callable[[Any, list[int], np.dtype], Any]
    broadcast: Callable[[Any, tuple[int, ...]], Any]


_NUMPY = Maker(Source.take, lambda memory, shape, dtype: np.ndarray(shape, dtype, memory), np.broadcast_to)


def describe(array: np.ndarray, sink: Sink) -> Description:
    """Describe an array; one of objects, or of a subclass, by its pickle."""
    if type(array) is not np.ndarray or (array.size and not dtypes.is_raw(array.dtype)):
        return pickled.describe(array, sink)
    once = [axis for axis in range(array.ndim) if array.shape[axis] > 1 and array.strides[axis] == 0]
    if array.flags.writeable:
        once = []
    stored = head(array, once) if once else array
    found = words(array, once, order(stored), sink)
    if dtypes.is_raw(array.dtype):
        # A view wherever the items are evenly spaced; numpy copies otherwise.
        found["buffer"] = sink.add(stored.transpose(order(stored)).reshape(-1))
    return found


def words(array: Any, once: list[int], axes: list[int], sink: Sink) -> Description:
    """Describe an array of numpy's or CuPy's without its items, given its order and the axes that are stored once."""
    found: Description = {"kind": "array", "dtype": dtypes.describe(array.dtype, sink), "shape": list(array.shape)}
    if once:
        found["once"] = once
    if axes != sorted(axes):
        found["order"] = axes
    return found


def head(array: Any, once: list[int]) -> Any:
    """Give the first of the items along axes along which all are the same."""
    return array[tuple(slice(0, 1) if axis in once else slice(None) for axis in range(array.ndim))]


def plan(description: Description, source: Source, maker: Maker = _NUMPY) -> Plan:
    """Take the buffer of an array."""
    if "pickle" in description:
        return _plan_pickled(description, source)
    shape = [count(n) for n in description["shape"]]
    once = description.get("once", [])
    stored = [1 if axis in once else n for axis, n in enumerate(shape)]
    axes = description.get("order", list(range(len(shape))))
    if sorted(axes) != list(range(len(shape))):
        raise ValueError(f"{axes!r} is no order of {len(shape)} axes")
    if "buffer" not in description:
        if math.prod(shape):
            raise ValueError("an array that is not empty has no buffer")
        return lambda: np.empty(shape, dtypes.build(description["dtype"]))
    number = description["buffer"]
    if isinstance(description["dtype"], str):
        source.expect(number, math.prod(stored) * np.dtype(description["dtype"]).itemsize)
    memory = maker.take(source, number)
    inverse = [axes.index(axis) for axis in range(len(axes))]

    def build() -> Any:
        dtype = dtypes.build(description["dtype"])
        if memory.nbytes != math.prod(stored) * dtype.itemsize or not dtypes.is_raw(dtype):
            raise ValueError(f"{memory.nbytes} bytes are no array of shape {tuple(stored)} and dtype {dtype}")
        array = maker.view(memory, [stored[axis] for axis in axes], dtype).transpose(inverse)
        return maker.broadcast(array, tuple(shape)) if once else array

    return build


def describe_masked(array: np.ma.MaskedArray, sink: Sink) -> Description:
    """Describe a masked array of plain numpy data; anything else by its pickle."""
    data, mask, _, _, _, _, fill, _, hard, _ = masked_arguments(array)
    if type(array) is not np.ma.MaskedArray or type(data) is not np.ndarray or not dtypes.is_raw(data.dtype):
        return pickled.describe(array, sink)
    found: Description = {"kind": "masked", "data": describe(data, sink)}
    if mask is not np.ma.nomask:
        found["mask"] = describe(mask, sink)
    if fill is not None:
        found["fill"] = describe(np.asarray(fill), sink)
    return found | ({"hard": True} if hard else {})


def plan_masked(description: Description, source: Source) -> Plan:
    """Take the buffers of a masked array."""
    data = plan(description["data"], source)
    mask = plan(description["mask"], source) if "mask" in description else lambda: np.ma.nomask
    fill = plan(description["fill"], source) if "fill" in description else lambda: None
    hard = description.get("hard", False)

    def build() -> Any:
        return np.ma.MaskedArray(data(), mask(), fill_value=fill(), hard_mask=hard, shrink=False)

    return build


def order(array: np.ndarray) -> list[int]:
    """Return the axes from the one with the widest steps to the one with the narrowest."""
    if array.flags.c_contiguous:
        return list(range(array.ndim))
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


def _plan_pickled(description: Description, source: Source) -> Plan:
    load = pickled.plan(description, source)

    def build() -> np.ndarray:
        array = load()
        if isinstance(array, np.ndarray):
            return array
        raise ValueError(f"a {type(array).__name__} in the place of an array")

    return build
