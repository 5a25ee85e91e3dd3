"""CuDF's dtypes as Arrow types and the words for what these do not tell, and back."""

from __future__ import annotations

import zoneinfo
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ckpt_spill.store.device.libraries import rapids
from ckpt_spill.store.frames import extension
from ckpt_spill.store.frames.untyped import pa

if TYPE_CHECKING:
    from ckpt_spill.store.frames.buffers import Description

#: The dtype of text unless another is given.
_TEXT = ["pyarrow", "nan"]


def describe(dtype: Any) -> tuple[Any, Description]:  # noqa: PLR0911  # one return per kind
    """Give the Arrow type of a cuDF dtype, and the words for what that does not tell."""
    cudf = rapids("cudf")
    if isinstance(dtype, np.dtype):
        if dtype.kind == "O":
            return pa.string(), {"string": _TEXT, "dtype": "object"}
        return pa.from_numpy_dtype(dtype), {"dtype": "numpy"} if dtype.kind in "mM" else {}
    if isinstance(dtype, pd.StringDtype):
        return pa.string(), {"string": extension.describe_string(dtype)}
    if isinstance(dtype, pd.ArrowDtype):
        return dtype.pyarrow_dtype, {"dtype": "arrow"}
    if isinstance(dtype, pd.DatetimeTZDtype):
        return pa.timestamp(dtype.unit, str(dtype.tz)), {"dtype": "pandas"}
    if isinstance(dtype, cudf.ListDtype):
        kind, word = _describe_inner(dtype.element_type)
        return pa.list_(kind), {} if word is None else {"dtype": {"list": word}}
    if isinstance(dtype, cudf.StructDtype):
        fields = {name: _describe_inner(field) for name, field in dtype.fields.items()}
        words = [word for _, word in fields.values()]
        kind = pa.struct([pa.field(name, kind) for name, (kind, _) in fields.items()])
        return kind, {} if all(word is None for word in words) else {"dtype": {"struct": words}}
    if hasattr(dtype, "numpy_dtype"):
        return pa.from_numpy_dtype(dtype.numpy_dtype), {"dtype": "nullable"}
    return dtype.to_arrow(), {}


def _describe_inner(dtype: Any) -> tuple[Any, Description | None]:
    """Do so for a dtype in a list or struct, with None for the words that cuDF has by itself there."""
    kind, words = describe(dtype)
    return kind, None if words == _usual_words(kind) else words


def _usual_words(kind: Any) -> Description:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return {"string": _TEXT}
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return {"dtype": "pandas"}
    return {"dtype": "numpy"} if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) else {}


def build(kind: Any, words: Description | None) -> Any:  # noqa: PLR0911  # one return per kind
    """Give back a cuDF dtype."""
    cudf = rapids("cudf")
    words = _usual_words(kind) if words is None else words
    word = words.get("dtype")
    if "string" in words:
        return np.dtype(object) if word == "object" else extension.build_string(words["string"])
    if word == "arrow":
        return pd.ArrowDtype(kind)
    if pa.types.is_list(kind):
        return cudf.ListDtype(build(kind.value_type, (word or {}).get("list")))
    if pa.types.is_struct(kind):
        inner = (word or {}).get("struct", [None] * kind.num_fields)
        return cudf.StructDtype({f.name: build(f.type, w) for f, w in zip(kind, inner, strict=True)})
    if pa.types.is_decimal(kind):
        return getattr(cudf, f"Decimal{kind.bit_width}Dtype").from_arrow(kind)
    if extension.is_interval(kind):
        return cudf.IntervalDtype(build(kind.subtype, None), kind.closed)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pd.DatetimeTZDtype(kind.unit, zoneinfo.ZoneInfo(kind.tz))
    numpy = np.dtype(kind.to_pandas_dtype())
    return extension.nullable_dtype(numpy) if word == "nullable" else numpy
