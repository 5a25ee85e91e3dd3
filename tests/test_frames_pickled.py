"""What is pickled: out of band, only when asked for, and never what could not be loaded again."""

import ctypes
import enum
import fractions
import os
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from ckpt_spill.errors import ReadError, UnserializableError
from ckpt_spill.store import frames
from tests.cases.hostile import LoadsNever, PicklesOnce, Unpicklable
from tests.strict import diff
from tests.through_bytes import flatten, refill, through_bytes

Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1


class Thing:
    def __init__(self, name, parts=()):
        self.name, self.parts = name, parts


class WritesWhenLoaded:
    """Changes its array in place when it is loaded."""

    def __init__(self, array):
        self.array = array

    def __setstate__(self, state):
        self.array = state["array"]
        self.array += 1


class Marker:
    """Leaves a file behind when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def looped():
    loop = ["loop"]
    loop.append(loop)
    return loop


OBJECTS = {
    "none": None,
    "a numpy number": np.float32(1.5),
    "a time with a zone": pd.Timestamp("2030", tz="Asia/Tokyo"),
    "a list": [1, "a", {"b": (1, 2)}, {1, 2}, frozenset("x"), 1 << 80, Ellipsis, slice(1, 2), range(3)],
    "an empty list": [],
    "a loop": looped(),
    "instances": [Point(1, 2.0), Thing("a", [Thing("b")]), Colour.RED, ValueError("bad", 3), fractions.Fraction(1, 3)],
    "a function": lambda v: v + 1,
    "frames in a list": [pd.DataFrame({"a": ["x", None], "b": [1, 2]}), pd.Series(["a"]), pd.array(["q"], dtype="str")],
    "times": [
        np.arange(5).astype("m8[s]").reshape(1, 5),
        np.asfortranarray(np.arange(6).astype("M8[s]").reshape(2, 3)),
        np.arange(6).astype("M8[us]")[::2],
        np.array(3, ">M8[s]"),
        np.zeros((4, 6), ">M8[s]")[::2, ::3],
    ],
    "sparse matrices": [scipy.sparse.csr_matrix(np.eye(3)), scipy.sparse.coo_array(np.eye(3))],
    "big strings": [b"x" * (3 << 20), "y" * (2 << 20), "small", bytearray(5 << 20)],
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_return(name):
    """Any object that can be pickled returns."""
    assert diff(OBJECTS[name], through_bytes(OBJECTS[name])) == []


@pytest.mark.parametrize(
    "big",
    [
        np.zeros(1 << 17),
        np.asfortranarray(np.zeros((4, 1 << 15))),
        np.zeros(1 << 17, "M8[s]"),
        pd.DataFrame({"t": np.zeros(1 << 17, "M8[s]")}),
        np.ma.array(np.zeros(1 << 17), mask=False),
        b"x" * (1 << 20),
    ],
)
def test_big_pieces_are_not_copied(big):
    """A pickle of a megabyte has a stream of a few hundred bytes beside the value's own memory."""
    encoded = frames.encode([big])
    assert sum(b.nbytes for b in encoded.buffers if b.nbytes < 1 << 17) < 2000
    read = through_bytes([big])
    assert diff([big], read) == []


def test_pickles_load_without_this_package():
    """A pickle names nothing of this package, so what reads it may be any program."""
    values = [*OBJECTS["times"], np.ma.array([1], mask=[1]), pd.Series(["a"]), pd.array([1], dtype="int8[pyarrow]")]
    _, contents = flatten([values])
    assert b"ckpt_spill" not in b"".join(contents)


@pytest.mark.parametrize("bad", [Unpicklable, PicklesOnce, LoadsNever, threading.Lock])
def test_what_could_not_be_read_is_refused(bad):
    """An object that cannot be pickled, or not loaded from its pickle, is refused by name while it still exists."""
    PicklesOnce.pickled = 0
    name = type(bad()).__qualname__
    with pytest.raises(UnserializableError, match=rf"\b{name}\b"):
        frames.encode([3, {"k": bad()}])


@pytest.mark.parametrize("bad", [Unpicklable, LoadsNever])
def test_the_column_is_named(bad):
    """Of a frame, the error names the column as well."""
    frame = pd.DataFrame({"good": [1], ("bad", 2): pd.Series([bad()], dtype=object)})
    with pytest.raises(UnserializableError, match=r"^column \('bad', 2\): .*" + bad.__name__):
        frames.encode(frame)
    with pytest.raises(UnserializableError, match="^the index: .*" + bad.__name__):
        frames.encode(pd.DataFrame({"a": [1]}, index=pd.Index([bad()], dtype=object)))


def test_too_deep_a_nesting_is_refused():
    """Running out of stack is an error like any other."""
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UnserializableError):
        frames.encode(deep)


def test_interrupts_and_lack_of_memory_pass_through():
    """What is not about the value is not blamed on it."""

    class Raises:
        def __init__(self, error):
            self.error = error

        def __reduce__(self):
            raise self.error

    for error in (MemoryError, KeyboardInterrupt):
        with pytest.raises(error):
            frames.encode([Raises(error)])


def test_the_check_does_not_touch_the_value():
    """Loading a pickle to see whether it can be loaded leaves the original as it was."""
    thing = WritesWhenLoaded(np.zeros(100_000))
    text, contents = flatten([thing])
    assert thing.array.max() == 0
    assert refill(text, contents)[0].array.max() == 1


@pytest.mark.parametrize(
    "view",
    [
        memoryview(b"12345678"),
        memoryview(bytearray(b"12345678")),
        memoryview(b"12345678").cast("i"),
        memoryview(b"12345678").cast("h", [2, 2]),
        memoryview(b"1234").cast("f", []),
        memoryview(b"12345678")[::-2],
        memoryview(b""),
        memoryview(b"").cast("d"),
        memoryview(np.arange(6.0).reshape(2, 3)),
    ],
)
def test_memoryview(view):
    """Comes back as one, alone and inside of something else, and can be written to if it could be."""
    for back in (through_bytes(view), through_bytes({"in": [view]})["in"][0]):
        assert type(back) is memoryview
        assert (back.format, back.shape, back.readonly) == (view.format, view.shape, view.readonly)
        assert back.tolist() == view.tolist()


@pytest.mark.parametrize("view", [memoryview((ctypes.c_int * 3)()), memoryview(np.empty((0, 2)))])
def test_a_memoryview_that_cannot_be_made_again_is_refused(view):
    with pytest.raises(UnserializableError, match="memoryview"):
        frames.encode(view)


def test_nothing_is_unpickled_before_the_value_is_asked_for(tmp_path):
    """Preparing to read runs nothing, whatever a description contains."""
    values = [
        Marker(tmp_path / "ran"),
        pd.DataFrame({"a": [1]}, index=pd.Index([1], name=Marker(tmp_path / "ran"))),
        pd.DataFrame([[1]], columns=pd.Index([Marker(tmp_path / "ran")], dtype=object)),
    ]
    frame = pd.DataFrame({"a": [1]})
    frame.attrs = {"m": Marker(tmp_path / "ran")}
    for value in [*values, frame, np.ma.array([Marker(tmp_path / "ran")], dtype=object)]:
        description, buffers, _ = frames.encode(value)
        (tmp_path / "ran").unlink(missing_ok=True)
        decoding = frames.decoding(description, [b.nbytes for b in buffers])
        assert not (tmp_path / "ran").exists()
        assert frames.needs_pickle(description)
        for number, memory in decoding.destinations.items():
            memory[:] = np.frombuffer(buffers[number].tobytes(), np.uint8)
        decoding.value()
        assert (tmp_path / "ran").exists()


def test_the_buffers_of_pickles_are_told_apart():
    """Of a frame with one pickled column, just that column's buffers are called pickled."""
    frame = pd.DataFrame({"n": np.arange(100_000), "o": pd.Series([[i] for i in range(100_000)], dtype=object)})
    description, buffers, _ = frames.encode(frame)
    decoding = frames.decoding(description, [b.nbytes for b in buffers])
    assert len(decoding.pickled) == 1
    assert set(decoding.destinations) > decoding.pickled
    assert frames.decoding(description, [b.nbytes for b in buffers], ["n"]).pickled == frozenset()


def test_a_pickle_that_needs_another_module_says_so(tmp_path):
    """Reading where a class cannot be imported is a clear error."""
    (tmp_path / "elsewhere.py").write_text("class Thing: pass\n")
    code = (
        "import sys, json, elsewhere; from tests.through_bytes import flatten; text, _ = flatten(elsewhere.Thing());"
        "sys.stdout.write(text.decode())"
    )
    root = str(Path(__file__).parent.parent)
    path = os.pathsep.join([root, str(tmp_path)])
    made = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=True
    )
    with pytest.raises(ReadError, match="No module named 'elsewhere'"):
        refill(made.stdout, [])


def test_classes_of_the_main_script_go_by_value():
    """A class that only a script defines is in the pickle, code and all."""
    code = (
        "import sys, numpy as np; from tests.through_bytes import flatten\n"
        "class Local:\n    def __init__(self): self.x = 3\n    def double(self): return 2 * self.x\n"
        "text, contents = flatten(Local()); sys.stdout.buffer.write(repr((text, contents)).encode())"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert refill(*eval(made.stdout)).double() == 6
