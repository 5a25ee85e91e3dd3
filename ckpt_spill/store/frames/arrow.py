"""Arrow arrays as their buffers, trimmed to the slice; nothing is copied but bitmaps and offsets that have to move.

What a type calls for follows from the type, so the description of an array is just its length, its buffers, and the
descriptions of the arrays inside it. Layouts not spelled out here (unions, views, run-ends) are Arrow IPC streams.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ckpt_spill.store.frames.buffers import Sink, Source, count

if TYPE_CHECKING:
    from ckpt_spill.store.frames.buffers import Description, Plan


def describe_type(kind: pa.DataType) -> Any:
    """Describe a type: its name where that says all, else as a one-field schema in Arrow's own encoding."""
    try:
        if pa.type_for_alias(str(kind)) == kind:
            return str(kind)
    except ValueError:
        pass
    return {"schema": describe_schema(pa.schema([pa.field("", kind)]))}


def build_type(description: Any) -> pa.DataType:
    """Give back a type."""
    if isinstance(description, str):
        return pa.type_for_alias(description)
    return build_schema(description["schema"]).field(0).type


def describe_schema(schema: pa.Schema) -> str:
    """Describe a schema in Arrow's own encoding."""
    return base64.b64encode(schema.serialize()).decode()


def build_schema(text: str) -> pa.Schema:
    """Give back a schema."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))


def describe(array: Any, sink: Sink) -> Description:
    """Describe an array without its type."""
    kind = array.type
    if isinstance(kind, pa.ExtensionType):
        return {"storage": describe(array.storage, sink)}
    if pa.types.is_dictionary(kind):
        return {"indices": describe(array.indices, sink), "dictionary": describe(array.dictionary, sink)}
    if pa.types.is_null(kind):
        return {"length": len(array)}
    layout = _layout(kind)
    if layout is None:
        return {"length": len(array), "ipc": sink.add_bytes(_ipc(array))}
    found: Description = {"length": len(array)}
    if array.null_count:
        found["valid"] = sink.add(_bits(array.buffers()[0], array.offset, len(array)))
    if len(array):
        layout[0](array, found, sink)
    return found


def plan(kind: pa.DataType, description: Description, source: Source) -> Plan:
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
    source = Source([b.nbytes for b in sink.buffers])
    ready = plan(array.type, description, source)
    for number, memory in source.destinations.items():
        memory[:] = sink.buffers[number].view(np.uint8)
    return ready()


def _checked(array: Any) -> Any:
    array.validate()
    return array


def _take(source: Source, number: int, nbytes: int | None = None) -> pa.Buffer:
    return pa.py_buffer(source.take(number, nbytes))


def _ipc(array: Any) -> pa.Buffer:
    out = pa.BufferOutputStream()
    batch = pa.record_batch([array], names=[""])
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue()


def _from_ipc(stream: np.ndarray, kind: pa.DataType, length: int) -> Any:
    array = pa.ipc.open_stream(pa.py_buffer(stream)).read_next_batch().column(0)
    if array.type != kind or len(array) != length:
        raise ValueError(f"an Arrow stream holds {len(array)} {array.type} instead of {length} {kind}")
    return _checked(array)


def _bytes_for(bits: int) -> int:
    return (bits + 7) // 8


def _memory(buffer: pa.Buffer | None, missing: int = 0) -> np.ndarray:
    """View a buffer as bytes; Arrow leaves out some that hold nothing."""
    if buffer is None or buffer.size == 0:
        return np.zeros(missing, np.uint8)
    return np.frombuffer(buffer, np.uint8)


def _bits(bitmap: pa.Buffer, offset: int, length: int) -> np.ndarray:
    """Return the bytes of a slice of a bitmap, moved if the slice does not begin with a byte."""
    used = _memory(bitmap)[offset // 8 : _bytes_for(offset + length)]
    shift = offset % 8
    if not shift:
        return used
    moved = used >> shift
    moved[:-1] |= used[1:] << (8 - shift)
    return moved[: _bytes_for(length)]


# A layout is two functions: one describes the buffers after the validity bitmap and the children, one plans them.


def _describe_fixed(array: Any, found: Description, sink: Sink) -> None:
    width = array.type.bit_width // 8
    data = _memory(array.buffers()[1], len(array) * width)[array.offset * width : (array.offset + len(array)) * width]
    found["data"] = sink.add_bytes(data, width)


def _plan_fixed(kind: pa.DataType, description: Description, source: Source) -> Any:
    return [_take(source, description["data"], description["length"] * (kind.bit_width // 8))], []


def _describe_bool(array: Any, found: Description, sink: Sink) -> None:
    found["data"] = sink.add(_bits(array.buffers()[1], array.offset, len(array)))


def _plan_bool(_kind: pa.DataType, description: Description, source: Source) -> Any:
    return [_take(source, description["data"], _bytes_for(description["length"]))], []


def _offsets(array: Any, found: Description, sink: Sink) -> tuple[int, int]:
    """Describe the offsets, made to begin with 0; return where the first and the last pointed."""
    offsets = np.frombuffer(array.buffers()[1], _offset_dtype(array.type))
    offsets = offsets[array.offset : array.offset + len(array) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    found["offsets"] = sink.add(offsets - offsets[0] if first else offsets)
    return first, last


def _plan_offsets(kind: pa.DataType, description: Description, source: Source) -> pa.Buffer:
    return _take(source, description["offsets"], (description["length"] + 1) * _offset_dtype(kind).itemsize)


def _offset_dtype(kind: pa.DataType) -> np.dtype:
    large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_list(kind)
    return np.dtype(np.int64 if large else np.int32)


def _describe_bytes(array: Any, found: Description, sink: Sink) -> None:
    first, last = _offsets(array, found, sink)
    found["data"] = sink.add(_memory(array.buffers()[2])[first:last])


def _plan_bytes(kind: pa.DataType, description: Description, source: Source) -> Any:
    return [_plan_offsets(kind, description, source), _take(source, description["data"])], []


def _describe_list(array: Any, found: Description, sink: Sink) -> None:
    first, last = _offsets(array, found, sink)
    found["children"] = [describe(array.values.slice(first, last - first), sink)]


def _plan_list(kind: pa.DataType, description: Description, source: Source) -> Any:
    return [_plan_offsets(kind, description, source)], _plan_children(kind, description, source)


def _describe_fixed_list(array: Any, found: Description, sink: Sink) -> None:
    size = array.type.list_size
    found["children"] = [describe(array.values.slice(array.offset * size, len(array) * size), sink)]


def _describe_struct(array: Any, found: Description, sink: Sink) -> None:
    found["children"] = [describe(array.field(i), sink) for i in range(array.type.num_fields)]


def _plan_nested(kind: pa.DataType, description: Description, source: Source) -> Any:
    return [], _plan_children(kind, description, source)


def _plan_children(kind: pa.DataType, description: Description, source: Source) -> list[Plan]:
    described = description["children"]
    if len(described) != kind.num_fields:
        raise ValueError(f"{len(described)} arrays inside a {kind}")
    return [plan(kind.field(i).type, d, source) for i, d in enumerate(described)]


def _layout(kind: pa.DataType) -> Any:
    """Return the two functions for a type, None for one to be left to IPC."""
    types = pa.types
    if types.is_boolean(kind):
        return _describe_bool, _plan_bool
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return _describe_bytes, _plan_bytes
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        return _describe_list, _plan_list
    if types.is_fixed_size_list(kind):
        return _describe_fixed_list, _plan_nested
    if types.is_struct(kind):
        return _describe_struct, _plan_nested
    if types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
        return _describe_fixed, _plan_fixed
    return None
