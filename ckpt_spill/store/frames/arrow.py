"""Arrow arrays as their buffers, trimmed to the slice; nothing is copied but bitmaps and offsets that have to move.

What a type calls for follows from the type, so the description of an array is just its length, its buffers, and the
descriptions of the arrays inside it. Layouts not spelled out here (unions, views, run-ends) are Arrow IPC streams.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ckpt_spill.store.frames.buffers import Sink, Source, count
from ckpt_spill.store.frames.untyped import pa

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckpt_spill.store.frames.buffers import Description, Plan


# Pandas registers its extension types, intervals and periods, when it first makes one: until then a schema that names
# one is read as the storage alone.
pa.array(pd.arrays.IntervalArray.from_breaks([0, 1]))


def describe_type(kind: Any) -> Any:
    """Describe a type: its name where that says all, else as a one-field schema in Arrow's own encoding."""
    try:
        if pa.type_for_alias(str(kind)) == kind:
            return str(kind)
    except ValueError:
        pass
    return {"schema": describe_schema(pa.schema([pa.field("", kind)]))}


def build_type(description: Any) -> Any:
    """Give back a type."""
    if isinstance(description, str):
        return pa.type_for_alias(description)
    return build_schema(description["schema"]).field(0).type


def describe_schema(schema: Any) -> str:
    """Describe a schema in Arrow's own encoding."""
    return base64.b64encode(schema.serialize()).decode()


def build_schema(text: str) -> Any:
    """Give back a schema."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))


def describe(array: Any, sink: Sink) -> Description:
    """Describe an array without its type."""
    kind = array.type
    if isinstance(kind, pa.ExtensionType):
        return {"storage": describe(array.storage, sink)}
    if pa.types.is_dictionary(kind):
        # Under the nulls of a parent Arrow writes index 0, also where there is nothing to point at.
        indices = array.indices if len(array.dictionary) else pa.nulls(len(array), kind.index_type)
        return {"indices": describe(indices, sink), "dictionary": describe(array.dictionary, sink)}
    if pa.types.is_null(kind):
        return {"length": len(array)}
    layout = _layout(kind)
    if layout is None:
        return {"length": len(array), "ipc": sink.add_bytes(_ipc(array))}
    found: Description = {"length": len(array)}
    if array.null_count:
        found["valid"] = sink.add(bits(memory(array.buffers()[0]), array.offset, len(array)))
    if len(array):
        layout[0](array, found, sink)
    return found


def plan(kind: Any, description: Description, source: Source) -> Plan:
    """Take the buffers of an array; the function returned puts it together."""
    if isinstance(kind, pa.ExtensionType):
        storage = plan(kind.storage_type, description["storage"], source)
        return lambda: pa.ExtensionArray.from_storage(kind, storage())
    if pa.types.is_dictionary(kind):
        indices = plan(kind.index_type, description["indices"], source)
        dictionary = plan(kind.value_type, description["dictionary"], source)
        return lambda: pa.DictionaryArray.from_arrays(indices(), dictionary(), ordered=kind.ordered, safe=True)
    length = count(description["length"])
    if pa.types.is_null(kind):
        return lambda: pa.nulls(length)
    layout = _layout(kind)
    if layout is None:
        stream = source.take(description["ipc"])
        return lambda: _from_ipc(stream, kind, length)
    buffers: list[Any] = [None]
    if "valid" in description:
        buffers[0] = _take(source, description["valid"], _bytes_for(length))
    if not length:
        return lambda: pa.array([], kind)
    more, children = layout[1](kind, description, source)
    buffers += more
    return lambda: _checked(pa.Array.from_buffers(kind, length, buffers, children=[c() for c in children]))


def trimmed(array: Any) -> Any:
    """Return an equal array whose buffers hold little more than it shows."""
    sink = Sink()
    description = describe(array, sink)
    source = Source([b.nbytes for b in sink.on_host])
    ready = plan(array.type, description, source)
    for number, memory in source.destinations.items():
        memory[:] = sink.on_host[number].view(np.uint8)
    return ready()


def _checked(array: Any) -> Any:
    """Make sure that nothing in an array points outside of it: Arrow itself looks at the last offset only."""
    array.validate()
    if _layout(array.type)[1] in {_plan_bytes, _plan_list}:
        used = offsets(array)
        if (used[1:] < used[:-1]).any():
            raise ValueError(f"the offsets of a {array.type} do not ascend")
    return array


def _take(source: Source, number: int, nbytes: int | None = None) -> Any:
    return pa.py_buffer(source.take(number, nbytes))


def _ipc(array: Any) -> Any:
    out = pa.BufferOutputStream()
    batch = pa.record_batch([array], names=[""])
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue()


def _from_ipc(stream: np.ndarray, kind: Any, length: int) -> Any:
    array = pa.ipc.open_stream(pa.py_buffer(stream)).read_next_batch().column(0)
    if array.type != kind or len(array) != length:
        raise ValueError(f"an Arrow stream holds {len(array)} {array.type} instead of {length} {kind}")
    array.validate(full=True)
    return array


def _bytes_for(bits: int) -> int:
    return (bits + 7) // 8


def memory(buffer: Any, missing: int = 0) -> np.ndarray:
    """View a buffer as bytes; Arrow leaves out some that hold nothing."""
    if buffer is None or buffer.size == 0:
        return np.zeros(missing, np.uint8)
    return np.frombuffer(buffer, np.uint8)


def bits(bitmap: np.ndarray, offset: int, length: int) -> np.ndarray:
    """Return the bytes of a slice of a bitmap, moved if the slice does not begin with a byte."""
    used = bitmap[offset // 8 : _bytes_for(offset + length)]
    shift = offset % 8
    if not shift:
        return used
    moved = used >> shift
    moved[:-1] |= used[1:] << (8 - shift)
    return moved[: _bytes_for(length)]


# A layout is two functions: one describes the buffers after the validity bitmap and the children, one plans them.


def _describe_fixed(array: Any, found: Description, sink: Sink) -> None:
    width = array.type.bit_width // 8
    data = memory(array.buffers()[1], len(array) * width)[array.offset * width : (array.offset + len(array)) * width]
    found["data"] = sink.add_bytes(data, width)


def _plan_fixed(kind: Any, description: Description, source: Source) -> Any:
    return [_take(source, description["data"], description["length"] * (kind.bit_width // 8))], []


def _describe_bool(array: Any, found: Description, sink: Sink) -> None:
    found["data"] = sink.add(bits(memory(array.buffers()[1]), array.offset, len(array)))


def _plan_bool(_kind: Any, description: Description, source: Source) -> Any:
    return [_take(source, description["data"], _bytes_for(description["length"]))], []


def is_text(kind: Any) -> bool:
    """Tell text, whatever the width of its offsets, from other types."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def offsets(array: Any) -> np.ndarray:
    """Return the offsets of an array with at least one item."""
    every = np.frombuffer(array.buffers()[1], offset_dtype(array.type))
    return every[array.offset : array.offset + len(array) + 1]


def _describe_offsets(array: Any, found: Description, sink: Sink) -> tuple[int, int]:
    """Describe the offsets, made to begin with 0; return where the first and the last pointed."""
    used = offsets(array)
    first, last = int(used[0]), int(used[-1])
    found["offsets"] = sink.add(used - used[0] if first else used)
    return first, last


def _plan_offsets(kind: Any, description: Description, source: Source) -> Any:
    return _take(source, description["offsets"], (description["length"] + 1) * offset_dtype(kind).itemsize)


def offset_dtype(kind: Any) -> np.dtype:
    """Give the dtype of the offsets of text, bytes or lists."""
    large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_list(kind)
    return np.dtype(np.int64 if large else np.int32)


def _describe_bytes(array: Any, found: Description, sink: Sink) -> None:
    first, last = _describe_offsets(array, found, sink)
    found["data"] = sink.add(memory(array.buffers()[2])[first:last])


def _plan_bytes(kind: Any, description: Description, source: Source) -> Any:
    return [_plan_offsets(kind, description, source), _take(source, description["data"])], []


def _describe_list(array: Any, found: Description, sink: Sink) -> None:
    first, last = _describe_offsets(array, found, sink)
    found["children"] = [describe(array.values.slice(first, last - first), sink)]


def _plan_list(kind: Any, description: Description, source: Source) -> Any:
    return [_plan_offsets(kind, description, source)], _plan_children(kind, description, source)


def _describe_fixed_list(array: Any, found: Description, sink: Sink) -> None:
    size = array.type.list_size
    found["children"] = [describe(array.values.slice(array.offset * size, len(array) * size), sink)]


def _describe_struct(array: Any, found: Description, sink: Sink) -> None:
    found["children"] = [describe(array.field(i), sink) for i in range(array.type.num_fields)]


def _plan_nested(kind: Any, description: Description, source: Source) -> Any:
    return [], _plan_children(kind, description, source)


def _plan_children(kind: Any, description: Description, source: Source) -> list[Plan]:
    described = description["children"]
    if len(described) != kind.num_fields:
        raise ValueError(f"{len(described)} arrays inside a {kind}")
    return [plan(kind.field(i).type, d, source) for i, d in enumerate(described)]


_LAYOUTS: list[tuple[list[Callable[[Any], bool]], Any]] = [
    ([pa.types.is_boolean], (_describe_bool, _plan_bool)),
    (
        [pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary],
        (_describe_bytes, _plan_bytes),
    ),
    ([pa.types.is_list, pa.types.is_large_list, pa.types.is_map], (_describe_list, _plan_list)),
    ([pa.types.is_fixed_size_list], (_describe_fixed_list, _plan_nested)),
    ([pa.types.is_struct], (_describe_struct, _plan_nested)),
    ([pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary], (_describe_fixed, _plan_fixed)),
]


def _layout(kind: Any) -> Any:
    """Return the two functions for a type, None for one to be left to IPC."""
    return next((functions for tests, functions in _LAYOUTS if any(test(kind) for test in tests)), None)
