"""Where buffers go while a value is described, and where they come from while it is read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ckpt_spill.store.device import memory as device
from ckpt_spill.store.device.libraries import failing_to_read
from ckpt_spill.store.device.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Description = dict[str, Any]
#: Puts a value together once the buffers have been filled.
Plan = Callable[[], Any]


class Far(NamedTuple):
    """A buffer that is on a device, and the width of one number in it."""

    memory: Memory
    width: int

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.memory.nbytes


class Sink:
    """Collects the buffers of the value that is being described.

    ``where`` names the part at hand for error messages, with a trailing colon and space; empty for the whole value.
    ``proven`` tells whether all pickles are known to load, without ``prove`` just those that always do. What ``access``
    holds has to stay open as long as the buffers are used.
    """

    def __init__(self, *, prove: bool = True) -> None:
        self.buffers: list[np.ndarray | Far] = []
        self.access = contextlib.ExitStack()
        self.where = ""
        self.prove, self.proven = prove, True

    @property
    def on_host(self) -> list[np.ndarray]:
        """The buffers of a value of which none are on a device."""
        return [buffer for buffer in self.buffers if not isinstance(buffer, Far)]

    @contextlib.contextmanager
    def at(self, where: str) -> Iterator[None]:
        """Name the part that is described inside the context."""
        before, self.where = self.where, f"{where}: "
        yield
        self.where = before

    def add(self, flat: np.ndarray) -> int:
        """Take a one-dimensional array, of any stride, and return its number."""
        self.buffers.append(_plain(flat))
        return len(self.buffers) - 1

    def add_far(self, memory: Memory, width: int) -> int:
        """Take memory of a device, which stays as it is while ``access`` is open."""
        self.buffers.append(Far(memory, width))
        return len(self.buffers) - 1

    def add_bytes(self, data: Any, width: int = 1) -> int:
        """Take contiguous memory holding items of ``width`` bytes."""
        if memoryview(data).nbytes == 0:
            return self.add(np.empty(0, np.uint8))
        return self.add(np.frombuffer(data, np.dtype(f"u{width}") if width in {1, 2, 4, 8} else np.uint8))


def _plain(flat: np.ndarray) -> np.ndarray:
    """View the items as numbers where that is what they are, else as opaque bytes of their width."""
    if flat.dtype.itemsize == 0 or flat.size == 0:
        return np.empty(0, np.uint8)
    if flat.dtype.kind in "mM":
        return flat.view(np.int64)
    if flat.dtype.kind in "biufc":
        return flat
    return flat.view(np.dtype((np.void, flat.dtype.itemsize)))


class Source:
    """Hands out the memory that buffers are to be read into, checking what a description claims about them.

    ``straight`` has those that can be read into memory of a device.
    """

    def __init__(self, lengths: Sequence[int], straight: Container[int] = ()) -> None:
        self._lengths = lengths
        self.straight = straight
        self.destinations: dict[int, np.ndarray] = {}
        self.far: dict[int, Memory] = {}
        self.pickled: set[int] = set()

    def length(self, number: int) -> int:
        """Return the length in bytes of a buffer."""
        if type(number) is not int or not 0 <= number < len(self._lengths):
            raise ValueError(f"the description names buffer {number!r}, but there are {len(self._lengths)}")
        return self._lengths[number]

    def expect(self, number: int, nbytes: int) -> None:
        """Refuse a buffer that is not of the length its description calls for."""
        if self.length(number) != nbytes:
            raise ValueError(f"buffer {number} has {self.length(number)} bytes where its description needs {nbytes}")

    def take(self, number: int, nbytes: int | None = None) -> np.ndarray:
        """Return fresh memory for a buffer, of ``nbytes`` bytes if that is known from elsewhere."""
        if nbytes is not None:
            self.expect(number, nbytes)
        if number in self.far:
            raise ValueError(f"buffer {number} is used twice")
        if number not in self.destinations:
            self.destinations[number] = np.empty(self.length(number), np.uint8)
        return self.destinations[number]

    def take_far(self, number: int, nbytes: int | None = None) -> Memory:
        """Return fresh memory of the device for a buffer that can be read there."""
        if nbytes is not None:
            self.expect(number, nbytes)
        if number in self.destinations or number in self.far:
            raise ValueError(f"buffer {number} is used twice")
        with failing_to_read():
            self.far[number] = device.allocate(self.length(number))
        return self.far[number]

    def fill(self, number: int, memory: np.ndarray) -> None:
        """Have a buffer read into memory that is already there: contiguous, one-dimensional, of bytes."""
        self.expect(number, memory.nbytes)
        self.destinations[number] = memory


def count(value: Any) -> int:
    """Check that a number in a description can be a length."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a length")
    return value
