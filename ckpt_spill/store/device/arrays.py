"""CuPy's arrays over memory from RMM."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

from ckpt_spill.store.device import memory as device

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from ckpt_spill.store.device.memory import Memory


def view(memory: Memory, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """Show memory as an array in C order, which keeps its owner."""
    cupy = importlib.import_module("cupy")
    held = cupy.cuda.UnownedMemory(memory.address, memory.nbytes, memory, current_device())
    return cupy.ndarray(tuple(shape), dtype, cupy.cuda.MemoryPointer(held, 0))


def current_device() -> int:
    """Give the number of the device that this thread uses."""
    return int(importlib.import_module("cupy").cuda.runtime.getDevice())


def compact(array: Any) -> Any:
    """Copy an array that has gaps to one that has none, with its axes in the same order in memory."""
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    shape = [array.shape[axis] for axis in axes]
    made = view(device.allocate(math.prod(shape) * array.dtype.itemsize), shape, array.dtype)
    made[...] = array.transpose(axes)
    return made.transpose([axes.index(axis) for axis in range(array.ndim)])


def broadcast(array: Any, shape: tuple[int, ...]) -> Any:
    """Repeat an array along the axes that have one item, without copying."""
    return importlib.import_module("cupy").broadcast_to(array, shape)


def unshuffle(source: Any, width: int, out: Any) -> None:
    """Undo the byte shuffle of a block, or copy it where there is none; as `codecs.unshuffle`."""
    whole = source.size // width * width
    out[:whole].reshape(-1, width)[...] = source[:whole].reshape(width, -1).T
    out[whole:] = source[whole:]
