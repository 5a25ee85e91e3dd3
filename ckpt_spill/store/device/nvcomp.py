"""NVCOMP, which decodes zstd frames and LZ4 blocks on a device: https://docs.nvidia.com/cuda/nvcomp/py_api.html."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from ckpt_spill.store.codecs import CODECS, CodecError
from ckpt_spill.store.device import arrays, copies, memory
from ckpt_spill.store.device.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALGORITHMS = {"zstd": "Zstd", "lz4": "LZ4"}

# cudaStreamLegacy, in which RMM frees what it has allocated: nothing is freed that is still being used.
_STREAM = 1

_lock = threading.Lock()

logger = logging.getLogger("ckpt_spill")


def decode(codec: str, sources: Sequence[Memory], sizes: Sequence[int]) -> list[Any]:
    """Decode blocks.

    Parameters
    ----------
    codec : {"zstd", "lz4"}
    sources : sequence of Memory
        The blocks, compressed.
    sizes : sequence of int
        How many bytes each has to be.

    Returns
    -------
    list
        An array of bytes of CuPy's for each.

    Raises
    ------
    CodecError
        A block is of another size.
    RuntimeError
        NVCOMP or the device failed.
    """
    nvcomp, cupy = _nvcomp(), importlib.import_module("cupy")
    kind = nvcomp.BitstreamKind.RAW
    decoder = nvcomp.Codec(algorithm=_ALGORITHMS[codec], bitstream_kind=kind, cuda_stream=_STREAM)
    compressed = nvcomp.as_arrays([arrays.view(source, (source.nbytes,), np.dtype("u1")) for source in sources])
    decoded = decoder.decode(compressed, "|u1")
    memory.settle()
    for number, (made, size) in enumerate(zip(decoded, sizes, strict=True)):
        if made.buffer_size != size:
            raise CodecError(f"block {number} decodes to {made.buffer_size} bytes where {size} were expected")
    return [cupy.asarray(made) for made in decoded]


@functools.cache
def _nvcomp() -> Any:
    """Import the library, and let it take memory from RMM's current resource."""
    nvcomp, rmm = import_library(), importlib.import_module("rmm")
    nvcomp.set_device_allocator(lambda nbytes, _stream: rmm.DeviceBuffer(size=nbytes))
    return nvcomp


def import_library() -> Any:
    """Import the library, so that cuDF can be imported after it.

    Raises
    ------
    ImportError
        It is not here.
    """
    nvcomp = importlib.import_module("nvidia.nvcomp")
    # It deletes this from its package, where cuDF looks for it.
    if (libnvcomp := sys.modules.get("nvidia.libnvcomp")) is not None:
        vars(importlib.import_module("nvidia"))["libnvcomp"] = libnvcomp
    return nvcomp


def trusted() -> bool:
    """Tell whether the library is here and decodes right: found out once, by blocks whose content is known.

    Where RMM has no memory to try it in, nothing is known: the answer is False, and the next call tries again.
    """
    with _lock:
        try:
            return _trusted()
        except MemoryError:
            return False


@functools.cache
def _trusted() -> bool:
    try:
        import_library()
    except ImportError:
        return False
    try:
        return all(_decodes_right(codec) for codec in _ALGORITHMS)
    except MemoryError:
        raise
    except Exception:
        logger.exception("nvCOMP does not work here; blocks are decoded on the host")
        return False


def _decodes_right(codec: str) -> bool:
    random = np.random.default_rng(0)
    known = [random.integers(0, high, size, np.uint8) for high, size in ((2, 1 << 20), (200, 70_000), (1, 1000))]
    sent = [copies.to_device(np.frombuffer(CODECS[codec].compress(block), np.uint8)) for block in known]
    made = decode(codec, sent, [block.nbytes for block in known])
    found = copies.to_host([Memory(array.data.ptr, array.nbytes, array) for array in made])
    if all(map(np.array_equal, known, found)):
        return True
    logger.error("nvCOMP decodes blocks of %s wrong here; they are decoded on the host", codec)
    return False
