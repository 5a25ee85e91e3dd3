"""CuPy's arrays: as numpy's, with the same shape, order and repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ckpt_spill.store.frames import arrays, device, layout

if TYPE_CHECKING:
    from ckpt_spill.store.frames.buffers import Description, Sink

#: What the member `library` of a description says that was made of an array of CuPy's.
CUPY = "cupy"


def describe(array: Any, sink: Sink) -> Description:
    """Describe an array; axes along which all items are one have just one in the buffer."""
    shape, once = array.shape, _once(array)
    if once:
        array = array[once]
    low, high = _extent(array)
    if high - low > array.nbytes:
        array = device.compact(array)
        low, high = _extent(array)
    memory = device.to_host([layout.Window(array.data.ptr + low, high - low)])[0]
    host = np.ndarray(array.shape, array.dtype, memory, -low, array.strides)
    return arrays.describe(np.broadcast_to(host, shape) if once else host, sink) | {"library": CUPY}


def send(host: np.ndarray) -> Any:
    """Make an array of CuPy's with the layout of one of numpy's that has no gaps."""
    once = _once(host)
    stored = host[once] if once else host
    order = arrays.order(stored)
    made = device.to_array(stored.transpose(order)).transpose([order.index(axis) for axis in range(stored.ndim)])
    return device.broadcast(made, host.shape) if once else made


def _once(array: Any) -> tuple[slice, ...]:
    """Return the index that leaves one of the items that are the same; empty where there are none."""
    same = [n > 1 and stride == 0 and array.size > 0 for n, stride in zip(array.shape, array.strides, strict=True)]
    return tuple(slice(0, 1) if s else slice(None) for s in same) if any(same) else ()


def _extent(array: Any) -> tuple[int, int]:
    """Return where the memory of an array begins and ends, from its first item on."""
    if not array.size:
        return 0, 0
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + array.dtype.itemsize
