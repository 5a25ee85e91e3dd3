"""Columns as libcudf lays them out in memory, to Arrow arrays and back.

The two differ in little: a bool is a byte here and a bit there, bitmaps are padded, a slice is an offset that holds for
the children, too, and the offsets of text may have 32 or 64 bits. Nothing here calls a device: who describes a column
is given a function that fetches memory, who makes one gets arrays to be sent, or what is on the device already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ckpt_spill.store.device.memory import Memory
from ckpt_spill.store.frames import arrow, parts
from ckpt_spill.store.frames.parts import Parts
from ckpt_spill.store.frames.untyped import pa

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

#: Bitmaps are as long as libcudf allocates them.
_PADDING = 64
_MOST_SMALL_OFFSET = (1 << 31) - 1


class View(NamedTuple):
    """A column where it is: addresses instead of memory, 0 for none.

    ``width`` is the size of an item of ``data`` in bytes, of which the first ``offset`` are not part of the column, nor
    are the first ``offset`` bits of ``mask``.
    """

    width: int
    size: int
    offset: int
    null_count: int
    data: int
    mask: int
    children: tuple[View, ...]


class Laid(NamedTuple):
    """A column to be made: the name of its libcudf type, the scale of its decimals, and memory to be sent there."""

    type_id: str
    scale: int
    size: int
    null_count: int
    data: np.ndarray | Memory | None
    mask: np.ndarray | None
    children: list[Laid]


if TYPE_CHECKING:
    #: Asks for pieces of memory, is sent their contents, and returns what it made of them.
    Reader = Generator[list[Memory], list[np.ndarray], Any]


def gather(readers: Sequence[Reader], fetch: Callable[[list[Memory]], list[np.ndarray]]) -> list[Any]:
    """Run readers side by side, so that memory is fetched as often as they are deep, not as often as there are some."""
    everything = _together(readers)
    try:
        pieces = next(everything)
        while True:
            pieces = everything.send(fetch(pieces))
    except StopIteration as done:
        return list(done.value)


def _together(readers: Sequence[Reader]) -> Reader:
    results: list[Any] = [None] * len(readers)
    contents: list[Any] = [None] * len(readers)
    running = list(range(len(readers)))
    while running:
        asked: dict[int, list[Memory]] = {}
        for i in running:
            try:
                asked[i] = readers[i].send(contents[i])
            except StopIteration as done:
                results[i] = done.value
        if asked:
            fetched = iter((yield [piece for pieces in asked.values() for piece in pieces]))
            contents = [None] * len(readers)
            for i, pieces in asked.items():
                contents[i] = [next(fetched) for _ in pieces]
        running = list(asked)
    return results


def read(view: View, kind: Any) -> Reader:
    """Read a column as the parts of an Arrow array of a type; of text, with the offsets that it takes.

    What tells where things are is read; bulk data stays where it is, except for bools, which have to be packed.
    """
    return _read(view, kind, 0, view.size)


def near(array: Parts) -> Reader:
    """Read the bulk data, too, and give an Arrow array."""
    pieces = list(parts.far(array))
    fetched = (yield pieces) if pieces else []
    return parts.assemble(array, iter(fetched))


def _read(view: View, kind: Any, start: int, length: int) -> Reader:
    """Read some rows of a column."""
    if isinstance(kind, pa.ExtensionType):
        storage = yield from _read(view, kind.storage_type, start, length)
        return Parts(kind, length, children=[storage])
    nested = pa.types.is_struct(kind)
    ragged = not nested and bool(view.children)
    if not length or pa.types.is_null(kind):
        return Parts(kind, length)
    if arrow.is_text(kind) and not ragged:  # nothing but missing text
        return _missing(kind, length)
    first, masked = view.offset + start, bool(view.mask and view.null_count)
    asked = [Memory(view.mask + first // 8, (first % 8 + length + 7) // 8)] if masked else []
    data: Any = None if nested or ragged else Memory(view.data + first * view.width, length * view.width)
    if ragged:
        ends = view.children[0]
        asked.append(Memory(ends.data + (ends.offset + first) * ends.width, (length + 1) * ends.width))
    elif pa.types.is_boolean(kind):
        asked.append(data)
    fetched = (yield asked) if asked else []
    valid = parts.bitmap(arrow.bits(fetched[0], first % 8, length), length) if masked else None
    if ragged:
        return (yield from _read_ragged(view, kind, valid, fetched[-1].view(f"i{view.children[0].width}")))
    if nested:
        children = yield from _together(
            [_read(v, kind.field(i).type, first, length) for i, v in enumerate(view.children)]
        )
        made = pa.struct([kind.field(i).with_type(child.type) for i, child in enumerate(children)])
        return Parts(made, length, valid, children=children)
    if pa.types.is_boolean(kind):
        data = np.packbits(fetched[-1], bitorder="little")
    return Parts(kind, length, valid, data=data)


def _read_ragged(view: View, kind: Any, valid: np.ndarray | None, offsets: np.ndarray) -> Reader:
    """Read the contents of text or lists, given their offsets."""
    length, first, last = len(offsets) - 1, int(offsets[0]), int(offsets[-1])
    if arrow.is_text(kind):
        large = last - first > _MOST_SMALL_OFFSET or pa.types.is_large_string(kind)
        made = pa.large_string() if large else kind
        data: Any = Memory(view.data + first, last - first) if last > first else np.empty(0, np.uint8)
        return Parts(made, length, valid, _from_0(offsets, large=large), data)
    values = yield from _read(view.children[1], kind.value_type, first, last - first)
    made = pa.list_(kind.value_field.with_type(values.type))
    return Parts(made, length, valid, _from_0(offsets, large=False), children=[values])


def _from_0(offsets: np.ndarray, *, large: bool) -> np.ndarray:
    moved: np.ndarray = offsets - offsets[0]
    return moved.astype(np.int64 if large else np.int32, copy=False)


def _missing(kind: Any, length: int) -> Parts:
    wide = pa.types.is_large_string(kind)
    ends = np.zeros(length + 1, np.int64 if wide else np.int32)
    return Parts(kind, length, np.zeros(-(-length // 8), np.uint8), ends, np.empty(0, np.uint8))


def lay_out(array: Any) -> Laid:
    """Lay out an Arrow array as libcudf wants it; there is no type of libcudf's for all of Arrow's.

    Parts may take its place that are text, or of fixed width but no bools, and have their data on a device.
    """
    if isinstance(array, Parts):
        return _lay_out_parts(array)
    kind = array.type
    if isinstance(kind, pa.ExtensionType):
        return lay_out(array.storage)
    if pa.types.is_null(kind):
        return lay_out(pa.nulls(len(array), pa.string()))
    valid, start, length = array.buffers()[0], array.offset, len(array)
    mask = None
    if array.null_count:
        mask = _padded(arrow.bits(np.frombuffer(valid, np.uint8), start, length))
    data, children = _contents(array)
    return Laid(_type_id(kind), _scale(kind), length, array.null_count, data, mask, children)


def _lay_out_parts(array: Parts) -> Laid:
    kind, ends, data = array.type, array.offsets, array.data
    nulls = 0 if array.valid is None else parts.count_missing(array.valid, array.length)
    mask = _padded(array.valid) if array.valid is not None and nulls else None
    if ends is not None and isinstance(data, Memory):
        data = data.part(int(ends[0]), int(ends[-1]))
    children = [] if ends is None else [_lay_out_offsets(ends)]
    return Laid(_type_id(kind), _scale(kind), array.length, nulls, data, mask, children)


def _padded(bits: np.ndarray) -> np.ndarray:
    mask = np.zeros(-(-len(bits) // _PADDING) * _PADDING, np.uint8)
    mask[: len(bits)] = bits
    return mask


def _scale(kind: Any) -> int:
    return -kind.scale if pa.types.is_decimal(kind) else 0


def _contents(array: Any) -> tuple[np.ndarray | None, list[Laid]]:
    """Lay out what there is of an array besides its bitmap."""
    kind, start, length = array.type, array.offset, len(array)
    if pa.types.is_struct(kind):
        return None, [lay_out(array.field(i)) for i in range(kind.num_fields)]
    if arrow.is_text(kind):
        if not length:
            return None, []
        offsets = arrow.offsets(array)
        chars = arrow.memory(array.buffers()[2])[offsets[0] : offsets[-1]]
        return chars, [_lay_out_offsets(offsets)]
    if pa.types.is_list(kind):
        offsets = arrow.offsets(array) if length else np.zeros(1, np.int32)
        values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        return None, [_lay_out_offsets(offsets), lay_out(values)]
    data = arrow.memory(array.buffers()[1])
    if pa.types.is_boolean(kind):
        return np.unpackbits(arrow.bits(data, start, length), count=length, bitorder="little"), []
    width = kind.bit_width // 8
    return data[start * width : (start + length) * width], []


def _lay_out_offsets(offsets: np.ndarray) -> Laid:
    large = offsets[-1] - offsets[0] > _MOST_SMALL_OFFSET
    ends = (offsets - offsets[0]).astype(np.int64 if large else np.int32, copy=False)
    return Laid("INT64" if large else "INT32", 0, len(ends), 0, ends.view(np.uint8), None, [])


def _type_id(kind: Any) -> str:
    """Name the libcudf type that an Arrow type is laid out as."""
    units = {"s": "SECONDS", "ms": "MILLISECONDS", "us": "MICROSECONDS", "ns": "NANOSECONDS"}
    if pa.types.is_timestamp(kind):
        return f"TIMESTAMP_{units[kind.unit]}"
    if pa.types.is_duration(kind):
        return f"DURATION_{units[kind.unit]}"
    if pa.types.is_decimal(kind) and kind.bit_width <= 128:
        return f"DECIMAL{kind.bit_width}"
    if str(kind) not in _TYPE_IDS and not pa.types.is_list(kind) and not pa.types.is_struct(kind):
        raise ValueError(f"cuDF has no columns of {kind}")
    return _TYPE_IDS.get(str(kind), "LIST" if pa.types.is_list(kind) else "STRUCT")


_TYPE_IDS = {
    **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float": "FLOAT32",
    "double": "FLOAT64",
    "bool": "BOOL8",
    "string": "STRING",
    "large_string": "STRING",
}
