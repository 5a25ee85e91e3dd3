"""Descriptions: small, few buffers, columns one by one; and what does not fit together is refused."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ckpt_spill.store import frames
from tests.strict import diff
from tests.through_bytes import flatten, refill, through_bytes

FRAME = pd.DataFrame(
    {
        "i": np.arange(5),
        "s": ["a", None, "c", "d", "e"],
        "j": np.arange(5, 10),
        "t": pd.date_range("2030", periods=5, tz="UTC"),
        "o": pd.Series([[1], None, {}, "x", 2.5], dtype=object),
        "c": pd.Categorical(list("abcab")),
        "f": np.linspace(0, 1, 5),
    },
    index=pd.Index([10, 20, 30, 40, 50], name="k"),
)
FRAME.attrs["unit"] = "mm"


@pytest.mark.parametrize("columns", [[], ["j"], ["f", "i"], ["o", "s"], ["c", "t"], list(FRAME)])
def test_columns_come_alone(columns):
    """A few columns of a frame come in the frame's order, with index and attrs."""
    wanted = FRAME[[c for c in FRAME.columns if c in columns]]
    assert diff(wanted, through_bytes(FRAME, columns)) == []


@pytest.mark.parametrize(
    ("frame", "columns"),
    [
        (pd.DataFrame([[1, "a", 2.0, 3]], columns=["q", "q", "r", "s"]), ["q", "s"]),
        (pd.DataFrame(np.zeros((2, 3)), columns=pd.MultiIndex.from_tuples([(1, "a"), (1, "b"), (2, "a")])), [(1, "b")]),
        (pd.DataFrame(np.zeros((2, 3)), columns=pd.date_range("2030", periods=3)), [pd.Timestamp("2030-01-02")]),
        (pd.DataFrame(np.zeros((2, 3)), columns=[3, 1, 2]), [2, 3]),
        (pd.DataFrame(np.zeros((2, 3)), columns=[frozenset("a"), b"b", None]), [b"b"]),
        (pd.DataFrame(np.zeros((2, 300)), columns=[f"c{i}" for i in range(300)]), ["c7", "c200"]),
        (pd.DataFrame(np.arange(60000.0).reshape(20000, 3), columns=list("abc")), ["c", "a"]),
    ],
)
def test_columns_are_found_by_any_label(frame, columns):
    """Labels may repeat, have levels, be times, numbers or objects."""
    at = [i for i, label in enumerate(frame.columns) if label in columns]
    assert diff(frame.iloc[:, at], through_bytes(frame, columns)) == []


def test_only_the_buffers_of_the_columns_are_read():
    """One of forty big columns takes one buffer."""
    frame = pd.DataFrame({f"c{i}": np.arange(10_000) + i for i in range(40)})
    description, buffers, _ = frames.encode(frame)
    decoding = frames.decoding(description, [b.nbytes for b in buffers], ["c17"])
    assert len(decoding.destinations) == 1
    assert sum(map(len, decoding.destinations.values())) == 80_000


def test_columns_of_a_pickled_frame_are_selected_after_reading():
    """A subclass, which is one pickle, gives its columns as well."""

    class Tagged(pd.DataFrame):
        @property
        def _constructor(self):
            return Tagged

    read = through_bytes(Tagged({"a": [1], "b": [2]}), ["b"])
    assert list(read.columns) == ["b"]
    assert type(read).__name__ == "Tagged"


def test_an_unknown_column_is_named():
    """Asking for what is not there names it, before anything is read or after unpickling."""
    description, buffers, _ = frames.encode(FRAME)
    with pytest.raises(KeyError, match="'nope'"):
        frames.decoding(description, [b.nbytes for b in buffers], ["i", "nope"])


@pytest.mark.parametrize("value", [pd.Series([1]), np.zeros(3), pd.Index([1]), pa.table({"a": [1]}), [1]])
def test_columns_of_other_values_are_refused(value):
    """Only frames have columns."""
    with pytest.raises(TypeError, match="columns of a"):
        through_bytes(value, ["a"])


def test_descriptions_are_small():
    """One column and one row are described in under 250 bytes; five hundred columns share a buffer."""
    one = frames.encode(pd.DataFrame({"i": np.array([1], "i4")})).description
    assert len(json.dumps(one, separators=(",", ":"))) < 250
    _, contents = flatten(pd.DataFrame(np.zeros((1, 500)), columns=[f"column_{i:04d}" for i in range(500)]))
    assert list(map(len, contents)) == [4000]


def test_an_empty_frame_with_objects_needs_no_pickle():
    """The meta of a collection, with no rows, is described in neutral words whatever its dtypes."""
    assert not frames.needs_pickle(frames.encode(FRAME.iloc[:0]).description)


def test_big_columns_are_not_copied():
    """The buffers of a frame are its own memory, also if it lies row by row."""
    frame = pd.DataFrame(np.zeros((20_000, 3)))
    for buffer in frames.encode(frame).buffers:
        assert np.shares_memory(buffer, frame.to_numpy())


VALUES = {
    "frame": FRAME,
    "series": FRAME["s"],
    "levels": pd.MultiIndex.from_product([["a", "b"], [1, 2]]),
    "array": np.arange(12.0).reshape(3, 4).T,
    "fields": np.zeros(4, [("a", "i1"), ("b", "f8")]),
    "masked": np.ma.array([1, 2], mask=[0, 1], fill_value=5),
    "nested": pa.array([[{"a": 1}], None, [{"a": None}, {"a": 3}]]),
    "dictionary": pa.array(["u", "v", "u"]).dictionary_encode(),
    "table": pa.table({"a": ["x", None], "b": [1, 2]}),
}


@pytest.mark.parametrize("name", VALUES)
def test_other_lengths_are_refused(name):
    """A buffer of another length than its description calls for is a ValueError, never a read beyond its end."""
    text, contents = flatten(VALUES[name])
    for i, content in enumerate(contents):
        for other in (content[:-1], content + b"\0", b""):
            changed = [*contents[:i], other, *contents[i + 1 :]]
            if other == content:
                continue
            try:
                read = refill(text, changed)
            except ValueError:
                continue
            # Bytes behind the last string are not part of the value.
            assert other == content + b"\0"
            assert diff(VALUES[name], read) == []


@pytest.mark.parametrize("name", VALUES)
def test_mangled_descriptions_are_refused(name):
    """A description that lost a key, or has a value of another kind, is a ValueError or the same value."""
    text, contents = flatten(VALUES[name])
    count = 0
    for mangled in _mangled(json.loads(text)):
        count += 1
        try:
            refill(json.dumps(mangled), contents)
        except ValueError:
            continue
        except (KeyError, TypeError) as e:
            pytest.fail(f"{type(e).__name__}: {e} of {json.dumps(mangled)}")
    assert count > 3


def _mangled(description):
    """Yield descriptions with one key left out, or a number where something else was."""
    if isinstance(description, dict):
        for key, value in description.items():
            rest = {k: v for k, v in description.items() if k != key}
            yield rest
            yield rest | {key: -1}
            yield rest | {key: None}
            for inner in _mangled(value):
                yield rest | {key: inner}
    elif isinstance(description, list):
        for i, value in enumerate(description):
            for inner in _mangled(value):
                yield [*description[:i], inner, *description[i + 1 :]]


@pytest.mark.parametrize("wild", [[0, 2, 1 << 20], [0, 1 << 20, 4], [0, -5, 4], [-5, 2, 4]])
@pytest.mark.parametrize("array", [pa.array(["aa", "bb"]), pa.array([[1, 2], [3, 4]])])
def test_offsets_that_point_outside_are_refused(array, wild):
    """Arrow data whose offsets leave their buffer are not handed to Arrow's kernels."""
    text, contents = flatten(array)
    tame, wild = (np.array(offsets, np.int32).tobytes() for offsets in ([0, 2, 4], wild))
    assert tame in contents
    with pytest.raises(ValueError, match="ffset"):
        refill(text, [wild if content == tame else content for content in contents])


@pytest.mark.parametrize("code", [2, 100, -2])
@pytest.mark.parametrize(
    "value",
    [
        pd.Series(pd.Categorical.from_codes([0, 1, 0, 1, 1], ["a", "b"])),
        pd.MultiIndex([["a", "b"]], [np.array([0, 1, 0, 1, 1], "i1")]),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 1, 1], pa.int8()), pa.array(["a", "b"])),
    ],
)
def test_codes_that_point_outside_are_refused(value, code):
    """Neither are codes beyond the labels they stand for."""
    text, contents = flatten(value)
    tame, wild = (np.array(codes, "i1").tobytes() for codes in ([0, 1, 0, 1, 1], [0, 1, code, 1, 1]))
    assert tame in contents
    with pytest.raises(ValueError, match=r"codes|Index"):
        refill(text, [wild if content == tame else content for content in contents])


@pytest.mark.parametrize(
    "description",
    [
        {"kind": "stack", "dtype": "<i8", "at": [[0, 1 << 50]]},
        {"kind": "stack", "dtype": "<i8", "at": [[0, 1 << 20]] * 1000},
    ],
)
def test_no_memory_is_taken_for_columns_that_are_not_there(description):
    """Neither one long range of columns nor many of them are believed."""
    text, contents = flatten(FRAME.iloc[:0])
    with pytest.raises(ValueError, match="columns"):
        refill(json.dumps(json.loads(text) | {"parts": [description]}), contents)


def test_any_depth_is_survived():
    """A description nested without end is a ValueError; whether it needs a pickle can still be told."""
    deep = {"kind": "index", "data": {"kind": "array", "dtype": "<i8", "shape": [0], "buffer": 0}}
    for _ in range(100_000):
        deep = {"kind": "interval", "left": deep, "right": {"kind": "range", "stop": 0}, "closed": "left"}
    assert not frames.needs_pickle(deep)
    with pytest.raises(ValueError, match="not the description"):
        frames.decoding({"kind": "series", "data": deep, "index": {"kind": "range", "stop": 0}}, [0])


def test_a_buffer_that_does_not_exist_is_refused():
    """A description may not name a buffer beyond the last."""
    text, contents = flatten(np.arange(3))
    with pytest.raises(ValueError, match="buffer 0"):
        refill(text, [])
    assert contents
