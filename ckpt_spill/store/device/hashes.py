"""CRC-32C and BLAKE3 of blocks that are on a device, computed there, as ``docs/format.md`` wants them.

The kernels are in ``hashes.cu``. BLAKE3 is a tree of chunks of 1 KiB [1]_; and CRCs of pieces can be combined, as a
zero byte at the end is a multiplication by x^8 modulo the polynomial [2]_: many threads can work on a block.

.. [1] O'Connor, Aumasson, Neves, Wilcox-O'Hearn: BLAKE3, one function, fast everywhere. 2021.
.. [2] As in ``crc32_combine`` of M. Adler's zlib.
"""

from __future__ import annotations

import functools
import importlib
import logging
import threading
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3
from crc32c import crc32c

from ckpt_spill.store.device.libraries import rapids
from ckpt_spill.store.device.memory import Memory, allocate

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("ckpt_spill")

_THREADS = 256
_GRID = 4096
"""Thread blocks at most: each makes its tables once, and goes from block to block."""

_LARGEST = 1 << 24  # what docs/format.md allows, and hashes.cu is made for

_LENGTHS = (1, 63, 64, 65, 1023, 1024, 1025, 2048, 3073, 5000, 31 << 10, (1 << 20) - 1, 1 << 20, (1 << 20) + 1)
_TRIED = [*((n, 1 << 20) for n in _LENGTHS), *(((1 << 20) + 1, block) for block in (1 << 24, 1 << 16, 1000))]
"""Lengths, and sizes of blocks: with the last block, chunk or word a short one, or none; trees of many shapes; more
chunks than shared memory holds; blocks at any address."""

_lock = threading.Lock()
_verdict: list[bool] = []


def hash_blocks(memory: Memory, block: int, *, digests: bool) -> tuple[list[int], list[bytes]]:
    """Compute the CRC-32C and, where wanted, the BLAKE3 of each block of `block` bytes; the last one may be short.

    Raises
    ------
    MemoryError
        RMM has no memory for the results: 36 bytes a block.
    RuntimeError, ReadError
        The device failed, or its libraries cannot be imported.

    Notes
    -----
    Runs in the legacy default stream, which is the one that comes after all that was started before in the default
    stream of any thread, per-thread ones too, and before all that will be, such as the next use of the memory that was
    taken for the results. Streams that were made non-blocking are not waited for: ``settle`` does that.
    """
    if not 0 < block <= _LARGEST:
        raise ValueError(f"blocks have 1 to {_LARGEST} bytes, not {block}")
    count = -(-memory.nbytes // block)
    if not count:
        return [], []
    cuda = rapids("cupy").cuda
    results = allocate(count * (36 if digests else 4))
    # CuPy passes scalars of numpy's by their size: all parameters of the kernels have 8 bytes.
    numbers = [memory.address, memory.nbytes, block, results.address, results.address + 4 * count]
    parameters = tuple(map(np.uint64, numbers if digests else numbers[:-1]))
    host = np.empty(results.nbytes, np.uint8)
    stream = cuda.Stream.null
    with stream:
        _kernel("hash_blocks" if digests else "crc_blocks")((min(count, _GRID),), (_THREADS,), parameters)
    cuda.runtime.memcpyAsync(
        host.ctypes.data, results.address, host.nbytes, cuda.runtime.memcpyDeviceToHost, stream.ptr
    )
    stream.synchronize()
    return host[: 4 * count].view("<u4").tolist(), [row.tobytes() for row in host[4 * count :].reshape(-1, 32)]


@functools.cache
def _kernel(name: str) -> Any:
    code = (resources.files(__package__) / "hashes.cu").read_text("ascii")
    return rapids("cupy").RawModule(code=code, options=("-std=c++17",)).get_function(name)


def trusted() -> bool:
    """Tell whether checksums that are computed here are right: tried once per process, with an error logged if not.

    Where RMM has no memory to try it in, nothing is known: the answer is False, and the next call tries again.
    """
    with _lock:
        if not _verdict:
            try:
                wrong = next(_differences(), None)
            except MemoryError:
                return False
            except Exception as e:  # noqa: BLE001  # whatever it is: the host can do it
                wrong = f"{type(e).__name__}: {e}"
            if wrong is not None:
                logger.error("checksums cannot be computed on this GPU, so the host computes them: %s", wrong)
            _verdict.append(wrong is None)
        return _verdict[0]


def _differences() -> Iterator[str]:
    """Compare what the device and the host compute of the same bytes; say what differs."""
    host = (np.arange((1 << 20) + 64) * 2654435761 >> 13).astype(np.uint8)
    buffer = importlib.import_module("rmm").DeviceBuffer.to_device(host)
    device = Memory(buffer.ptr, host.nbytes, buffer)
    for number, (length, block) in enumerate(_TRIED):
        start = number % 5  # another alignment for each
        stop = start + length
        blocks = [host.data[at : min(at + block, stop)] for at in range(start, stop, block)]
        want = [crc32c(part) for part in blocks], [blake3(part).digest() for part in blocks]
        for digests in (True, False):
            if hash_blocks(device.part(start, stop), block, digests=digests) != (want[0], want[1] if digests else []):
                yield f"they are wrong for {length} bytes in blocks of {block}, {start} bytes after an aligned address"
