"""The ways between a file and a GPU: each gives what was saved, and is the one that was chosen."""

from __future__ import annotations

import os
from types import SimpleNamespace

import dask
import numpy as np
import pytest

import ckpt_spill as cs
from ckpt_spill.store import blocks, partition
from ckpt_spill.store.device import direct, hashes, nvcomp
from ckpt_spill.store.device.paths import Paths
from ckpt_spill.store.footer import BLOCK, Identity
from tests.gpu import marks, parts
from tests.gpu.parts import same

pytestmark = marks(120)

IDENTITY = Identity("x", 1, 0)
HOST = Paths(gds=False, nvcomp=False)
WAYS = {"direct": Paths(gds=True, nvcomp=False), "decoded": Paths(gds=False, nvcomp=True), "host": HOST}


@pytest.fixture(scope="module")
def frame():
    """Columns of several blocks of each kind that can go straight to the device, some with nulls, one with text."""
    import cudf

    made = cudf.concat([parts.part(number) for number in range(5)], ignore_index=True)
    made["t"] = made["a"].astype("datetime64[us]")
    made["x"] = (made["a"] % 1000).astype("int64").astype(cudf.Decimal64Dtype(12, 2))
    made["f"] = made["b"].astype("float32")
    made["few"] = made["a"] % 3
    return made.iloc[3:-2]


@pytest.fixture
def seen(monkeypatch):
    """Count the calls of what only some ways use."""
    found = SimpleNamespace(read=0, write=0, decode=0)

    def counted(module, name):
        function = getattr(module, name)

        def call(*args, **kwargs):
            setattr(found, name, getattr(found, name) + 1)
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    counted(direct, "read")
    counted(direct, "write")
    counted(nvcomp, "decode")
    return found


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.part")


def save(path, value, codec, paths):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        return partition.write(fd, value, IDENTITY, codec=codec, threads=4, paths=paths)
    finally:
        os.close(fd)


def test_this_gpu_and_nvcomp_are_trusted():
    """The tries that come before any use find nothing wrong here."""
    assert hashes.trusted()
    assert nvcomp.trusted()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("codec", ["auto", "zstd", "lz4", "none"])
def test_frames_return(frame, path, seen, codec, way):
    """Saved and read by each way, a frame is what it was; also as pandas, and a few of its columns."""
    written = save(path, frame, codec, WAYS[way])
    assert partition.verify(path, IDENTITY, written.digest, threads=4) == written
    assert bool(written.direct_nbytes) == bool(seen.write) == (way == "direct" and codec in {"auto", "none"})
    same(partition.read(path, IDENTITY, written.digest, threads=4, paths=WAYS[way]), frame)
    assert bool(seen.read) == (way == "direct" and codec in {"auto", "none"})
    assert bool(seen.decode) == (way == "decoded" and codec != "none")
    few = partition.read(path, IDENTITY, written.digest, columns=["x", "c"], paths=WAYS[way])
    same(few, frame[["c", "x"]])
    as_pandas = partition.read(path, IDENTITY, written.digest, library="pandas")
    assert np.array_equal(as_pandas["few"].to_numpy(), frame["few"].to_numpy())


@pytest.mark.parametrize("one", WAYS)
@pytest.mark.parametrize("other", WAYS)
def test_any_way_reads_what_any_has_written(frame, path, one, other):
    """The file does not depend on the way it was written."""
    written = save(path, frame, "auto", WAYS[one])
    same(partition.read(path, IDENTITY, written.digest, paths=WAYS[other]), frame)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_arrays_return(path, codec, way):
    """Arrays of any layout, larger than the pinned memory."""
    import cupy

    whole = cupy.arange(10 << 20, dtype="i8").reshape(64, 160, 1024)
    for array in (
        whole,
        whole.transpose(2, 0, 1),
        whole[::3, 1:],
        whole[:, ::-1],
        cupy.broadcast_to(whole[:1], (4, 160, 1024)),
    ):
        written = save(path, array, codec, WAYS[way])
        back = partition.read(path, IDENTITY, written.digest, paths=WAYS[way])
        assert type(back) is cupy.ndarray
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert bool((back == array).all())


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_damage_is_found(path, codec):
    """A flipped bit is found by the checksums of the device, and by those of the host before nvCOMP decodes."""
    import cupy

    written = save(path, cupy.arange(4 * BLOCK, dtype="i8"), codec, HOST)
    (buffer,) = partition.read_footer(path, IDENTITY, written.digest).buffers
    with open(path, "r+b") as file:
        file.seek(buffer.end - 5)
        byte = file.read(1)
        file.seek(buffer.end - 5)
        file.write(bytes([byte[0] ^ 4]))
    last = len(buffer.stored) - 1
    with pytest.raises(cs.CorruptPartitionError, match=f"block {last}, fails its CRC-32C"):
        partition.read(path, IDENTITY, written.digest, paths=Paths(gds=True, nvcomp=True))


def test_blocks_of_another_size_are_refused():
    """Of a block that decodes to fewer bytes than it should, nothing is used."""
    from ckpt_spill.store.codecs import CODECS
    from ckpt_spill.store.device.copies import to_device

    for codec in ("zstd", "lz4"):
        packed = to_device(np.frombuffer(CODECS[codec].compress(np.zeros(70_000, np.uint8)), np.uint8))
        with pytest.raises(blocks.CodecError, match="decodes to 70000 bytes where 70001"):
            nvcomp.decode(codec, [packed], [70_001])


def test_a_checkpoint(root):
    """The manifest tells what was written directly, and by which ways this process would read."""
    with dask.config.set({"scheduler": "sync", "ckpt-spill.gds": True, "ckpt-spill.nvcomp": True}):
        made = cs.persist_to_disk(parts.arrays(3), name="x", root=root, codec="none")
        assert made.direct_nbytes == made.nbytes == 3 * parts.PART
        assert list(made.paths().values()) == [{"gds": True, "nvcomp": True}]
        back = cs.rehydrate(made)
        for number in range(3):
            same(back.blocks[number].compute(), parts.block(number))
    with dask.config.set({"scheduler": "sync", "ckpt-spill.gds": False, "ckpt-spill.nvcomp": False}):
        same(cs.rehydrate(made).blocks[1].compute(), parts.block(1))


def test_speed_of_each_way(frame, path, record_property):
    """How fast each way is here, for the report; nothing is demanded of it."""
    import time

    for codec, way in (("none", "direct"), ("none", "host"), ("zstd", "decoded"), ("zstd", "host")):
        started = time.perf_counter()
        written = save(path, frame, codec, WAYS[way])
        wrote = time.perf_counter()
        partition.read(path, IDENTITY, written.digest, threads=4, paths=WAYS[way])
        read = time.perf_counter()
        record_property(f"{way} {codec} write GB/s", f"{written.nbytes / (wrote - started) / 1e9:.2f}")
        record_property(f"{way} {codec} read GB/s", f"{written.nbytes / (read - wrote) / 1e9:.2f}")
