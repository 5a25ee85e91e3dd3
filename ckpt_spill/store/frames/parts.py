"""Arrow arrays taken apart, so that what is large in them can stay on a device, where Arrow itself cannot follow."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ckpt_spill.store.device.memory import Memory
from ckpt_spill.store.frames import arrow
from ckpt_spill.store.frames.buffers import count
from ckpt_spill.store.frames.untyped import pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ckpt_spill.store.frames.buffers import Description, Sink, Source


@dataclasses.dataclass(frozen=True)
class Parts:
    """An array without an offset.

    Attributes
    ----------
    type : pyarrow.DataType
    length : int
    valid : numpy.ndarray or None
        Bitmap; None where nothing is missing.
    offsets : numpy.ndarray or None
        Of text and lists, beginning with 0, of the dtype that the type calls for.
    data : numpy.ndarray, Memory or None
        Items of fixed width, or the bytes of text.
    children : sequence of Parts
        What is in a list or struct; the storage of an extension type.
    """

    type: Any
    length: int
    valid: np.ndarray | None = None
    offsets: np.ndarray | None = None
    data: np.ndarray | Memory | None = None
    children: Sequence[Parts] = ()

    def __len__(self) -> int:
        return self.length


def describe(parts: Parts, sink: Sink) -> Description:
    """Describe an array without its type, as `arrow.describe` does."""
    if isinstance(parts.type, pa.ExtensionType):
        return {"storage": describe(parts.children[0], sink)}
    found: Description = {"length": parts.length}
    if pa.types.is_null(parts.type) or not parts.length:
        return found
    if parts.valid is not None:
        found["valid"] = sink.add(parts.valid)
    if parts.offsets is not None:
        found["offsets"] = sink.add(parts.offsets)
    if isinstance(parts.data, Memory):
        found["data"] = sink.add_far(parts.data, _width(parts.type))
    elif parts.data is not None:
        found["data"] = sink.add_bytes(parts.data, _width(parts.type))
    if parts.children:
        found["children"] = [describe(child, sink) for child in parts.children]
    return found


def plan(description: Description, source: Source) -> Callable[[], Parts] | None:
    """Take the buffers of a column array whose bulk data can be read to a device; None where it has none."""
    if len(description["chunks"]) != 1:
        return None
    kind, (chunk,) = arrow.build_type(description["type"]), description["chunks"]
    text = arrow.is_text(kind)
    flat = text or (pa.types.is_primitive(kind) and not pa.types.is_boolean(kind)) or pa.types.is_decimal(kind)
    if not flat or chunk.get("data") not in source.straight:
        return None
    length = count(chunk["length"])
    valid = source.take(chunk["valid"], (length + 7) // 8) if "valid" in chunk else None
    if not text:
        data = source.take_far(chunk["data"], length * (kind.bit_width // 8))
        return lambda: Parts(kind, length, valid, data=data)
    dtype = arrow.offset_dtype(kind)
    ends = source.take(chunk["offsets"], (length + 1) * dtype.itemsize).view(dtype)
    chars = source.take_far(chunk["data"])

    def build() -> Parts:
        if not 0 <= ends[0] <= ends[-1] <= chars.nbytes or (ends[1:] < ends[:-1]).any():
            raise ValueError(f"the offsets of a {kind} do not ascend within its {chars.nbytes} bytes")
        return Parts(kind, length, valid, ends, chars)

    return build


def far(parts: Parts) -> Iterator[Memory]:
    """Give all memory in an array that is on a device."""
    if isinstance(parts.data, Memory):
        yield parts.data
    for child in parts.children:
        yield from far(child)


def assemble(parts: Parts, fetched: Iterator[np.ndarray]) -> Any:
    """Put an array together; `fetched` has the contents of what `far` gives, in its order."""
    data = next(fetched) if isinstance(parts.data, Memory) else parts.data
    children = [assemble(child, fetched) for child in parts.children]
    kind, length = parts.type, parts.length
    if isinstance(kind, pa.ExtensionType):
        return pa.ExtensionArray.from_storage(kind, children[0])
    if pa.types.is_null(kind) or not length:
        return pa.nulls(length, kind)
    buffers = [None if parts.valid is None else pa.py_buffer(parts.valid)]
    buffers += [pa.py_buffer(np.ascontiguousarray(part)) for part in (parts.offsets, data) if part is not None]
    return pa.Array.from_buffers(kind, length, buffers, children=children)


def bitmap(bits: np.ndarray, length: int) -> np.ndarray | None:
    """Return a bitmap, or None if all of its bits are set."""
    return bits if count_missing(bits, length) else None


def count_missing(bits: np.ndarray, length: int) -> int:
    """Count the bits that are not set; those beyond the length may be anything."""
    whole, rest = divmod(length, 8)
    found = int(np.bitwise_count(bits[:whole]).sum(dtype=np.int64))
    if rest:
        found += (int(bits[whole]) & ((1 << rest) - 1)).bit_count()
    return length - found


def _width(kind: Any) -> int:
    """Give the bytes of an item, as far as a filter may want to know them."""
    return 1 if pa.types.is_boolean(kind) or arrow.is_text(kind) else kind.bit_width // 8
