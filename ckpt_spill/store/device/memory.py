"""Memory of a device: pieces of it, and more of it, from RMM's current resource."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Memory(NamedTuple):
    """Bytes on a device. CuPy, kvikio and nvCOMP take it for an array.

    Attributes
    ----------
    address, nbytes : int
    owner : object
        What keeps it from being freed; None where the caller sees to that.
    """

    address: int
    nbytes: int
    owner: Any = None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """As https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html has it, version 3."""
        place = self.address if self.nbytes else 0
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (place, False), "strides": None, "version": 3}

    def part(self, start: int, stop: int) -> Memory:
        """Give some of the bytes, as a slice does."""
        start, stop = min(start, self.nbytes), min(stop, self.nbytes)
        return Memory(self.address + start, stop - start, self.owner)


def allocate(nbytes: int) -> Memory:
    """Take memory of which nothing is known.

    Raises
    ------
    MemoryError
        RMM has no more.
    """
    buffer = importlib.import_module("rmm").DeviceBuffer(size=nbytes)
    return Memory(buffer.ptr, nbytes, buffer)


def settle() -> None:
    """Wait for all that was started on this thread's device, in whatever stream."""
    importlib.import_module("cupy").cuda.runtime.deviceSynchronize()
