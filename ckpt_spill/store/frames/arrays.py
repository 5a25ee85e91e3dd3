"""Numpy arrays: their items in the order in which they lie in memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ckpt_spill.store.frames import dtypes, pickled
from ckpt_spill.store.frames.buffers import Sink, Source, count
from ckpt_spill.store.frames.pickler import masked_arguments

if TYPE_CHECKING:
    from ckpt_spill.store.frames.buffers import Description, Plan


def describe(array: np.ndarray, sink: Sink) -> Description:
    """Describe an array; one of objects, or of a subclass, by its pickle."""
    if type(array) is not np.ndarray or (array.size and not dtypes.is_raw(array.dtype)):
        return pickled.describe(array, sink)
    found: Description = {"kind": "array", "dtype": dtypes.describe(array.dtype, sink), "shape": list(array.shape)}
    once = [axis for axis in range(array.ndim) if array.shape[axis] > 1 and array.strides[axis] == 0]
    if once and not array.flags.writeable:
        found["once"] = once
        array = array[tuple(slice(0, 1) if axis in once else slice(None) for axis in range(array.ndim))]
    axes = order(array)
    if axes != sorted(axes):
        found["order"] = axes
    if dtypes.is_raw(array.dtype):
        # A view wherever the items are evenly spaced; numpy copies otherwise.
        found["buffer"] = sink.add(array.transpose(axes).reshape(-1))
    return found


def plan(description: Description, source: Source) -> Plan:
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
    memory = source.take(description["buffer"])
    if isinstance(description["dtype"], str):
        source.expect(description["buffer"], math.prod(stored) * np.dtype(description["dtype"]).itemsize)
    inverse = [axes.index(axis) for axis in range(len(axes))]

    def build() -> np.ndarray:
        dtype = dtypes.build(description["dtype"])
        if memory.nbytes != math.prod(stored) * dtype.itemsize or not dtypes.is_raw(dtype):
            raise ValueError(f"{memory.nbytes} bytes are no array of shape {tuple(stored)} and dtype {dtype}")
        array = np.ndarray([stored[axis] for axis in axes], dtype, memory).transpose(inverse)
        return np.broadcast_to(array, shape) if once else array

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
