"""What zict, ``distributed.spill.SpillBuffer`` and ``ManualEvictProto`` promise, as tests of any memory of a worker.

Whoever has such a mapping inherits from ``SpillContract`` and says how one is made, and which promises it is known to
break: these tests must fail.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from distributed.metrics import context_meter
from distributed.protocol import dask_deserialize, dask_serialize
from distributed.sizeof import sizeof
from distributed.utils_test import captured_logger

KiB = 1 << 10


class Made(NamedTuple):
    """A memory to be tested.

    Attributes
    ----------
    data : mapping
    directory : str
        Below which it keeps files.
    suffix : str
        Of those that hold values.
    """

    data: MutableMapping[Any, Any]
    directory: str
    suffix: str

    def files(self) -> list[str]:
        """Paths of the values on disk."""
        return [os.path.join(d, f) for d, _, fs in os.walk(self.directory) for f in fs if f.endswith(self.suffix)]


class Unpicklable:
    """A value of some size that nothing can serialise."""

    def __init__(self, size: int = KiB) -> None:
        self.size = size

    def __sizeof__(self) -> int:
        return self.size

    def __getstate__(self):
        raise pickle.PicklingError("not this one")


class OnlyDask:
    """A value that only dask's own serialisation knows."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __sizeof__(self) -> int:
        return len(self.content)

    def __reduce__(self):
        raise TypeError("cannot be pickled")


@dask_serialize.register(OnlyDask)
def _(value):
    return {}, [value.content]


@dask_deserialize.register(OnlyDask)
def _(header, frames):
    return OnlyDask(b"".join(bytes(f) for f in frames))


def noise(kib: int, seed: int = 0) -> np.ndarray:
    """An array that does not compress."""
    return np.random.default_rng(seed).integers(0, 256, kib * KiB, dtype="u1")


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and pickle.dumps(a) == pickle.dumps(b)


class SpillContract:
    """The tests. A subclass gives ``opened``, and ``breaks`` where a promise is known to be broken."""

    breaks: ClassVar[dict[str, str]] = {}
    """By name of a test, or of one case of it, the bug that makes it fail."""

    suffix: ClassVar[str] = ""
    """Of the names of the files that hold values."""

    def opened(self, directory: str, target: int, max_spill: int | bool) -> MutableMapping[Any, Any]:
        """Make one that keeps its files below a directory."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def known_bugs(self, request):
        if reason := self.breaks.get(request.node.name) or self.breaks.get(request.function.__name__):
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))

    @pytest.fixture(autouse=True)
    def everything_is_logged(self, monkeypatch):
        """Dask logs some troubles once in ten seconds only."""
        monkeypatch.setattr(logging.getLogger("distributed.spill"), "filters", [])

    @pytest.fixture
    def make(self, tmp_path) -> Iterator[Callable[..., Made]]:
        opened = []

        def make(target: int = 100 * KiB, max_spill: int | bool = False, directory: str | None = None) -> Made:
            directory = directory or str(tmp_path / "spilled")
            opened.append(Made(self.opened(directory, target, max_spill), directory, self.suffix))
            return opened[-1]

        yield make
        for made in opened:
            made.data.close()

    # ------------------------------------------------------------------------------------------------- a mapping
    def test_mapping(self, make):
        """Keys in memory and on disk are found, listed and counted once each; others are not."""
        data, *_ = made = make()
        expected = {f"x-{n}": noise(30, n) for n in range(10)}
        for key, value in expected.items():
            data[key] = value
        assert made.files()
        assert len(data) == 10
        assert sorted(data) == sorted(data.keys()) == sorted(expected)
        assert all(key in data for key in expected)
        assert "y" not in data
        for key, value in expected.items():
            assert same(data[key], value)
        for bad in (lambda: data["y"], lambda: data.__delitem__("y")):
            with pytest.raises(KeyError):
                bad()

    def test_deleting(self, make):
        """What is deleted is gone, from memory and from disk."""
        data, *_ = made = make()
        for n in range(10):
            data[n] = noise(30, n)
        for n in range(10):
            del data[n]
            assert n not in data
        assert len(data) == 0
        assert list(data) == made.files() == []

    def test_update(self, make):
        """Many may be set at once."""
        data, *_ = make()
        data.update({n: noise(30, n) for n in range(10)})
        assert all(same(data[n], noise(30, n)) for n in range(10))

    def test_overwriting(self, make):
        """The value that was set last counts, wherever the one before was, and leaves no file."""
        data, *_ = made = make()
        for n in range(10):
            data["x"] = noise(30, n)
            data["y"] = noise(90, n)  # x leaves memory
            data["z"] = noise(200, n)  # which never was in memory
            assert same(data["x"], noise(30, n))
            assert same(data["z"], noise(200, n))
            assert same(data["y"], noise(90, n))
        assert len(data) == 3
        assert len(made.files()) <= 3
        for key in "xyz":
            del data[key]
        assert made.files() == []

    def test_looking_reads_nothing(self, make):
        """To ask for a key, and to list keys, does not read values from disk."""
        data, *_ = made = make()
        for n in range(10):
            data[n] = noise(30, n)
        before = made.files()
        for path in before:
            os.truncate(path, 0)
        assert all(n in data for n in range(10))
        assert 99 not in data
        assert sorted(data) == list(range(10))
        assert made.files() == before

    @pytest.mark.parametrize(
        "key",
        ["", "a/b", "../up", "/etc/x", "\0", "ü" * 300, b"bytes", 1, 1.5, ("x", 0), ("x", ("y", 1, b"z"))],
        ids=["empty", "slash", "up", "root", "zero", "long", "bytes", "int", "float", "tuple", "deep"],
    )
    def test_any_key(self, make, key):
        """A key is no path."""
        data, directory, _ = made = make()
        data[key] = noise(200)
        assert made.files()
        assert same(data[key], noise(200))
        assert [key] == list(data)
        assert os.listdir(os.path.dirname(directory)) == [os.path.basename(directory)]
        del data[key]
        assert made.files() == []

    def test_keys_that_look_alike(self, make):
        """Keys that differ are different, also where their texts are the same."""
        data, *_ = make()
        keys = [1, "1", ("x", 1), "('x', 1)", b"x", "b'x'"]
        for n, key in enumerate(keys):
            data[key] = noise(200, n)
        for n, key in enumerate(keys):
            assert same(data[key], noise(200, n))

    def test_many_keys(self, make):
        """Hundreds of keys go to disk and come back."""
        data, *_ = made = make(target=10 * KiB)
        for n in range(400):
            data["x", n] = noise(1, n)
        assert len(made.files()) > 350
        assert len(data) == 400
        assert all(same(data["x", n], noise(1, n)) for n in range(400))

    @pytest.mark.parametrize(
        "value",
        [None, 1, "text" * 50_000, b"b" * 200_000, list(range(50_000)), {"a": np.arange(50_000)}, lambda: 1, np.sum],
        ids=lambda v: type(v).__name__,
    )
    def test_any_value(self, make, value):
        """What can be pickled comes back equal."""
        data, *_ = make(target=1)
        data["x"] = value
        back = data["x"]
        assert type(back) is type(value)
        if isinstance(value, dict):
            np.testing.assert_array_equal(back["a"], value["a"])
        elif callable(value):
            assert back.__name__ == value.__name__
        else:
            assert back == value

    @pytest.mark.parametrize(
        "inside", [lambda v: v, lambda v: [v, 1, "x"], lambda v: {"a": v}], ids=["", "list", "dict"]
    )
    def test_dask_serialisation(self, make, inside):
        """A value that only dask can serialise is spilled, and one that has such in it."""
        data, *_ = made = make(target=1)
        data["x"] = inside(OnlyDask(b"content" * 1000))
        assert len(made.files()) == 1
        back = data["x"]
        found = back if isinstance(back, OnlyDask) else back[0] if isinstance(back, list) else back["a"]
        assert found.content == b"content" * 1000
        assert type(back) is type(inside(1)) or isinstance(back, OnlyDask)

    def test_writable(self, make):
        """An array that could be written to can be when it comes back."""
        data, *_ = make(target=1)
        data["x"] = np.zeros(10_000)
        data["x"][3] = 1
        data["y"] = np.zeros(10)

    # ------------------------------------------------------------------------------------------------- eviction
    def test_target(self, make):
        """No more than the target stays in memory, and what was used last stays."""
        data, *_ = made = make(target=100 * KiB)
        for n in range(10):
            data[n] = noise(30, n)
            assert n < 4 or data[0] is not None
            assert len(made.files()) == max(n + 1 - 3, 0)
        assert len(data.fast) == 3

    def test_evict(self, make):
        """By hand, what was not used for longest goes first; its size in memory is told."""
        data, *_ = made = make(target=10_000 * KiB)
        for n in range(3):
            data[n] = noise(n + 1, n)
        assert data.fast
        data[0]
        assert [data.evict() for _ in range(3)] == [sizeof(noise(k)) for k in (2, 3, 1)]
        assert not data.fast
        assert len(made.files()) == 3
        assert all(same(data[n], noise(n + 1, n)) for n in range(3))

    def test_evict_nothing(self, make):
        """To evict from what is empty raises nothing."""
        assert make().data.evict() == -1

    def test_evict_what_cannot_be(self, make):
        """What cannot be serialised stays in memory; that is logged."""
        data, *_ = made = make()
        data["x"] = value = Unpicklable()
        with captured_logger("distributed.spill") as log:
            assert data.evict() == -1
        assert "x" in log.getvalue()
        assert data["x"] is value
        assert data.fast
        assert made.files() == []
        del data["x"]
        assert len(data) == 0

    def test_setting_evicts_what_cannot_be(self, make):
        """A value that is set is kept, whatever is wrong with others that should make room for it."""
        data, *_ = make()
        data["bad"] = bad = Unpicklable()
        with captured_logger("distributed.spill") as log:
            data["x"] = noise(99, 1)
            data["y"] = noise(99, 2)
        assert "bad" in log.getvalue()
        assert data["bad"] is bad
        assert same(data["x"], noise(99, 1))
        assert same(data["y"], noise(99, 2))

    def test_heavy_and_unserialisable(self, make):
        """What is larger than all of the target and cannot be serialised is refused, and forgotten; others are not."""
        data, *_ = made = make()
        data["x"] = noise(10)
        with pytest.raises(TypeError, match=r"(?s)pickle|serialize|not this one"):
            data["bad"] = Unpicklable(size=1000 * KiB)
        assert "bad" not in data
        assert list(data) == ["x"]
        data["bad"] = noise(10)
        assert same(data["bad"], noise(10))
        assert same(data["x"], noise(10))
        assert len(made.files()) <= 1

    def test_heavy(self, make):
        """What is larger than all of the target goes to disk at once, and leaves others in memory."""
        data, *_ = made = make()
        data["x"] = noise(10)
        data["y"] = noise(300)
        assert len(made.files()) == 1
        assert len(data.fast) == 1
        assert same(data["y"], noise(300))
        assert len(data.fast) == 1

    # ------------------------------------------------------------------------------------------------- disks
    @pytest.fixture
    def small_disk(self, tmp_path):
        """A file system of 1 MiB."""
        path = tmp_path / "small"
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", path]
        mounted = subprocess.run(command, capture_output=True, check=False)
        if mounted.returncode:
            pytest.skip(f"cannot mount here: {mounted.stderr.decode().strip()}")
        yield str(path)
        subprocess.run(["umount", "--lazy", path], check=True)

    def test_full_disk(self, make, small_disk):
        """On a disk that is full values stay in memory, which is logged; nothing is lost, and no half file left."""
        data, *_ = made = make(directory=os.path.join(small_disk, "spilled"))
        with captured_logger("distributed.spill") as log:
            for n in range(20):
                data[n] = noise(90, n)
            assert data.evict() == -1
        assert "No space left" in log.getvalue()
        assert len(data) == 20
        assert len(data.fast) + len(made.files()) == 20
        assert all(same(data[n], noise(90, n)) for n in reversed(range(20)))
        for n in range(20):
            del data[n]
        assert made.files() == []
        data["x"] = noise(300)
        assert len(made.files()) == 1

    def test_full_disk_heavy(self, make, small_disk):
        """So does one that is larger than all of the target."""
        data, *_ = make(directory=os.path.join(small_disk, "spilled"))
        data["x"] = noise(2000)
        assert same(data["x"], noise(2000))
        assert len(data) == 1

    def test_max_spill(self, make):
        """No more than so many bytes are written; what would be more stays in memory, which is logged."""
        data, *_ = made = make(max_spill=200 * KiB)
        with captured_logger("distributed.spill") as log:
            for n in range(10):
                data[n] = noise(90, n)
            assert data.evict() == -1
        assert "reached capacity" in log.getvalue()
        assert len(made.files()) == 2
        assert sum(map(os.path.getsize, made.files())) <= 200 * KiB
        assert all(same(data[n], noise(90, n)) for n in range(10))

    # ------------------------------------------------------------------------------------------------- figures
    def test_spilled_total(self, make):
        """The bytes in memory and on disk of what is on disk are known."""
        data, *_ = made = make()
        assert tuple(data.spilled_total) == (0, 0)
        for n in range(10):
            data[n] = np.full(30 * KiB, n, "u1")
        memory, disk = data.spilled_total
        assert memory == 7 * sizeof(np.zeros(30 * KiB, "u1"))
        assert disk == pytest.approx(sum(map(os.path.getsize, made.files())), abs=100)
        for n in range(10):
            del data[n]
        assert tuple(data.spilled_total) == (0, 0)

    def test_metrics(self, make):
        """Reads and writes are counted, also for those who listen meanwhile."""
        data, *_ = made = make(target=10_000 * KiB)
        heard: dict[Any, float] = {}

        def hear(label, value, unit):
            heard[label, unit] = heard.get((label, unit), 0) + value

        with context_meter.add_callback(hear):
            for n in range(5):
                data[n] = noise(3000, n)
            written = sum(map(os.path.getsize, made.files()))
            for n in range(4, -1, -1):
                data[n]
        found = data.cumulative_metrics
        assert found["disk-write", "count"] == 4  # two to make room; two more as those come back
        assert found["disk-read", "count"] == 2
        assert found["disk-read", "bytes"] == pytest.approx(written, rel=0.02)
        assert found["disk-write", "bytes"] == pytest.approx(2 * written, rel=0.02)
        assert found["memory-read", "count"] == 3
        assert found["memory-read", "bytes"] == 3 * sizeof(noise(3000))
        assert found["disk-read", "seconds"] > 0
        assert found["disk-write", "seconds"] > 0
        for key in found:
            assert heard[key] == pytest.approx(found[key])

    def test_still_in_use(self, make):
        """A value that somebody still holds when it is wanted again is not read a second time."""
        data, *_ = make(target=1)
        value = noise(10)
        data["x"] = value
        assert data["x"] is value
        gone = weakref.ref(value)
        del value
        assert gone() is None
        first = data["x"]
        assert data["x"] is first

    # ------------------------------------------------------------------------------------------------- the end
    def test_closing(self, make):
        """No file is left after the end; a second end does nothing."""
        data, *_ = made = make()
        for n in range(10):
            data[n] = noise(30, n)
        data.close()
        assert made.files() == []
        data.close()
