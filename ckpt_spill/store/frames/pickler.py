"""Pickling with the big pieces out of band, and proof that what was pickled can be read.

A checkpoint outlives what it was made of, so a pickle that cannot be loaded has to fail while the data is still there.
Builtin, numpy, pandas and Arrow objects are known to load; where the code of anybody else takes part, the pickle is
loaded once and what comes out is pickled once more.
"""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import functools
import operator
import pickle
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import numpy as np
import pandas as pd

from ckpt_spill.errors import UnserializableError
from ckpt_spill.store.frames import arrow
from ckpt_spill.store.frames.untyped import pa

if TYPE_CHECKING:
    from collections.abc import Callable

#: Top-level modules whose objects are trusted to load again.
_TRUSTED = frozenset(
    [
        "_codecs",
        "builtins",
        "collections",
        "copyreg",
        "cudf",
        "cupy",
        "datetime",
        "dateutil",
        "decimal",
        "fractions",
        "functools",
        "numpy",
        "operator",
        "pandas",
        "pyarrow",
        "pytz",
        "scipy",
        "uuid",
        "zoneinfo",
    ]
)
#: Classes whose objects hold no others and are pickled by the standard library or pandas.
_PLAIN = frozenset(
    [
        *(str, bytes, int, float, complex, bool, type(None), type(pd.NA), type(pd.NaT)),
        *(decimal.Decimal, fractions.Fraction, dt.date, dt.timedelta, uuid.UUID),
    ]
)
_PIECE = 1 << 20


class Pickle(NamedTuple):
    """A pickle: its stream, in pieces that belong together, and its out-of-band buffers."""

    stream: list[Any]
    buffers: list[pickle.PickleBuffer]
    proven: bool = True


def dumps(value: Any, where: str = "", *, out_of_band: bool = True, prove: bool = True) -> Pickle:
    """Pickle a value, and make sure that it can be read and pickled again, if that is to be proven.

    Raises
    ------
    UnserializableError
        Naming the type that stood in the way, after ``where``.
    """
    if _has_plain_cells(value):
        return Pickle([pickle.dumps(value, protocol=5)], [])
    pieces = _Pieces()
    buffers: list[pickle.PickleBuffer] = []
    first = _Pickler(pieces, buffers.append if out_of_band else None)
    try:
        first.dump(value)  # type: ignore[no-untyped-call]
    except MemoryError:
        raise
    except Exception as e:
        raise UnserializableError(f"{where}{_name(first.last)} cannot be pickled: {_reason(e)}") from e
    made = Pickle(pieces.close(), buffers, proven=prove or not first.foreign)
    if first.foreign and prove:
        _prove(made, first.foreign, where)
    return made


def _has_plain_cells(value: Any) -> bool:
    """Tell an array of which the standard pickler makes the same pickle, without asking about each of its cells."""
    return type(value) is np.ndarray and value.dtype == object and _PLAIN.issuperset(map(type, value.ravel("K")))


def _prove(made: Pickle, foreign: dict[str, None], where: str) -> None:
    """Load a pickle and pickle what it gives."""
    try:
        copy = _load(made)
    except MemoryError:
        raise
    except Exception as e:
        raise UnserializableError(
            f"{where}the pickle of {', '.join(foreign)} cannot be loaded again: {_reason(e)}"
        ) from e
    again = _Pickler(_Nowhere(), lambda _: None)
    try:
        again.dump(copy)  # type: ignore[no-untyped-call]
    except MemoryError:
        raise
    except Exception as e:
        raise UnserializableError(f"{where}{_name(again.last)} cannot be pickled a second time: {_reason(e)}") from e


def _load(made: Pickle) -> Any:
    """Load a pickle without giving the code that runs a way to change the original."""
    stream = b"".join(made.stream)
    try:
        return pickle.loads(stream, buffers=[b.raw().toreadonly() for b in made.buffers])
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  # perhaps it writes into its arrays: give it some of its own
        return pickle.loads(stream, buffers=[bytearray(b.raw()) for b in made.buffers])


class _Pickler(cloudpickle.Pickler):
    """Takes all big arrays out of band; what belongs to ``__main__`` or a function goes by value."""

    def __init__(self, file: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)  # type: ignore[no-untyped-call]
        #: The object that was looked at last: where pickling stopped, if it did.
        self.last: Any = None
        #: Names of the classes and functions, not trusted, that took part.
        self.foreign: dict[str, None] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Reduce what pickle by itself would copy; note whose code takes part."""
        self.last = obj
        kind: Any = type(obj)
        reduce, named = _treatment(kind)
        if not _is_trusted(obj if named else kind):
            self.foreign[_name(obj)] = None
        if reduce is not None:
            reduced = reduce(obj)
            if reduced is not NotImplemented:
                return reduced
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


@functools.lru_cache(maxsize=4096)
def _treatment(kind: type) -> tuple[Callable[[Any], Any] | None, bool]:
    """Return how objects of a class are reduced, if not in their own way, and whether each has a name of its own."""
    reduce = _REDUCERS.get(kind)
    if reduce is None and issubclass(kind, pa.Array):
        reduce = _reduce_arrow
    return reduce, any("__qualname__" in vars(c) for c in kind.__mro__)


def _is_trusted(named: Any) -> bool:
    return str(getattr(named, "__module__", None)).partition(".")[0] in _TRUSTED


# The reducers name only functions of numpy, pandas, pyarrow and the standard library: nothing of this package is
# needed to load a pickle it wrote.


def _reduce_ndarray(array: np.ndarray) -> Any:
    """Numpy pickles some arrays in band, without their byte order: times, which are no buffers, and scattered items."""
    if array.dtype.hasobject or array.dtype.kind == "T":
        return NotImplemented
    scattered = not (array.flags.c_contiguous or array.flags.f_contiguous)
    if scattered:
        array = array.copy(order="K")
    if array.dtype.kind in "mM":
        return operator.methodcaller("view", array.dtype), (array.view(np.int64),)
    return array.__reduce_ex__(5) if scattered else NotImplemented


def _reduce_subclass(array: np.ndarray) -> Any:
    """Numpy pickles its subclasses in band."""
    return operator.methodcaller("view", type(array)), (array.view(np.ndarray),)


def _reduce_masked(array: np.ma.MaskedArray) -> Any:
    """Numpy pickles masked arrays in band, and forgets a hard mask."""
    return np.ma.MaskedArray, masked_arguments(array)


def masked_arguments(array: Any) -> tuple[Any, ...]:
    """Return the arguments that make a masked array out of its data, mask, fill value and hard mask."""
    # _fill_value: the public property sets a default one, which need not fit the dtype; no array accepts that again.
    fill = array._fill_value  # noqa: SLF001
    if fill is not None and np.asarray(fill).dtype != array.dtype:
        fill = None
    return (array.data, array.mask, None, False, True, 0, fill, True, array.hardmask, False)


def _reduce_arrow(array: Any) -> Any:
    """Arrow pickles the whole buffers of which an array may be a small slice."""
    if array.get_total_buffer_size() > array.nbytes + 4096:
        return arrow.trimmed(array).__reduce__()
    return NotImplemented


def _reduce_arrow_backed(array: Any) -> Any:
    """Pandas joins the chunks first, a copy of everything."""
    make: Any = type(array)
    if isinstance(array.dtype, pd.StringDtype):
        make = functools.partial(make, dtype=array.dtype)
    return make, (array.__arrow_array__(),)


def _reduce_memoryview(view: memoryview) -> Any:
    """Cloudpickle makes bytes of it."""
    content = bytes(view) if view.readonly else bytearray(view)
    if view.ndim == 1 and view.format == "B":
        return memoryview, (content,)
    cast = (view.format, list(view.shape or ())) if view.nbytes else (view.format,)
    if memoryview(content).cast(*cast).shape != view.shape:
        raise TypeError(f"an empty memoryview of shape {view.shape} cannot be pickled")
    return operator.methodcaller("cast", *cast), (memoryview(content),)


_REDUCERS: dict[type, Callable[[Any], Any]] = {
    memoryview: _reduce_memoryview,
    np.ndarray: _reduce_ndarray,
    np.matrix: _reduce_subclass,
    np.memmap: _reduce_subclass,
    np.ma.MaskedArray: _reduce_masked,
    pd.arrays.ArrowExtensionArray: _reduce_arrow_backed,
    pd.arrays.ArrowStringArray: _reduce_arrow_backed,
}


def _name(obj: Any) -> str:
    """Name a class or function, or the class of an object."""
    kind: Any = type(obj)
    named = obj if _treatment(kind)[1] and hasattr(obj, "__module__") else kind
    return f"{named.__module__}.{named.__qualname__}"


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class _Pieces:
    """A file that keeps big writes, the payload of big strings, as they are."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []
        self._small = bytearray()

    def write(self, data: Any) -> None:
        if len(data) < _PIECE:
            self._small += data
        else:
            self._end_small()
            self._pieces.append(data)

    def close(self) -> list[Any]:
        self._end_small()
        return self._pieces

    def _end_small(self) -> None:
        if self._small:
            self._pieces.append(self._small)
            self._small = bytearray()


class _Nowhere:
    """A file that forgets."""

    def write(self, data: Any) -> None:
        pass
