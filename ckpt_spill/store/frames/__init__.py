"""A value, as a neutral description of JSON and a list of flat buffers; and back.

Frames, series, indexes, arrays and Arrow tables are described in words that do not depend on the library they came
from; everything else is a pickle. The words are a file format: see docs/format-values.md.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from ckpt_spill.store.device import copies
from ckpt_spill.store.frames import values
from ckpt_spill.store.frames.buffers import Far, Sink, Source
from ckpt_spill.store.frames.frame import NoColumnsError, UnknownColumnError
from ckpt_spill.store.frames.pickled import needs_pickle

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterator, Sequence

    import numpy as np

    from ckpt_spill.store.frames.buffers import Description

__all__ = ["Decoding", "Encoded", "Far", "Library", "decoding", "encode", "encoding", "needs_pickle"]

Library = Literal["pandas", "cudf"]
"""What to make of frames; of arrays, the same words stand for numpy and CuPy."""


B = TypeVar("B")


class Encoded(NamedTuple, Generic[B]):
    """A value as JSON and bytes.

    Attributes
    ----------
    description : dict
        Made of dict, list, str, int, finite float, bool and None only.
    buffers : list of numpy.ndarray or Far
        One-dimensional, of any stride, of a dtype without objects. Views of the value's own memory where possible: the
        value must not be changed before they have been written. The item size is the width of one number, as a filter
        may want to know it. Of objects on a device the bulk data is still there.
    proven : bool
        Whether all pickles in it are known to load.
    """

    description: Description
    buffers: list[B]
    proven: bool


class Decoding:
    """A value on its way back: memory for its buffers, then the value made of them.

    Attributes
    ----------
    destinations : dict of int to numpy.ndarray
        By number, the buffers that are needed: one-dimensional, contiguous, writable, of bytes. Fill all of them.
    far : dict of int to Memory
        The same for those that are needed on a device, of those that were said to be readable there.
    pickled : frozenset of int
        Those of them that are parts of a pickle: `value` runs whatever they contain.
    """

    def __init__(self, source: Source, plan: Any) -> None:
        self.destinations = source.destinations
        self.far = source.far
        self.pickled = frozenset(source.pickled)
        self._plan = plan

    def value(self) -> Any:
        """Put the value together, once all destinations have been filled. It owns their memory from then on.

        Raises
        ------
        ValueError
            The description and the contents of the buffers do not go together.
        """
        with _one_error():
            return self._plan()


@contextlib.contextmanager
def encoding(value: Any, *, prove: bool = True) -> Iterator[Encoded[np.ndarray | Far]]:
    """Describe a value. Buffers that are on a device hold inside the context.

    Parameters
    ----------
    value
    prove : bool
        Whether to load pickles in which the code of others takes part, and to pickle once more what that gives: what
        cannot be loaded is found out while the value is still there. Takes the memory of the value again.

    Raises
    ------
    UnserializableError
        The value, or a part of it, cannot be pickled, or cannot be loaded again from its pickle. The message names the
        type, and the column if the value is a frame.
    """
    sink = Sink(prove=prove)
    with sink.access:
        description = values.describe(value, sink)
        yield Encoded(description, sink.buffers, sink.proven)


def encode(value: Any) -> Encoded[np.ndarray]:
    """Describe a value, with all buffers on the host; as `encoding` otherwise."""
    with encoding(value) as encoded:
        description, buffers, proven = encoded
        fetched = iter(copies.to_host([buffer.memory for buffer in buffers if isinstance(buffer, Far)]))
        return Encoded(description, [next(fetched) if isinstance(b, Far) else b for b in buffers], proven)


def decoding(
    description: Description,
    lengths: Sequence[int],
    columns: Sequence[Hashable] | None = None,
    library: Library | None = None,
    straight: Container[int] = (),
) -> Decoding:
    """Prepare to read a value: nothing is unpickled here.

    Parameters
    ----------
    description : dict
        As `encode` made it.
    lengths : sequence of int
        The length of every buffer in bytes.
    columns : sequence of hashable, optional
        Labels of the columns to be read of a frame. They come in the frame's own order; of a label that occurs several
        times, all columns come.
    library : {"pandas", "cudf"}, optional
        Make objects of pandas and numpy, or of cuDF and CuPy; by default, of the library that they were saved from.
    straight : container of int, optional
        Numbers of the buffers that can be read into memory of a device.

    Raises
    ------
    ValueError
        The description is not well-formed, or calls for other lengths.
    KeyError
        There is no such column.
    TypeError
        Columns were asked for of a value that has none. Of a value that is a pickle, `Decoding.value` raises this.
    ReadError
        The library cannot be imported here.
    """
    source = Source(lengths, straight)
    if columns is not None and not ("pickle" in description or description.get("kind") == "frame"):
        raise NoColumnsError(f"columns of a value of kind {description.get('kind')!r} were asked for: it has none")
    with _one_error():
        plan = values.plan(description, source, columns, library)
    return Decoding(source, plan)


@contextlib.contextmanager
def _one_error() -> Iterator[None]:
    """Turn whatever a malformed description leads to into a ValueError, but not what the caller asked for amiss."""
    try:
        yield
    except (UnknownColumnError, NoColumnsError):
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError) as e:
        raise ValueError(f"not the description of a value: {type(e).__name__}: {e}") from e
