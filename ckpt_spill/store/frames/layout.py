"""Columns as libcudf lays them out in memory, to Arrow arrays and back.

The two differ in little: a bool is a byte here and a bit there, bitmaps are padded, a slice is an offset that holds for
the children, too, and the offsets of text may have 32 or 64 bits. Nothing here calls a device: who describes a column
is given a function that fetches memory, who makes one gets arrays to be sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ckpt_spill.store.frames import arrow
from ckpt_spill.store.frames.untyped import pa

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

#: Bitmaps are as long as libcudf allocates them.
_PADDING = 64
_MOST_SMALL_OFFSET = (1 << 31) - 1


class Window(NamedTuple):
    """A piece of memory, wherever it is."""

    address: int
    nbytes: int


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
    data: np.ndarray | None
    mask: np.ndarray | None
    children: list[Laid]


if TYPE_CHECKING:
    #: Asks for pieces of memory, is sent their contents, and returns what it made of them.
    Reader = Generator[list[Window], list[np.ndarray], Any]


def gather(readers: Sequence[Reader], fetch: Callable[[list[Window]], list[np.ndarray]]) -> list[Any]:
    """Run readers side by side, so that memory is fetched as often as they are deep, not as often as there are some."""
    everything = _together(readers)
    try:
        windows = next(everything)
        while True:
            windows = everything.send(fetch(windows))
    except StopIteration as done:
        return list(done.value)


def _together(readers: Sequence[Reader]) -> Reader:
    results: list[Any] = [None] * len(readers)
    contents: list[Any] = [None] * len(readers)
    running = list(range(len(readers)))
    while running:
        asked: dict[int, list[Window]] = {}
        for i in running:
            try:
                asked[i] = readers[i].send(contents[i])
            except StopIteration as done:
                results[i] = done.value
        if asked:
            fetched = iter((yield [window for windows in asked.values() for window in windows]))
            contents = [None] * len(readers)
            for i, windows in asked.items():
                contents[i] = [next(fetched) for _ in windows]
        running = list(asked)
    return results


def read(view: View, kind: Any) -> Reader:
    """Read a column as an Arrow array of a type; of text, with the offsets that it takes."""
    return _read(view, kind, 0, view.size)


def _read(view: View, kind: Any, start: int, length: int) -> Reader:
    """Read some rows of a column."""
    if isinstance(kind, pa.ExtensionType):
        storage = yield from _read(view, kind.storage_type, start, length)
        return pa.ExtensionArray.from_storage(kind, storage)
    nested = pa.types.is_struct(kind)
    ragged = not nested and bool(view.children)
    if not length or pa.types.is_null(kind) or (_is_text(kind) and not ragged):
        return pa.nulls(length, kind)
    first, masked = view.offset + start, bool(view.mask and view.null_count)
    windows = [Window(view.mask + first // 8, (first % 8 + length + 7) // 8)] if masked else []
    if ragged:
        ends = view.children[0]
        windows.append(Window(ends.data + (ends.offset + first) * ends.width, (length + 1) * ends.width))
    elif not nested:
        windows.append(Window(view.data + first * view.width, length * view.width))
    fetched = (yield windows) if windows else []
    valid = pa.py_buffer(arrow.bits(fetched[0], first % 8, length)) if masked else None
    if ragged:
        return (yield from _read_ragged(view, kind, valid, fetched[-1].view(f"i{view.children[0].width}")))
    if nested:
        children = yield from _together(
            [_read(v, kind.field(i).type, first, length) for i, v in enumerate(view.children)]
        )
        made = pa.struct([kind.field(i).with_type(child.type) for i, child in enumerate(children)])
        return pa.Array.from_buffers(made, length, [valid], children=children)
    data = np.packbits(fetched[-1], bitorder="little") if pa.types.is_boolean(kind) else fetched[-1]
    return pa.Array.from_buffers(kind, length, [valid, pa.py_buffer(data)])


def _read_ragged(view: View, kind: Any, valid: Any, offsets: np.ndarray) -> Reader:
    """Read the contents of text or lists, given their offsets."""
    length, first, last = len(offsets) - 1, int(offsets[0]), int(offsets[-1])
    large = _is_text(kind) and last - first > _MOST_SMALL_OFFSET
    ends = pa.py_buffer((offsets - offsets[0]).astype(np.int64 if large else np.int32, copy=False))
    if not _is_text(kind):
        values = yield from _read(view.children[1], kind.value_type, first, last - first)
        made = pa.list_(kind.value_field.with_type(values.type))
        return pa.Array.from_buffers(made, length, [valid, ends], children=[values])
    chars = (yield [Window(view.data + first, last - first)])[0]
    array = pa.Array.from_buffers(
        pa.large_string() if large else pa.string(), length, [valid, ends, pa.py_buffer(chars)]
    )
    return array if large else array.cast(kind)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def lay_out(array: Any) -> Laid:
    """Lay out an Arrow array as libcudf wants it; there is no type of libcudf's for all of Arrow's."""
    kind = array.type
    if isinstance(kind, pa.ExtensionType):
        return lay_out(array.storage)
    if pa.types.is_null(kind):
        return lay_out(pa.nulls(len(array), pa.string()))
    valid, start, length = array.buffers()[0], array.offset, len(array)
    mask = None
    if array.null_count:
        mask = np.zeros(-(-length // (8 * _PADDING)) * _PADDING, np.uint8)
        mask[: (length + 7) // 8] = arrow.bits(np.frombuffer(valid, np.uint8), start, length)
    data, children = _contents(array)
    scale = -kind.scale if pa.types.is_decimal(kind) else 0
    return Laid(_type_id(kind), scale, length, array.null_count, data, mask, children)


def _contents(array: Any) -> tuple[np.ndarray | None, list[Laid]]:
    """Lay out what there is of an array besides its bitmap."""
    kind, start, length = array.type, array.offset, len(array)
    if pa.types.is_struct(kind):
        return None, [lay_out(array.field(i)) for i in range(kind.num_fields)]
    if _is_text(kind):
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
