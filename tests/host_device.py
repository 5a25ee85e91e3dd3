"""Host memory in the place of a device's: every call to a device, as it would be there, with the same rules.

Copies to the host are carried out when they are waited for and not before; memory that was only taken is full of
garbage; what is not kept by an owner is gone.
"""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace

import numpy as np
import pytest
from blake3 import blake3
from crc32c import crc32c

from ckpt_spill.store import codecs
from ckpt_spill.store.device import arrays, copies, direct, hashes, libraries, memory, nvcomp
from ckpt_spill.store.device.memory import Memory

has_device = libraries.has_device
check = libraries.check
"""The real ones, for tests of what is said where there is no device."""


class Buffer:
    """What RMM gives, but of the host."""

    def __init__(self, data):
        self.memory = np.array(data, np.uint8)
        self.ptr, self.size = self.memory.ctypes.data, self.memory.nbytes

    @property
    def __cuda_array_interface__(self):
        return {"data": (self.ptr, False), "shape": (self.size,), "strides": None, "typestr": "|u1", "version": 3}


def owned(data):
    """Give a copy of bytes as memory that is kept."""
    buffer = Buffer(data)
    return Memory(buffer.ptr, buffer.size, buffer)


def allocate(nbytes):
    return owned(np.full(nbytes, 0xA5, np.uint8))


def to_device(data):
    return owned(data.reshape(-1).view(np.uint8) if data.nbytes else np.empty(0, np.uint8))


class _Shown:
    def __init__(self, piece):
        self.owner = piece.owner
        self.__array_interface__ = {
            "data": (piece.address, False),
            "shape": (piece.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def shown(piece):
    """See a piece of memory, without a copy; keeps its owner."""
    return np.asarray(_Shown(piece)) if piece.nbytes else np.empty(0, np.uint8)


def to_host(pieces):
    return [shown(piece).copy() for piece in pieces]


class Channel:
    """Slots that are filled when they are waited for; what is read from them before is wrong."""

    def __init__(self):
        self.slots = [np.empty(copies.ROOM, np.uint8) for _ in range(copies.SLOTS)]
        self.begun = []

    def start(self, slot, load):
        places, at = [], 0
        for piece in load:
            place = self.slots[slot][at : at + piece.nbytes]
            assert len(place) == piece.nbytes, "more than a slot has room for"
            place[:] = 0xEE
            places.append(place)
            self.begun.append((piece, place))
            at += piece.nbytes
        return places

    def wait(self):
        for piece, place in self.begun:
            place[:] = shown(piece)
        self.begun.clear()


def hash_blocks(piece, block, *, digests):
    data = shown(piece)
    parts = [data[start : start + block].tobytes() for start in range(0, len(data), block)]
    return [crc32c(part) for part in parts], [blake3(part).digest() for part in parts] if digests else []


def read(fd, offset, into):
    data = shown(into)
    done = 0
    while done < len(data):
        count = os.preadv(fd, [data[done:]], offset + done)
        if not count:
            return False
        done += count
    return True


def write(fd, offset, piece):
    data, done = shown(piece), 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)


def decode(codec, sources, sizes):
    made = []
    for source, size in zip(sources, sizes, strict=True):
        out = np.empty(size, np.uint8)
        codecs.CODECS[codec].decompress(shown(source), out)
        made.append(out)
    return made


def compact(array):
    """As `arrays.compact`, for arrays of CuPy's that lie in host memory."""
    memory = on_host(array)
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    turned = np.ascontiguousarray(memory.transpose(axes))
    made = arrays.view(to_device(turned), turned.shape, turned.dtype)
    return made.transpose([axes.index(axis) for axis in range(array.ndim)])


def on_host(array):
    """See an array of CuPy's that lies in host memory as one of numpy's."""
    if not array.size:
        return np.empty(array.shape, array.dtype)
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    low, high = sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + array.dtype.itemsize
    return np.ndarray(array.shape, array.dtype, shown(Memory(array.data.ptr + low, high - low)), -low, array.strides)


def unshuffle(source, width, out):
    source = source if isinstance(source, np.ndarray) else on_host(source)
    codecs.unshuffle(source, width, on_host(out))


def view(piece, shape, dtype):
    return shown(piece).view(dtype).reshape(tuple(shape))


@contextlib.contextmanager
def standing_in(*, gds="compat", decodes=True, cupy=False):
    """Let there be a device; yields how often which calls were made.

    ``cupy`` says that CuPy is here, whose arrays are to be made.
    """
    seen = SimpleNamespace(read=0, written=0, decoded=0)

    def counted(name, function):
        def call(*args, **kwargs):
            setattr(seen, name, getattr(seen, name) + 1)
            return function(*args, **kwargs)

        return call

    copies._spare.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(libraries, "check", lambda: None)
        patch.setattr(libraries, "has_device", lambda: True)
        patch.setattr(memory, "allocate", allocate)
        patch.setattr(memory, "settle", lambda: None)
        patch.setattr(copies, "Channel", Channel)
        patch.setattr(copies, "to_device", to_device)
        patch.setattr(direct, "mode", lambda: gds)
        patch.setattr(direct, "read", counted("read", read))
        patch.setattr(direct, "write", counted("written", write))
        patch.setattr(hashes, "trusted", lambda: True)
        patch.setattr(hashes, "hash_blocks", hash_blocks)
        patch.setattr(nvcomp, "import_library", lambda: None)
        patch.setattr(nvcomp, "trusted", lambda: decodes)
        patch.setattr(nvcomp, "decode", counted("decoded", decode))
        if cupy:
            patch.setattr(arrays, "current_device", lambda: 0)
            patch.setattr(arrays, "compact", compact)
            patch.setattr(arrays, "unshuffle", unshuffle)
        else:
            patch.setattr(arrays, "view", view)
            patch.setattr(arrays, "broadcast", np.broadcast_to)
        yield seen
    copies._spare.clear()
