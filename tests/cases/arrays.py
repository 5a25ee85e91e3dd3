"""Dask arrays: layout, subclasses, masks, types of every width, and chunks that are unknown, irregular or empty."""

from __future__ import annotations

import warnings

import dask.array as da
import numpy as np
import scipy.sparse

from tests.cases.building import array, array_of, collection
from tests.cases.classes import UnitArray


@array("A40")
def fortran_order():
    """Blocks by column stay so."""
    return [np.asfortranarray(np.arange(12.0).reshape(3, 4) + number) for number in range(2)]


@array("A40")
def fortran_order_in_three_dimensions():
    """The same with three axes, and bytes for elements."""
    return [np.asfortranarray(np.arange(60, dtype="u1").reshape(3, 4, 5)), np.zeros((1, 4, 5), "u1", order="F")]


@array("A40")
def layouts_that_are_neither():
    """Transposed axes, steps, reversed rows."""
    whole = np.arange(240).reshape(4, 5, 12)
    return [whole.transpose(1, 0, 2)[::2], whole[:, 1:, ::-1], whole[::-1, :4]]


@array("A41", meta=np.ma.empty((0,), dtype="u1"))
def masked_arrays():
    """Mask, fill value and hardness of the mask; no mask stays no mask."""
    masked = np.ma.array(np.arange(6, dtype="u1"), mask=[0, 0, 0, 1, 0, 0])
    unmasked = np.ma.array(np.arange(4, dtype="u1"))
    hard = np.ma.array(np.arange(4, dtype="u1"), mask=[1, 1, 0, 0], fill_value=7, hard_mask=True)
    return [masked, unmasked, hard]


@array("A41", meta=np.ma.empty((0, 0), dtype="f4"))
def masked_arrays_of_two_dimensions():
    """Floats with NaN under and beside the mask, by column."""
    data = np.asfortranarray(np.array([[1, np.nan], [np.nan, -0.0]], "f4"))
    return [np.ma.array(data, mask=[[1, 0], [1, 0]], fill_value=-1), np.ma.array(data[:1], mask=True)]


@array("A41", meta=np.ma.empty((0,), dtype=[("a", "i4"), ("b", "f8")]))
def masked_records():
    """A mask for each field of a record."""
    kind = np.dtype([("a", "i4"), ("b", "f8")])
    return [np.ma.array([(1, 2.0), (3, 4.0)], dtype=kind, mask=[(0, 1), (1, 0)]), np.ma.array([(5, 6.0)], dtype=kind)]


@array("A42")
def records():
    """Fields with titles, alignment, nesting, sub-arrays, gaps between them."""
    aligned = np.dtype({"names": ["a", "b"], "formats": ["u1", "f8"], "titles": ["first", "second"]}, align=True)
    return [np.array([(1, 2.0), (3, -0.0)], aligned), np.array([(5, np.nan)], aligned)]


@array("A42")
def records_within_records():
    """A record in a record, a matrix in a field, other byte order in another."""
    kind = np.dtype([("p", [("x", "<i2"), ("y", ">f4")]), ("m", "f8", (2, 2)), ("s", "S3"), ("t", "M8[ms]")])
    return [np.zeros(3, kind), np.ones(1, kind)]


@array("A42")
def records_with_gaps():
    """Fields that lie in another order than their names, with bytes between them that belong to none."""
    kind = np.dtype({"names": ["z", "a"], "formats": ["i4", "u1"], "offsets": [8, 0], "itemsize": 16})
    return [np.array([(1, 2), (3, 4)], kind), np.array([(5, 6)], kind)]


@array("A42")
def records_of_objects():
    """A field of a record is an object."""
    kind = np.dtype([("n", "i4"), ("o", "O")])
    return [np.array([(1, {"a": 1}), (2, None)], kind), np.array([(3, [3])], kind)]


@array("A43")
def matrices():
    """The class of a block returns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # numpy's matrix is going out of use: the case
        return [np.matrix([[1, 2], [3, 4]]), np.matrix([[5, 6]])]


@array("A43")
def record_arrays():
    """Numpy's record arrays are a subclass, with a scalar type of their own."""
    return [np.rec.array([(1, "a")], dtype=[("n", "i4"), ("s", "U1")]) for _ in range(2)]


@array("A43")
def a_subclass_with_an_attribute():
    """A user's subclass."""
    blocks = [np.arange(3.0).view(UnitArray), np.arange(2.0).view(UnitArray)]
    for block in blocks:
        block.unit = "m"
    return blocks


@collection("A44")
def unknown_chunks():
    """Chunk sizes that are not known stay so."""
    whole = da.from_array(np.arange(40).reshape(20, 2), chunks=(6, 1))
    return whole[whole[:, 0] % 3 == 0]


@collection("A45")
def irregular_chunks():
    """Chunks of different sizes along three axes, more than ten along one of them."""
    whole = np.arange(13 * 5 * 4, dtype="i2").reshape(13, 5, 4)
    return da.from_array(whole, chunks=((1,) * 12 + (1,), (2, 3), (3, 1)))


@collection("A45")
def one_chunk():
    """A single chunk of two dimensions."""
    return da.from_array(np.arange(6, dtype="c8").reshape(2, 3), chunks=-1)


@collection("A46")
def no_dimensions():
    """A sum has no dimensions, and its value is a scalar of numpy."""
    return da.arange(5, chunks=2).sum()


@collection("A46")
def an_array_without_dimensions():
    """The block itself is an array without dimensions."""
    return da.from_array(np.array(2.5, "f4"))


@collection("A46")
def chunks_of_length_zero():
    """A chunk of length zero keeps its type."""
    return da.from_array(np.arange(6, dtype="m8[m]"), chunks=((0, 4, 0, 2),))


@collection("A46")
def an_axis_of_length_zero():
    """No element at all, but a shape."""
    return da.zeros((4, 0, 3), chunks=(2, 0, 3), dtype="f2")


@collection("A47")
def writeable_blocks():
    """What could be assigned to can be assigned to."""
    return da.from_array(np.ones((4, 1000)), chunks=(2, 1000)).map_blocks(np.copy)


@array("A48")
def views():
    """Blocks that repeat one row, run backwards, or are a small part of something big."""
    base = np.arange(1_000_000)
    repeated = np.broadcast_to(np.arange(5), (4, 5))[:, ::-1]
    return [repeated, base[10:30].reshape(4, 5), np.broadcast_to(np.int64(7), (200_000, 5))]


@array("A49")
def objects():
    """Blocks of objects."""
    return [np.array(["", None, {1}, b""], dtype=object), np.array([1.5], dtype=object)]


@array("A49")
def objects_by_column():
    """Objects in two dimensions, with arrays among them."""
    block = np.empty((2, 2), dtype=object, order="F")
    block[:] = [[np.arange(3), "a"], [None, {"k": (1,)}]]
    return [block, block[:1]]


@array("A49")
def the_other_byte_order():
    """Big-endian numbers stay so."""
    return [np.arange(4, dtype=">i4"), np.arange(2, dtype=">i4")]


@array("A49")
def text_of_fixed_width():
    """Empty strings and characters beyond the basic plane."""
    return [np.array(["", "\u20ac\U0001f600"], dtype="U2"), np.array(["zz"], dtype="U2")]


@array("A49")
def text_of_fixed_width_in_the_other_byte_order():
    """Text has a byte order as well."""
    return [np.array(["ab", ""], dtype=">U2"), np.array(["zz"], dtype=">U2")]


@array("A49")
def timedeltas_without_a_unit():
    """A timedelta needs no unit."""
    return [np.array([1, 2], "m8"), np.array([3], "m8")]


@array("A49")
def days():
    """Days, years before 1678, and what is not a time."""
    return [np.array(["2030-01-01", "NaT"], "M8[D]"), np.array(["0001-01-01"], "M8[D]")]


@array("A49")
def multiples_of_a_unit():
    """A unit may be counted in multiples."""
    return [np.array([1, 2], "m8[25s]"), np.array([3], "m8[25s]")]


def typed(name, *blocks):
    """Register the case of an array with these blocks."""

    def make():
        return [np.array(block) for block in blocks]

    make.__name__ = name
    array("A51")(make)
    return make


NAN = np.array([0x7FF8000000000ABC, 0xFFF0000000000001], "u8").view("f8")
not_a_number_with_a_payload = typed("not_a_number_with_a_payload", NAN, -NAN)
halves = typed("halves", np.array([65504, -0.0, 6e-8], "f2"), np.array([np.nan], "f2"))
long_doubles = typed("long_doubles", np.array([1, 2], np.longdouble) / 3, np.array([0], np.longdouble))
complex_long_doubles = typed("complex_long_doubles", np.array([1j, -2], np.clongdouble), np.array([0], np.clongdouble))
booleans = typed("booleans", np.array([True, False, True]), np.array([False]))
bytes_of_fixed_width = typed("bytes_of_fixed_width", np.array([b"", b"a\x00b"], "S3"), np.array([b"xyz"], "S3"))
raw_bytes = typed("raw_bytes", np.array([b"\x00\xff\x00"], "V3"), np.array([b"abc", b"def"], "V3"))
text_of_any_width = typed(
    "text_of_any_width",
    np.array(["", "\U0001f600" * 40], np.dtypes.StringDType()),
    np.array(["x"], np.dtypes.StringDType()),
)


@array("A51")
def types_with_metadata():
    """A type may carry a dict of its user's."""
    kind = np.dtype("i4", metadata={"made": "up"})
    return [np.arange(3).astype(kind), np.arange(2).astype(kind)]


@array("A51")
def text_of_any_width_with_missing_values():
    """The object that stands for a missing string belongs to the type."""
    kind = np.dtypes.StringDType(na_object=None)
    return [np.array(["a", None, ""], kind), np.array([None], kind)]


@collection("A52")
def sparse_blocks():
    """Format, types of the indexes, and zeros that are stored; never made dense."""

    def block(numbers):
        matrix = scipy.sparse.csr_matrix(numbers * (numbers % 7 == 0))
        matrix.data[:1] = 0
        return matrix

    whole = da.from_array(np.arange(4000).reshape(40, 100), chunks=(10, 100))
    return whole.map_blocks(block, meta=scipy.sparse.csr_matrix((0, 0)))


@collection("A52")
def sparse_blocks_of_other_formats():
    """Columns first, and the array class instead of the matrix."""
    whole = da.from_array(np.eye(6), chunks=(3, 6))
    return whole.map_blocks(scipy.sparse.csc_array, meta=scipy.sparse.csc_array((0, 0)))


@collection("A45")
def the_result_of_some_work():
    """An array that was transposed, rechunked and sliced on the way."""
    whole = da.from_array(np.arange(48.0).reshape(6, 8), chunks=(2, 3))
    return (whole.T + 1).rechunk((3, 4))[::2, 1:]


@collection("A49")
def two_arrays_of_records_joined():
    """Blocks made by ``array_of``, then indexed by field."""
    kind = np.dtype([("a", "i4"), ("b", "U2")])
    return array_of(lambda: [np.array([(1, "x")], kind), np.array([(2, "yy"), (3, "")], kind)])["b"]
