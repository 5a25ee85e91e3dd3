"""cuDF's and CuPy's objects as neutral tables and back: every name of theirs that is used, apart from the copies.

What cuDF keeps to itself is used where its public API loses something: ``Series.from_pylibcudf`` guesses the dtype, and
``to_pylibcudf`` forgets where in its allocation a buffer begins. A test checks each of the names.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ckpt_spill.errors import ReadError
from ckpt_spill.store.device import copies, libraries
from ckpt_spill.store.device.libraries import rapids
from ckpt_spill.store.device.memory import Memory
from ckpt_spill.store.frames import cudtypes, cupyarrays, layout
from ckpt_spill.store.frames.columns import Axis, Column, Table, Values
from ckpt_spill.store.frames.untyped import pa

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpt_spill.store.frames.layout import Laid, View

_INDEXES = ("Range", "Datetime", "Timedelta", "Categorical", "Interval", "Multi", "")
_CLASSES = frozenset(["DataFrame", "Series", *(f"{kind}Index" for kind in _INDEXES)])


def is_cudf(value: Any) -> bool:
    """Tell a frame, series or index of cuDF's, not of a subclass, without importing it."""
    kind = type(value)
    return kind.__module__.startswith("cudf.core.") and kind.__qualname__ in _CLASSES


def is_cupy(value: Any) -> bool:
    """Tell an array of CuPy's, not of a subclass, without importing it."""
    kind = type(value)
    return kind.__qualname__ == "ndarray" and kind.__module__.partition(".")[0] == "cupy"


@contextlib.contextmanager
def opened(value: Any) -> Iterator[Table]:
    """Give a cuDF object as a table of addresses, which hold inside the context."""
    with contextlib.ExitStack() as access:
        kind = type(value).__name__.lower()
        if kind not in {"dataframe", "series"}:
            yield Table("index", _axis(value, access), [], None, {}, unique=False)
            return
        # _columns and _column: the public accessors make new series.
        columns = value._columns if kind == "dataframe" else [value._column]  # noqa: SLF001
        yield Table(
            kind="frame" if kind == "dataframe" else kind,
            axis=_axis(value.index, access),
            columns=[_column(column, access) for column in columns],
            labels=value.columns if kind == "dataframe" else value.name,
            attrs=value.attrs,
            unique=not value.flags.allows_duplicate_labels,
        )


def build(table: Table) -> Any:
    """Make a cuDF object of a table in host memory, or in part on the device already."""
    cudf = rapids("cudf")
    axis = _build_axis(table.axis, cudf)
    if table.kind == "index":
        return axis
    columns = {i: _build_column(column) for i, column in enumerate(table.columns)}
    # _from_data: the constructors copy columns, and guess what is in them.
    more = {"attrs": table.attrs, "allows_duplicate_labels": not table.unique}
    if table.kind == "series":
        return cudf.Series._from_data({table.labels: columns[0]}, index=axis, **more)  # noqa: SLF001
    return cudf.DataFrame._from_data(columns, index=axis, columns=table.labels, **more)  # noqa: SLF001


def cross(value: Any) -> Any:
    """Bring a value of pandas or numpy to the device, in their libraries' own ways; leave others as they are.

    Raises
    ------
    ReadError
        The library has nothing like it.
    """
    of_frames = isinstance(value, pd.DataFrame | pd.Series | pd.Index | pa.Table)
    if not of_frames and type(value) is not np.ndarray:
        return value
    libraries.check()
    try:
        if type(value) is np.ndarray:
            return cupyarrays.send(value)
        cudf = rapids("cudf")
        return (
            cudf.DataFrame.from_arrow(value)
            if isinstance(value, pa.Table)
            else cudf.from_pandas(value, nan_as_null=False)
        )
    except (TypeError, ValueError, NotImplementedError) as e:
        raise ReadError(
            f"there is nothing on a GPU like this {type(value).__name__} ({type(e).__name__}: {e}): "
            "read it with backend='pandas'"
        ) from e


def _axis(index: Any, access: contextlib.ExitStack) -> Axis:
    kind, names = type(index).__name__, list(index.names)
    if kind == "RangeIndex":
        return Axis([], names, range=range(index.start, index.stop, index.step))
    columns = [_column(column, access) for column in index._columns]  # noqa: SLF001
    return Axis(columns, names, levels=kind == "MultiIndex", freq=getattr(index, "freq", None))


def _build_axis(axis: Axis, cudf: Any) -> Any:
    if axis.range is not None:
        return cudf.RangeIndex(axis.range, name=axis.names[0])
    columns = [_build_column(column) for column in axis.columns]
    if axis.levels:
        index = cudf.MultiIndex._from_data(dict(enumerate(columns)))  # noqa: SLF001
        index.names = axis.names
        return index
    index = cudf.Index._from_column(columns[0], name=axis.names[0])  # noqa: SLF001
    if axis.freq is not None:
        return type(index)._from_column(columns[0], name=axis.names[0], freq=axis.freq)  # noqa: SLF001
    return index


def _column(column: Any, access: contextlib.ExitStack) -> Column:
    """Give a column (``cudf.core.column.ColumnBase``) as addresses; spilled ones come back to the device for that."""
    access.enter_context(column.access(mode="read", scope="internal"))
    cudf, dtype, view = rapids("cudf"), column.dtype, _view(column.plc_column)
    if isinstance(dtype, cudf.CategoricalDtype):
        categories = _column(dtype.categories._column, access)  # noqa: SLF001
        return Column(view, pa.from_numpy_dtype(f"u{view.width}"), {}, categories, bool(dtype.ordered))
    kind, words = cudtypes.describe(dtype)
    return Column(view, kind, words)


def _view(column: Any) -> View:
    """Give a ``pylibcudf.Column`` as addresses."""
    plc = rapids("pylibcudf")
    kind, data, mask = column.type(), column.data(), column.null_mask()
    nested = (plc.TypeId.STRING, plc.TypeId.LIST, plc.TypeId.STRUCT, plc.TypeId.EMPTY)
    return layout.View(
        width=1 if kind.id() in nested else plc.types.size_of(kind),
        size=column.size(),
        offset=column.offset(),
        null_count=column.null_count(),
        data=data.ptr if data is not None else 0,
        mask=mask.ptr if mask is not None else 0,
        children=tuple(_view(child) for child in column.children()),
    )


def _build_column(values: Values) -> Any:
    cudf = rapids("cudf")
    create = rapids("cudf.core.column").ColumnBase.create
    if values.categories is None:
        dtype = cudtypes.build(values.array.type, values.words)
    else:
        categories = cudf.Index._from_column(_build_column(values.categories))  # noqa: SLF001
        dtype = cudf.CategoricalDtype(categories, ordered=values.ordered)
    return create(_send(layout.lay_out(values.array)), dtype)


def _send(laid: Laid) -> Any:
    """Make a ``pylibcudf.Column``."""
    plc = rapids("pylibcudf")
    return plc.Column(
        plc.DataType(getattr(plc.TypeId, laid.type_id), laid.scale),
        laid.size,
        None if laid.data is None else _span(laid.data),
        None if laid.mask is None else _span(laid.mask),
        laid.null_count,
        0,
        [_send(child) for child in laid.children],
    )


def _span(data: np.ndarray | Memory) -> Any:
    """Give memory to a column: as the buffer of RMM's that it is, or a part of one."""
    memory = copies.to_device(data) if isinstance(data, np.ndarray) else data
    buffer = memory.owner
    if (buffer.ptr, buffer.size) == memory[:2]:
        return buffer
    return rapids("pylibcudf").gpumemoryview(memory)
