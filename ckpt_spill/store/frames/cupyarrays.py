"""CuPy's arrays: as numpy's, with the same shape, order and repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ckpt_spill.store.device import arrays as device
from ckpt_spill.store.device import copies
from ckpt_spill.store.device.memory import Memory
from ckpt_spill.store.frames import arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckpt_spill.store.frames.buffers import Description, Plan, Sink, Source

#: What the member `library` of a description says that was made of an array of CuPy's.
CUPY = "cupy"


def describe(array: Any, sink: Sink) -> Description:
    """Describe an array; axes along which all items are one have just one in the buffer."""
    once = _once(array)
    stored = arrays.head(array, once) if once else array
    if not _is_dense(stored):
        stored = device.compact(stored)
    found = arrays.words(array, once, arrays.order(stored), sink)
    memory = Memory(stored.data.ptr, stored.nbytes, stored)
    return found | {"buffer": sink.add_far(memory, stored.dtype.itemsize), "library": CUPY}


def plan(description: Description, source: Source) -> Plan:
    """Take the buffer of an array, which is read to the device if it can be."""
    if description.get("kind") != "array":
        raise ValueError(f"CuPy has nothing of kind {description.get('kind')!r}")
    return arrays.plan(description, source, _ON_DEVICE)


def send(host: np.ndarray) -> Any:
    """Make an array of CuPy's with the layout of one of numpy's that has no gaps."""
    once = _once(host)
    stored = arrays.head(host, once) if once else host
    axes = arrays.order(stored)
    turned = np.ascontiguousarray(stored.transpose(axes))
    made = _view(turned.reshape(-1).view(np.uint8), turned.shape, turned.dtype)
    made = made.transpose([axes.index(axis) for axis in range(stored.ndim)])
    return device.broadcast(made, host.shape) if once else made


def _take(source: Source, number: int) -> np.ndarray | Memory:
    return source.take_far(number) if number in source.straight else source.take(number)


def _view(memory: np.ndarray | Memory, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    return device.view(copies.to_device(memory) if isinstance(memory, np.ndarray) else memory, shape, dtype)


def _broadcast(array: Any, shape: tuple[int, ...]) -> Any:
    return device.broadcast(array, shape)


_ON_DEVICE = arrays.Maker(_take, _view, _broadcast)


def _once(array: Any) -> list[int]:
    """Return the axes along which all items are the same one."""
    if not array.size:
        return []
    return [axis for axis in range(array.ndim) if array.shape[axis] > 1 and array.strides[axis] == 0]


def _is_dense(array: Any) -> bool:
    """Tell whether the items lie in memory without gaps, in some order of the axes, none of them backwards."""
    expected = array.dtype.itemsize
    for axis in reversed(arrays.order(array)):
        if array.shape[axis] > 1 and array.strides[axis] != expected:
            return not array.size
        expected *= array.shape[axis]
    return True
