"""Columns as cuDF has them on a device, made of Arrow data in host memory by the code that also sends them there."""

import contextlib
import ctypes
import json

import numpy as np
import pandas as pd
import pytest

from ckpt_spill.store import frames
from ckpt_spill.store.device import arrays, copies, memory
from ckpt_spill.store.frames import columns, layout, rapids
from ckpt_spill.store.frames.buffers import Far, Sink
from ckpt_spill.store.frames.parts import Parts
from tests import host_device
from tests.through_bytes import refill

#: The memory that addresses point into.
kept = []


def fetch(windows):
    """Read host memory by its address, as `copies.to_host` does that of a device."""
    return [np.frombuffer(ctypes.string_at(w.address, w.nbytes), np.uint8).copy() for w in windows]


def column(array, words=None, categories=None, *, ordered=False, start=0, stop=None):
    """Give an Arrow array as a column; a slice is, as in libcudf, an offset into everything."""
    made = view(layout.lay_out(array))
    if start or stop is not None:
        part = array.slice(start, (len(array) if stop is None else stop) - start)
        made = made._replace(offset=start, size=len(part), null_count=part.null_count)
    return columns.Column(made, array.type, words or {}, categories, ordered)


def view(laid):
    """Give the addresses of a column that is laid out."""
    kept.extend([laid.data, laid.mask])
    text = laid.type_id == "STRING"
    return layout.View(
        width=1 if text or laid.data is None or not laid.size else laid.data.nbytes // laid.size,
        size=laid.size,
        offset=0,
        null_count=laid.null_count,
        data=address(laid.data),
        mask=address(laid.mask),
        children=tuple(view(child) for child in laid.children),
    )


def address(memory):
    return 0 if memory is None else memory.ctypes.data


def frame(made, axis=None, labels=None, **attrs):
    """Put columns together to a frame."""
    rows = made[0].view.size
    labels = pd.Index([f"c{i}" for i in range(len(made))]) if labels is None else labels
    axis = columns.Axis([], [None], range=range(rows)) if axis is None else axis
    return columns.Table("frame", axis, made, labels, attrs, unique=False)


def describe(table):
    """Describe a table; return the text of its description and the contents of its buffers."""
    sink = Sink()
    description = columns.describe(columns.read(table, fetch), sink)
    text = json.dumps(description, allow_nan=False, ensure_ascii=False)
    assert not frames.needs_pickle(description)
    return text.encode(), [contents(buffer) for buffer in sink.buffers]


def contents(buffer):
    return (fetch([buffer.memory])[0] if isinstance(buffer, Far) else buffer).tobytes()


def near(table):
    """Read a table, bulk data included."""
    read = columns.read(table, fetch)
    axis = read.axis._replace(columns=[_near(values) for values in read.axis.columns])
    return read._replace(axis=axis, columns=[_near(values) for values in read.columns])


def _near(values):
    if not isinstance(values.array, Parts):
        return values
    return values._replace(array=layout.gather([layout.near(values.array)], fetch)[0])


def opened(table, chosen=None):
    """Give a table as pandas would open it."""
    return refill(*describe(table), chosen, "pandas")


class OfCudf:
    """Stands for an object of cuDF's whose columns are those of a table."""

    def __init__(self, table):
        self.table = table


class OfCupy:
    """Stands for an array of CuPy's whose memory is that of one of numpy's."""

    def __init__(self, array):
        self.array = array
        self.data = self
        self.ptr = array.ctypes.data

    def __getattr__(self, name):
        if name in {"shape", "strides", "dtype", "ndim", "size", "nbytes", "flags"}:
            return getattr(self.array, name)
        raise AttributeError(name)

    def __getitem__(self, index):
        return OfCupy(self.array[index])


@contextlib.contextmanager
def standing_in():
    """Let both be saved as what they stand for."""
    is_cudf, is_cupy, opened = rapids.is_cudf, rapids.is_cupy, rapids.opened

    def table(value):
        return contextlib.nullcontext(value.table) if isinstance(value, OfCudf) else opened(value)

    copies._spare.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rapids, "is_cudf", lambda value: isinstance(value, OfCudf) or is_cudf(value))
        patch.setattr(rapids, "is_cupy", lambda value: isinstance(value, OfCupy) or is_cupy(value))
        patch.setattr(rapids, "opened", table)
        patch.setattr(memory, "settle", lambda: None)
        patch.setattr(copies, "Channel", host_device.Channel)
        patch.setattr(arrays, "compact", lambda array: OfCupy(array.array.copy(order="K")))
        yield
    copies._spare.clear()
