"""The calls to a device, all of them: memory to the host in few big copies, and to the device.

Allocations go through RMM's current resource. Nothing of RAPIDS is imported before there is something to copy.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from ckpt_spill.errors import ReadError
from ckpt_spill.store.frames.untyped import rapids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_spill.store.frames.layout import Window

#: Half of the pinned memory that is kept: while one half is filled, the other is emptied.
_HALF = 32 << 20

_lock = threading.Lock()
_halves: list[np.ndarray] = []


def check() -> None:
    """Make sure that there is a device.

    Raises
    ------
    ReadError
        There is none, or its libraries cannot be imported.
    """
    if not rapids("cupy").cuda.is_available():
        raise ReadError("this would be on a GPU, of which there is none here: read it with backend='pandas'")


@contextlib.contextmanager
def failing_to_read() -> Iterator[None]:
    """Say of what fails on the device that the file is not at fault."""
    try:
        yield
    except RuntimeError as e:
        raise ReadError(f"the device failed while a partition was read: {type(e).__name__}: {e}") from e


def to_host(windows: list[Window]) -> list[np.ndarray]:
    """Copy pieces of device memory to fresh host memory, after all that was started there before."""
    fetched = [np.empty(window.nbytes, np.uint8) for window in windows]
    if not any(map(len, fetched)):
        return fetched
    streams = importlib.import_module("rmm.pylibrmm.stream")
    with _lock:
        streams.DEFAULT_STREAM.synchronize()
        stream = streams.Stream()
        waiting: list[tuple[np.ndarray, np.ndarray]] = []
        for number, load in enumerate(_loads(windows, fetched)):
            started = _start(load, _pinned()[number % 2], stream)
            _empty(waiting)
            stream.synchronize()
            waiting = started
        _empty(waiting)
    return fetched


def _loads(windows: list[Window], fetched: list[np.ndarray]) -> Iterator[list[tuple[int, np.ndarray]]]:
    """Cut what is to be copied into loads of one half, each a list of addresses and where their contents belong."""
    load, room = [], _HALF
    for window, into in zip(windows, fetched, strict=True):
        done = 0
        while done < window.nbytes:
            part = into[done : done + room]
            load.append((window.address + done, part))
            done, room = done + len(part), room - len(part)
            if not room:
                yield load
                load, room = [], _HALF
    if load:
        yield load


def _start(load: list[tuple[int, np.ndarray]], half: np.ndarray, stream: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Have a load copied to pinned memory; return which part of it belongs where."""
    copy = importlib.import_module("rmm.pylibrmm.device_buffer").copy_ptr_to_host
    started, at = [], 0
    for address, part in load:
        pinned = half[at : at + len(part)]
        copy(address, pinned, stream)
        started.append((pinned, part))
        at += len(part)
    return started


def _empty(waiting: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for pinned, part in waiting:
        part[:] = pinned


def _pinned() -> list[np.ndarray]:
    if not _halves:
        allocate = importlib.import_module("cupy").cuda.alloc_pinned_memory
        _halves.extend(np.frombuffer(allocate(_HALF), np.uint8, _HALF) for _ in range(2))
    return _halves


def to_device(memory: np.ndarray) -> Any:
    """Copy contiguous host memory to a fresh ``rmm.DeviceBuffer``."""
    buffer = importlib.import_module("rmm").DeviceBuffer
    return buffer.to_device(memory.reshape(-1).view(np.uint8)) if memory.nbytes else buffer(size=0)


def to_array(host: np.ndarray) -> Any:
    """Copy a contiguous array of numpy's to a ``cupy.ndarray``."""
    return importlib.import_module("cupy").asarray(host)


def compact(array: Any) -> Any:
    """Copy an array of CuPy's that has gaps to one that has none, with its axes in the same order in memory."""
    return array.copy(order="K")


def broadcast(array: Any, shape: tuple[int, ...]) -> Any:
    """Repeat an array of CuPy's along the axes that have one item, without copying."""
    return importlib.import_module("cupy").broadcast_to(array, shape)
