"""Numpy arrays come back bit by bit, with their dtype, shape, memory order and class."""

import numpy as np
import pytest

from ckpt_spill.store import frames
from tests.strict import diff
from tests.through_bytes import flatten, needs_pickle, through_bytes

NESTED = np.dtype([("a", "i1"), ("b", ">f8", (2, 3)), ("c", [("x", "M8[s]"), ("y", "U2")])])
BASE = np.arange(120).reshape(10, 12)

NEUTRAL = {
    "three axes": np.arange(24).reshape(2, 3, 4),
    "axes in another order": np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
    "Fortran order": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "backwards": BASE[::-1, ::-2],
    "one axis backwards": np.arange(5)[::-1],
    "every third": np.arange(20)[::3],
    "a window": BASE[2:5, 3:7],
    "a window in Fortran order": np.asfortranarray(BASE)[2:5, 3:7],
    "no axes": np.array(3.5),
    "no items": np.empty((0, 3)),
    "no items in Fortran order": np.asfortranarray(np.empty((3, 0, 2))),
    "no objects": np.empty((0, 3), object),
    "broadcast": np.broadcast_to(np.arange(5), (4, 5)),
    "broadcast along the last axes": np.broadcast_to(np.asfortranarray(BASE)[:, :, None, None], (10, 12, 2, 5)),
    "broadcast from a scalar": np.broadcast_to(np.int64(7), (2, 5, 3)),
    "broadcast and writeable": np.lib.stride_tricks.as_strided(np.arange(3), (4, 3), (0, 8)),
    "NaN payloads": np.array([0x7FF8000000000ABC, 0xFFF8000000000001], "u8").view("f8"),
    "signed zeros": np.array([0.0, -0.0]),
    "nested fields": np.zeros(4, NESTED),
    "every second record": np.zeros(4, NESTED)[::2],
    "aligned fields": np.zeros(4, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    "fields with titles": np.zeros(2, np.dtype([(("title", "a"), "i1"), ("b", "f8")])),
    "fields at odd offsets": np.zeros(
        3, np.dtype({"names": ["b", "a"], "formats": ["i2", "f4"], "offsets": [6, 0], "itemsize": 16})
    ),
    "some of the fields": np.zeros(4, np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2")]))[["a", "c"]],
    "no fields": np.zeros(3, np.dtype([])),
} | {
    f"dtype {text}": np.zeros(3, text)
    for text in (
        *("?", "i1", ">i4", "<u8", "f2", ">f8", "c8", ">c16", "g", "G", "S5", "U3", ">U3", "V7", "S0", "U0"),
        *("M8[s]", ">M8[ns]", "m8", "M8[25us]", "m8[D]"),
    )
}

PICKLED = {
    "objects": np.array(["a", None, {1}, np.nan], dtype=object),
    "an object without axes": np.array({1}, dtype=object),
    "objects in Fortran order": np.asfortranarray(np.array([["a", 1], [None, 2.5], [(), b""]], dtype=object)),
    "a field of objects": np.array([(1, {"a": 2})], dtype=[("i", "i4"), ("o", "O")]),
    "text of any length": np.array(["a", "bb" * 30, ""], dtype=np.dtypes.StringDType()),
    "text with a missing value": np.array(["a", None], dtype=np.dtypes.StringDType(na_object=None)),
    "metadata": np.zeros(2, np.dtype("i4", metadata={"unit": "mm"})),
    "metadata of objects": np.array(["a"], dtype=np.dtype("O", metadata={"vlen": str})),
    "metadata of a field": np.zeros(2, np.dtype([("a", np.dtype("i4", metadata={"q": 1}))])),
    "a recarray": np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "the records of a recarray": np.asarray(np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])),
    "a chararray": np.char.array(["a", "bb"]),
}

MASKED = {
    "a fill value that does not fit": np.ma.array(np.arange(6, dtype="u1"), mask=[0, 0, 0, 1, 0, 0]),
    "no mask": np.ma.array(np.arange(4, dtype="u1")),
    "a mask of False": np.ma.array([1, 2], mask=[False, False]),
    "a hard mask": np.ma.array([1, 2], mask=[1, 0], fill_value=7, hard_mask=True),
    "text": np.ma.array(["a", "b"], mask=[0, 1], fill_value="zz"),
    "fields": np.ma.array([(1, 2.0)], mask=[(1, 0)], dtype=[("a", "i4"), ("b", "f8")], fill_value=(5, 6.0)),
    "times": np.ma.array(np.array(["2020", "NaT"], "M8[D]"), mask=[1, 0]),
    "no axes": np.ma.array(5, mask=True),
    "no items": np.ma.empty((0,), "u1"),
    "Fortran order": np.ma.array(np.asfortranarray(np.ones((2, 3))), mask=False),
    "NaN as the fill value": np.ma.array([1.0, 2.0], mask=[0, 1], fill_value=np.nan),
    "objects": np.ma.array([{}, None], mask=[0, 1], dtype=object),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_plain_arrays_return_without_a_pickle(name):
    """An array whose bytes are its content is described in neutral words and returns."""
    assert diff(NEUTRAL[name], through_bytes(NEUTRAL[name])) == []
    assert not needs_pickle(NEUTRAL[name])


@pytest.mark.parametrize("name", PICKLED)
def test_other_arrays_return_by_pickle(name):
    """What the words have no place for returns as well."""
    assert diff(PICKLED[name], through_bytes(PICKLED[name])) == []
    assert needs_pickle(PICKLED[name])


@pytest.mark.parametrize("name", MASKED)
def test_masked_arrays_return(name):
    """Data, mask or its absence, fill value and hardness of the mask return, alone and inside a list."""
    assert diff(MASKED[name], through_bytes(MASKED[name])) == []
    assert diff([MASKED[name]], through_bytes([MASKED[name]])) == []


def test_matrices_return():
    """A matrix is a matrix again, whichever its memory order."""
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix([[1, 2], [3, 4]])
    for value in (matrix, np.asfortranarray(matrix), np.ma.array(matrix, mask=[[1, 0], [0, 0]])):
        assert diff(value, through_bytes(value)) == []


def test_memory_maps_return_without_their_file(tmp_path):
    """A memory map returns as one, with its contents, when the file is gone."""
    mapped = np.memmap(tmp_path / "map", "f8", "w+", shape=(3, 4))
    mapped[:] = np.arange(12).reshape(3, 4)
    assert diff(mapped, through_bytes(mapped)) == []
    mapped._mmap.close()


def test_a_broadcast_axis_is_stored_once():
    """Eight megabytes of one number take eight bytes."""
    _, contents = flatten(np.broadcast_to(np.int64(7), (200_000, 5)))
    assert sum(map(len, contents)) == 8


def test_a_broadcast_array_that_can_be_written_to_returns_so():
    """Where the original could be changed, with all items of an axis at once, the one that is read can, too."""
    assert through_bytes(NEUTRAL["broadcast and writeable"]).flags.writeable


def test_a_window_does_not_bring_its_base():
    """A small part of a large array is stored at its own size."""
    _, contents = flatten(np.arange(1_000_000)[10:30].reshape(4, 5))
    assert sum(map(len, contents)) == 160


@pytest.mark.parametrize("name", ["Fortran order", "axes in another order", "one axis backwards", "every third"])
def test_evenly_spaced_items_are_not_copied(name):
    """Writing takes no second copy of an array in memory."""
    assert np.shares_memory(frames.encode(NEUTRAL[name]).buffers[0], NEUTRAL[name])


def test_read_only_arrays_come_back_writeable():
    """An array that could not be written to for a passing reason does not stay so."""
    array = np.arange(3)
    array.flags.writeable = False
    assert through_bytes(array).flags.writeable
