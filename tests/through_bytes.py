"""A value taken apart, copied byte by byte as a file would, and put together again."""

import json

import numpy as np

from ckpt_spill.store import frames


def through_bytes(value, columns=None):
    """Give what a value is after a trip through JSON and fresh memory."""
    return refill(*flatten(value), columns)


def flatten(value):
    """Encode a value to the text of its description and the contents of its buffers."""
    encoded = frames.encode(value)
    for buffer in encoded.buffers:
        assert buffer.ndim == 1
        assert not buffer.dtype.hasobject
    text = json.dumps(encoded.description, allow_nan=False, ensure_ascii=False)
    return text.encode(), [buffer.tobytes() for buffer in encoded.buffers]


def refill(text, contents, columns=None, library=None):
    """Decode a value from the text of its description and the contents of its buffers."""
    decoding = frames.decoding(json.loads(text), [len(content) for content in contents], columns, library)
    for number, memory in decoding.destinations.items():
        assert memory.dtype == np.uint8
        assert memory.ndim == 1
        assert memory.flags.c_contiguous
        assert memory.flags.writeable
        memory[:] = np.frombuffer(contents[number], np.uint8)
    return decoding.value()


def needs_pickle(value):
    """Tell whether any part of a value is stored as a pickle."""
    return frames.needs_pickle(frames.encode(value).description)
