"""Numpy dtypes in descriptions: the array-protocol text where that says all, else fields, else a pickle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ckpt_spill.store.frames import pickled, small

if TYPE_CHECKING:
    from ckpt_spill.store.frames.buffers import Sink


def is_raw(dtype: np.dtype) -> bool:
    """Tell whether the bytes of an array of this dtype are its whole content."""
    return not dtype.hasobject and dtype.kind != "T"


def describe(dtype: np.dtype, sink: Sink) -> Any:
    """Describe a dtype."""
    found = _neutral(dtype)
    if found is not None and _same(build(found), dtype):
        return found
    return {"pickle": pickled.inline(dtype, sink)}


def build(description: Any) -> Any:
    """Give back a dtype; runs a pickle if there is one."""
    if isinstance(description, str):
        return np.dtype(description)
    if "pickle" in description:
        dtype = pickled.loads_inline(description["pickle"])
        if isinstance(dtype, np.dtype):
            return dtype
        raise ValueError(f"a {type(dtype).__name__} in the place of a dtype")
    if "base" in description:
        return np.dtype((build(description["base"]), tuple(description["shape"])))
    fields = description["fields"]
    layout: Any = {
        "names": [f["name"] for f in fields],
        "formats": [build(f["dtype"]) for f in fields],
        "offsets": [f["offset"] for f in fields],
        "itemsize": description["itemsize"],
    }
    if any("title" in f for f in fields):
        layout["titles"] = [f.get("title") for f in fields]
    return np.dtype(layout, align=description.get("aligned", False))


def _neutral(dtype: Any) -> Any:
    """Describe a dtype without a pickle, as far as that goes."""
    if dtype.subdtype is not None:
        base = _neutral(dtype.base)
        return None if base is None else {"base": base, "shape": list(dtype.shape)}
    if dtype.names is None:
        return dtype.str if dtype.kind in "biufcmMSUVO" else None
    fields = []
    for name in dtype.names:
        inner, offset, *title = dtype.fields[name]
        described = _neutral(inner)
        if described is None or not small.is_plain([name, *title]) or any(type(t) is not str for t in title):
            return None
        fields.append({"name": name, "dtype": described, "offset": offset} | ({"title": title[0]} if title else {}))
    return {"fields": fields, "itemsize": dtype.itemsize} | ({"aligned": True} if dtype.isalignedstruct else {})


def _same(a: Any, b: Any) -> bool:
    """Compare what ``==`` leaves out, too: metadata, alignment, whether records are of numpy's record class."""
    if (a, a.str, a.isalignedstruct, a.metadata) != (b, b.str, b.isalignedstruct, b.metadata):
        return False
    if a.names is not None and a.type is not b.type:
        return False
    if a.subdtype is not None:
        return _same(a.base, b.base)
    return all(_same(a.fields[name][0], b.fields[name][0]) for name in a.names or ())
