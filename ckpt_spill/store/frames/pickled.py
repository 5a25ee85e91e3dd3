"""Pickles as parts of a description: inline when small, else a stream and out-of-band buffers."""

from __future__ import annotations

import base64
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from ckpt_spill.errors import ReadError
from ckpt_spill.store.frames import pickler

if TYPE_CHECKING:
    from ckpt_spill.store.frames.buffers import Description, Plan, Sink, Source

_INLINE = 512


def describe(value: Any, sink: Sink) -> Description:
    """Describe a value by its pickle."""
    made = pickler.dumps(value, sink.where, prove=sink.prove)
    sink.proven &= made.proven
    if not made.buffers and sum(map(len, made.stream)) <= _INLINE:
        return {"pickle": base64.b64encode(b"".join(made.stream)).decode()}
    stream = [sink.add_bytes(piece) for piece in made.stream]
    return {"pickle": {"stream": stream, "buffers": [_add(b, sink) for b in made.buffers]}}


def inline(value: Any, sink: Sink) -> str:
    """Pickle a value into a text, whatever its size."""
    made = pickler.dumps(value, sink.where, out_of_band=False, prove=sink.prove)
    sink.proven &= made.proven
    return base64.b64encode(b"".join(made.stream)).decode()


def loads_inline(text: str) -> Any:
    """Load what ``inline`` made."""
    return _loads(base64.b64decode(text, validate=True), [])


def needs_pickle(description: Any) -> bool:
    """Tell whether a description, or any part of one, is a pickle."""
    left = [description]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if "pickle" in part:
                return True
            left.extend(part.values())
        elif isinstance(part, list):
            left.extend(part)
    return False


def plan(description: Description, source: Source) -> Plan:
    """Take the buffers of a pickle; loading it is left to the function returned."""
    found = description["pickle"]
    if isinstance(found, str):
        return lambda: loads_inline(found)
    source.pickled.update(found["stream"], found["buffers"])
    stream = np.empty(sum(map(source.length, found["stream"])), np.uint8)
    start = 0
    for number in found["stream"]:
        source.fill(number, stream[start : start + source.length(number)])
        start += source.length(number)
    buffers = [source.take(number) for number in found["buffers"]]
    return lambda: _loads(stream.data, buffers)


def _loads(stream: bytes | memoryview, buffers: list[np.ndarray]) -> Any:
    """Load a pickle. It could be loaded where it was written, so what fails here is a matter of this environment."""
    try:
        return pickle.loads(stream, buffers=buffers)
    except MemoryError:
        raise
    except Exception as e:
        raise ReadError(
            f"a pickled part cannot be loaded in this environment: {type(e).__name__}: {e}. Make the "
            "modules importable that the values of this checkpoint come from."
        ) from e


def _add(buffer: pickle.PickleBuffer, sink: Sink) -> int:
    return sink.add_bytes(buffer.raw(), memoryview(buffer).itemsize)
