"""Small values inside JSON: a collection's meta, divisions. The same description and buffers as in a partition file."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from ckpt_spill.store import frames
from ckpt_spill.store.frames import Library


def embed(value: Any) -> dict[str, Any]:
    """Describe a value in JSON, its buffers as base64."""
    encoded = frames.encode(value)
    buffers = [base64.b64encode(np.ascontiguousarray(b).view(np.uint8).tobytes()).decode() for b in encoded.buffers]
    return {"value": encoded.description, "buffers": buffers}


def extract(payload: dict[str, Any], library: Library | None = None) -> Any:
    """Give the value back, as an object of a library if one is named.

    What needed pickle is unpickled here: only call this on a manifest that is trusted.
    """
    buffers = [base64.b64decode(b, validate=True) for b in payload["buffers"]]
    decoding = frames.decoding(payload["value"], [len(b) for b in buffers], library=library)
    for number, destination in decoding.destinations.items():
        destination[:] = np.frombuffer(buffers[number], np.uint8)
    return decoding.value()
