"""Small Python values inside a description: names, labels, attrs.

``None``, ``bool``, ``int``, ``float``, ``str`` and lists are themselves; tuples and dicts are marked; anything else,
a subclass of these included, is a pickle.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ckpt_spill.store.frames import pickled

if TYPE_CHECKING:
    from ckpt_spill.store.frames.buffers import Sink

_DEEPEST = 16


class _NotPlainError(Exception):
    """The value has no JSON form that gives it back exactly."""


def describe(value: Any, sink: Sink) -> Any:
    """Give the JSON form of a value, a pickle where there is none."""
    try:
        return _plain(value, _DEEPEST)
    except _NotPlainError:
        return {"pickle": pickled.inline(value, sink)}


def is_plain(value: Any) -> bool:
    """Tell whether a value has a JSON form of its own."""
    try:
        _plain(value, _DEEPEST)
    except _NotPlainError:
        return False
    return True


def build(description: Any) -> Any:
    """Give back a value; runs a pickle if there is one."""
    if isinstance(description, list):
        return [build(x) for x in description]
    if isinstance(description, dict):
        if "tuple" in description:
            return tuple([build(x) for x in description["tuple"]])
        if "dict" in description:
            return {build(k): build(v) for k, v in description["dict"]}
        return pickled.loads_inline(description["pickle"])
    return description


def _plain(value: Any, depth: int) -> Any:  # noqa: PLR0911  # one return per kind
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int and -(2**63) <= value < 2**64:
        return value
    if kind is float and math.isfinite(value):
        return value
    if kind is str and _is_unicode(value):
        return value
    if depth > 0:
        if kind is list:
            return [_plain(x, depth - 1) for x in value]
        if kind is tuple:
            return {"tuple": [_plain(x, depth - 1) for x in value]}
        if kind is dict:
            return {"dict": [[_plain(k, depth - 1), _plain(v, depth - 1)] for k, v in value.items()]}
    raise _NotPlainError


def _is_unicode(text: str) -> bool:
    """Tell whether a text has a UTF-8 form: lone surrogates have none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
