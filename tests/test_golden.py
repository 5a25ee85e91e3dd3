"""Files of every version of the format, written once and readable for ever; and a reader made from the specification.

``python -m tests.test_golden`` writes the files of the current version that are not there yet; those there it leaves
as they are. To give a version that has not been released another format, remove its files first. Never do that to one
that has.
"""

import json
import os
import struct
import sys
from pathlib import Path

import cramjam
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import zstandard
from blake3 import blake3
from crc32c import crc32c

from ckpt_spill.store import frames, partition
from ckpt_spill.store.footer import VERSION
from ckpt_spill.store.frames.columns import Axis
from tests import host_columns as host
from tests.strict import diff

GOLDEN = Path(__file__).parent / "golden"
INDEX = GOLDEN / "index.json"


def mixed():
    """A frame with a column of each kind of buffer."""
    n = 300
    masked = pd.array([None if k % 7 == 0 else k for k in range(n)], dtype="Int32")
    return pd.DataFrame(
        {
            "id": np.arange(n) * 1000,
            "x": np.where(np.arange(n) % 5 == 0, np.nan, np.arange(n) / 8),
            "flag": np.arange(n) % 3 == 0,
            "name": pd.array([None if k % 11 == 0 else f"name {k % 13}" for k in range(n)], dtype="str"),
            "kind": pd.Categorical.from_codes(np.arange(n) % 4 - 1, ["low", "middle", "high"], ordered=True),
            "masked": masked,
            "when": pd.date_range("2024-02-29", periods=n, freq="h", tz="Europe/Berlin", unit="us"),
            "any": [(k, str(k)) if k % 2 else None for k in range(n)],
        },
        index=pd.Index([f"row {k}" for k in range(n)], name="row", dtype="str"),
    )


def columns_of_gpu():
    """The columns of a frame of cuDF's as Arrow data, and the words for dtypes that the types do not tell."""
    n = range(60)
    numbers = {"a": pa.int32(), "b": pa.list_(pa.string())}
    return {
        "id": (pa.array([None if k % 7 == 0 else k * 1000 for k in n]), {}),
        "x": (pa.array([float("nan") if k % 5 == 0 else k / 8 for k in n], pa.float32()), {}),
        "flag": (pa.array([None if k % 4 == 0 else k % 3 == 0 for k in n]), {}),
        "name": (pa.array([None if k % 11 == 0 else f"name {k % 13}" for k in n]), {"string": ["pyarrow", "nan"]}),
        "when": (pa.array([None if k % 6 == 0 else k * 10**9 for k in n], pa.timestamp("us")), {"dtype": "numpy"}),
        "price": (pa.array([None if k % 9 == 0 else k for k in n], pa.decimal64(12, 2)), {}),
        "list": (pa.array([None if k % 8 == 0 else list(range(k % 3)) for k in n], pa.list_(pa.int16())), {}),
        "struct": (
            pa.array([None if k % 8 == 1 else {"a": k, "b": ["x"] * (k % 2)} for k in n], pa.struct(numbers)),
            {},
        ),
        "span": (pa.array(pd.arrays.IntervalArray.from_breaks(np.arange(61), closed="left")), {}),
    }


def mixed_of_gpu():
    """A frame of cuDF's with a column of each kind, and with a MultiIndex."""
    made = {name: host.column(array, words) for name, (array, words) in columns_of_gpu().items()}
    codes = pa.array([None if k % 4 == 0 else k % 4 - 1 for k in range(60)], pa.uint8())
    labels = host.column(pa.array(["low", "middle", "high"]), {"string": ["pyarrow", "nan"]})
    made["kind"] = host.column(codes, {}, labels, ordered=True)
    levels = [host.column(pa.array(np.arange(60) // 10)), host.column(pa.array(np.arange(60) % 10, pa.int8()))]
    return host.OfCudf(host.frame(list(made.values()), Axis(levels, ["n", None], levels=True), pd.Index(list(made))))


def mixed_from_gpu():
    """What that is in pandas."""
    columns = {name: pd.arrays.ArrowExtensionArray(array) for name, (array, _) in columns_of_gpu().items()}
    columns["name"] = pd.array(columns["name"].tolist(), "str")
    columns["when"] = columns_of_gpu()["when"][0].to_numpy(zero_copy_only=False)
    codes = np.array([k % 4 - 1 for k in range(60)], "i1")
    columns["kind"] = pd.Categorical.from_codes(codes, pd.Index(["low", "middle", "high"], dtype="str"), ordered=True)
    levels = [pd.array(np.arange(60) // 10, "int64[pyarrow]"), pd.array(np.arange(60) % 10, "int8[pyarrow]")]
    return pd.DataFrame(columns, index=pd.MultiIndex.from_arrays(levels, names=["n", None]))


VALUES = {
    "frame-none": (mixed, "none"),
    "frame-zstd": (mixed, "zstd"),
    "frame-lz4": (mixed, "lz4"),
    "blocks-zstd": (lambda: np.arange(700_000, dtype="<u4") // 50, "zstd"),
    "blocks-lz4": (lambda: np.arange(1_300_000, dtype="<u2") // 500, "lz4"),
    "array-fortran": (lambda: np.asfortranarray(np.arange(60.0).reshape(3, 4, 5)), "none"),
    "empty": (lambda: pd.DataFrame({"a": np.empty(0)}), "zstd"),
    "python": (lambda: [{"a": 1}, ("b", 2.5), None, b"bytes" * 500], "zstd"),
    "cudf": (mixed_of_gpu, "zstd"),
    "pages": (lambda: [np.zeros(131_100), np.ones(5, "u1"), np.arange(131_100) // 131_099], "none"),
}
AS_PANDAS = {"cudf": mixed_from_gpu}
"""What files are read as where the library that they were saved from may not be."""


@pytest.fixture(autouse=True)
def standing_in():
    """Let what stands for objects of cuDF's be described as such."""
    with host.standing_in():
        yield


def identity(name):
    return partition.Identity("golden", 1, list(VALUES).index(name))


def index():
    return json.loads(INDEX.read_text())


def read_by_the_specification(content):
    """Give the version, footer and raw buffers of a file, knowing docs/format.md and nothing else."""
    magic, version, reserved = struct.unpack("<8sII", content[:16])
    assert (magic, reserved) == (b"\x89CKP\r\n\x1a\n", 0)
    length, crc, reserved, end = struct.unpack("<QII8s", content[-24:])
    assert (end, reserved) == (magic[::-1], 0)
    packed = content[-24 - length : -24]
    assert crc32c(packed) == crc
    footer = json.loads(packed)
    assert footer["version"] == version
    at, buffers = 16, []
    for buffer in footer["buffers"]:
        start, at = at, buffer.get("at", at)
        assert at == start or at % 4096 == 0
        assert 0 <= at - start < 4096
        assert not any(content[start:at])
        raw, digests = b"", b""
        for size, crc in zip(buffer["stored"], buffer["crc32c"], strict=True):
            stored = content[at : at + size]
            assert crc32c(stored) == crc
            digests += blake3(stored).digest()
            nbytes = min(footer["block"], buffer["length"] - len(raw))
            raw += block_by_the_specification(stored, nbytes, buffer.get("codec", "none"), buffer.get("shuffle", 1))
            at += size
        assert len(raw) == buffer["length"]
        assert blake3(digests).hexdigest() == buffer["blake3"]
        buffers.append(raw)
    assert at == len(content) - 24 - length
    return version, footer, buffers


def block_by_the_specification(stored, nbytes, codec, width):
    if len(stored) == nbytes:
        return stored
    if codec == "zstd":
        filtered = zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    else:
        filtered = bytes(cramjam.lz4.decompress_block(stored, output_len=nbytes))
    assert len(filtered) == nbytes
    items = nbytes // width
    raw = bytearray(filtered)
    for k in range(width):
        raw[k : items * width : width] = filtered[k * items : (k + 1) * items]
    return bytes(raw)


@pytest.mark.parametrize("name", VALUES)
class TestGolden:
    def test_read(self, name):
        """A file of the past is read as the value that was saved, and passes verification."""
        value, library = (AS_PANDAS[name], "pandas") if name in AS_PANDAS else (VALUES[name][0], None)
        path, entry = GOLDEN / f"v1-{name}.part", index()[f"v1-{name}.part"]
        digest = bytes.fromhex(entry["digest"])
        assert diff(value(), partition.read(path, identity(name), digest, library=library, threads=2)) == []
        assert partition.verify(path, identity(name), digest).digest == digest

    def test_specification(self, name):
        """Read by nothing but the specification, it has the buffers that were written."""
        version, footer, buffers = read_by_the_specification((GOLDEN / f"v1-{name}.part").read_bytes())
        assert version == 1
        assert footer["checkpoint"] == "golden"
        assert [blake3(raw).hexdigest() for raw in buffers] == index()[f"v1-{name}.part"]["raw"]


@pytest.mark.parametrize("codec", ["auto", "zstd", "lz4", "none"])
@pytest.mark.parametrize("name", VALUES)
def test_what_is_written_today_follows_the_specification(tmp_path, name, codec):
    """The buffers of a value come out of a new file by the specification alone."""
    path, value = tmp_path / "new.part", VALUES[name][0]()
    with open(path, "wb") as file:
        written = partition.write(file.fileno(), value, identity(name), codec=codec, threads=2, durable=False)
    version, _, buffers = read_by_the_specification(path.read_bytes())
    assert version == VERSION
    assert buffers == [np.ascontiguousarray(array).tobytes() for array in frames.encode(value).buffers]
    assert written.nbytes == sum(map(len, buffers))


def test_every_file_is_in_the_index():
    """No golden file is forgotten by the tests."""
    assert sorted(path.name for path in GOLDEN.glob("*.part")) == sorted(index())
    assert {name.split("-", 1)[0] for name in index()} == {f"v{n}" for n in range(1, VERSION + 1)}


def regenerate():
    """Write the files of this version that are missing, and their digests."""
    GOLDEN.mkdir(exist_ok=True)
    known = index() if INDEX.exists() else {}
    known = {name: entry for name, entry in known.items() if (GOLDEN / name).exists()}
    for name, (value, codec) in VALUES.items():
        file = f"v{VERSION}-{name}.part"
        if file in known:
            continue
        fd = os.open(GOLDEN / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            written = partition.write(fd, value(), identity(name), codec=codec, threads=1, durable=False)
        finally:
            os.close(fd)
        raw = [blake3(np.ascontiguousarray(array).tobytes()).hexdigest() for array in frames.encode(value()).buffers]
        known[file] = {"digest": written.digest.hex(), "raw": raw}
        print(f"{file}: {written.stored_nbytes} bytes")
    INDEX.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    with host.standing_in():
        sys.exit(regenerate())
