"""Classes of a user's own, such as third-party packages define them: extension types, subclasses, plain objects."""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray, ExtensionDtype, register_extension_dtype, take
from pandas.api.indexers import check_array_indexer


@register_extension_dtype
class MetresDtype(ExtensionDtype):
    """Lengths with a scale: an extension type that has no form in Arrow."""

    type = float
    kind = "f"
    na_value = float("nan")
    _metadata = ("scale",)

    def __init__(self, scale=1.0):
        self.scale = float(scale)

    @property
    def name(self):
        return f"metres[{self.scale}]"

    @classmethod
    def construct_from_string(cls, string):
        if isinstance(string, str) and string.startswith("metres[") and string.endswith("]"):
            return cls(float(string[7:-1]))
        raise TypeError(string)

    @classmethod
    def construct_array_type(cls):
        return MetresArray


class MetresArray(ExtensionArray):
    """The array of ``MetresDtype``, with as little as pandas allows."""

    def __init__(self, values, scale=1.0):
        self.values = np.asarray(values, "f8")
        self.dtype_ = MetresDtype(scale)

    @property
    def dtype(self):
        return self.dtype_

    @property
    def nbytes(self):
        return self.values.nbytes

    @classmethod
    def _from_sequence(cls, scalars, *, dtype=None, copy=False):
        return cls(np.array(list(scalars), "f8"), getattr(dtype, "scale", 1.0))

    @classmethod
    def _concat_same_type(cls, arrays):
        return cls(np.concatenate([array.values for array in arrays]), arrays[0].dtype.scale)

    def __getitem__(self, item):
        found = self.values[check_array_indexer(self, item)]
        return type(self)(found, self.dtype.scale) if isinstance(found, np.ndarray) else float(found)

    def __setitem__(self, item, value):
        self.values[item] = value.values if isinstance(value, MetresArray) else value

    def __len__(self):
        return len(self.values)

    __hash__ = None

    def __eq__(self, other):
        return self.values == (other.values if isinstance(other, MetresArray) else other)

    def isna(self):
        return np.isnan(self.values)

    def take(self, indices, *, allow_fill=False, fill_value=None):
        fill_value = np.nan if fill_value is None else fill_value
        taken = take(self.values, np.asarray(indices), allow_fill=allow_fill, fill_value=fill_value)
        return type(self)(taken, self.dtype.scale)

    def copy(self):
        return type(self)(self.values.copy(), self.dtype.scale)


class TaggedFrame(pd.DataFrame):
    """A frame with something of its own beside the columns, as a geospatial frame has its coordinate system."""

    _metadata = ["crs"]

    @property
    def _constructor(self):
        return TaggedFrame

    @property
    def _constructor_sliced(self):
        return TaggedSeries


class TaggedSeries(pd.Series):
    """The column of a ``TaggedFrame``."""

    _metadata = ["_name", "crs"]

    @property
    def _constructor(self):
        return TaggedSeries

    @property
    def _constructor_expanddim(self):
        return TaggedFrame


class UnitArray(np.ndarray):
    """An array with an attribute, handed on by views but not by plain pickle."""

    def __array_finalize__(self, source):
        self.unit = getattr(source, "unit", None)

    def __reduce__(self):
        function, arguments, state = super().__reduce__()
        return function, arguments, (state, self.unit)

    def __setstate__(self, state):
        state, self.unit = state
        super().__setstate__(state)


class Colour(enum.Enum):
    """An enumeration: its members are compared by identity."""

    RED = "r"
    BLUE = "b"


class Level(enum.IntEnum):
    """An enumeration whose members are numbers as well."""

    LOW = 1


class Point(NamedTuple):
    """A tuple with a class of its own."""

    x: int
    y: float


class Thing:
    """An object with attributes, and no equality but identity."""

    def __init__(self, name, parts=()):
        self.name, self.parts = name, parts


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    """An object without a ``__dict__``."""

    a: int
    b: tuple[int, ...]


class Words(list):
    """A list by another name."""
