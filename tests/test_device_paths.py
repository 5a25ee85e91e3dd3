"""The ways between a file and a device, on one that is in host memory: what is written and read, and by which way."""

import os
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask import delayed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckpt_spill as cs
from ckpt_spill.collections import ArrayAdapter
from ckpt_spill.store import blocks, footer, inbound, partition
from ckpt_spill.store.choice import Choice
from ckpt_spill.store.descriptors import OpenFile, Writer, open_regular
from ckpt_spill.store.device import copies, direct, hashes, libraries, memory, nvcomp
from ckpt_spill.store.device.memory import Memory
from ckpt_spill.store.device.paths import Paths
from ckpt_spill.store.footer import BLOCK, Footer, Identity
from ckpt_spill.store.frames import Far, layout, rapids
from ckpt_spill.store.writing import write_buffers
from tests import host_columns as host
from tests import host_device
from tests.strict import diff
from tests.test_backends import telling_of
from tests.test_frames_cudf import TEXT

IDENTITY = Identity("x", 1, 0)
ROWS = 150_000  # more than a block of numbers of 8 bytes
ALL, NONE = Paths(gds=True, nvcomp=True), Paths(gds=False, nvcomp=False)
RANDOM = np.random.default_rng(0)

COLUMNS = {
    "noise": (pa.array(RANDOM.integers(0, 2**62, ROWS)), {}),
    "steps": (pa.array(np.arange(ROWS)), {}),
    "nulls": (pa.array(RANDOM.random(ROWS), mask=RANDOM.random(ROWS) < 0.1), {}),
    "text": (pa.array([None if n % 7 == 0 else f"number {n}" for n in range(ROWS)]), TEXT),
    "times": (pa.array(np.arange(ROWS), pa.timestamp("us")), {"dtype": "numpy"}),
    "decimals": (pa.array(range(ROWS), pa.decimal128(20, 3)), {}),
    "bools": (pa.array(RANDOM.random(ROWS) < 0.5), {}),
    "lists": (pa.array([[n, n + 1] for n in range(ROWS)]), {}),
}


def table(names=tuple(COLUMNS), start=0):
    """Make a frame on the device of some columns, from a row on."""
    made = [host.column(*COLUMNS[name], start=start) for name in names]
    return host.frame(made, labels=pd.Index(names))


@pytest.fixture
def device():
    with host.standing_in(), host_device.standing_in() as seen:
        yield seen


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.part")


def save(path, value, *, paths=NONE, codec="auto", threads=2):
    with open(path, "w+b") as file:
        return partition.write(file.fileno(), value, IDENTITY, codec=codec, threads=threads, durable=False, paths=paths)


def content(path):
    with open(path, "rb") as file:
        return file.read()


def check(read, names=tuple(COLUMNS), start=0):
    """Compare what a frame opens as with the Arrow data."""
    assert list(read.columns) == list(names)
    for name in names:
        array = COLUMNS[name][0].slice(start)
        assert pa.array(read[name]).cast(array.type).equals(array), name


# ---------------------------------------------------------------------------------------------------------- writing
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("codec", ["auto", "zstd", "lz4", "none"])
def test_what_comes_through_pinned_memory_is_what_was_there(device, path, codec, threads):
    """Columns of every kind, in more pieces than there are slots: whole, and from a row that no byte begins with."""
    for start in (0, 3):
        written = save(path, host.OfCudf(table(start=start)), codec=codec, threads=threads)
        check(partition.read(path, IDENTITY, written.digest, library="pandas"), start=start)
        assert partition.verify(path, IDENTITY, written.digest) == written
    assert written.direct_nbytes == device.written == 0


@pytest.mark.parametrize("codec", ["auto", "none"])
def test_what_is_written_directly_is_the_same_file(device, path, codec):
    """Which way the raw buffers took cannot be seen in the file: to the bit, where codecs are not chosen by time."""
    by_host = save(path, host.OfCudf(table(["noise", "text"])), codec=codec)
    there = content(path)
    directly = save(path, host.OfCudf(table(["noise", "text"])), codec=codec, paths=ALL)
    noise, text = ROWS * 8, COLUMNS["text"][0].nbytes
    assert by_host.direct_nbytes == 0
    assert device.written > 0
    assert noise <= directly.direct_nbytes <= noise + text
    assert partition.verify(path, IDENTITY, directly.digest) == directly
    check(partition.read(path, IDENTITY, directly.digest, library="pandas"), ["noise", "text"])
    if codec == "none":
        assert content(path) == there


def test_long_raw_buffers_begin_with_a_page(device, path):
    """So that whoever reads them can go past the page cache; also those of frames that were never on a device."""
    values = [host.OfCudf(table()), pd.DataFrame({"a": RANDOM.random(ROWS), "b": ["x"] * ROWS}), RANDOM.random(ROWS)]
    for value in values:
        found = partition.read_footer(path, IDENTITY, save(path, value, codec="none").digest)
        long = [buffer for buffer in found.buffers if buffer.length >= BLOCK]
        assert long
        assert all(buffer.offset % 4096 == 0 for buffer in long)
        assert sum(stop - start for start, stop in found.gaps()) < 4096 * len(long)


def test_copies_run_while_pieces_are_encoded(device, path, monkeypatch):
    """The copy of the next pieces has been started before the first of those that are there is compressed."""
    events = []
    start, encode = host_device.Channel.start, blocks.encode_piece
    monkeypatch.setattr(copies, "ROOM", 2 * BLOCK)
    monkeypatch.setattr(host_device.Channel, "start", lambda self, *args: events.append("start") or start(self, *args))
    monkeypatch.setattr(blocks, "encode_piece", lambda piece: events.append("encode") or encode(piece))
    save(path, host.OfCudf(table(["steps", "noise", "times"])), threads=1)
    events.remove("start")  # that of the samples
    assert events.count("start") >= 3
    assert events[:4] == ["start", "start", "encode", "encode"]
    assert "encode" in events[-2:]


def test_memory_of_the_host(device, path, monkeypatch):
    """Writing takes memory of a few blocks on the host, not of the value."""
    monkeypatch.setattr(copies, "ROOM", BLOCK)
    value = host.OfCudf(table(["noise"] * 10))
    save(path, value, codec="zstd")
    tracemalloc.start()
    try:
        save(path, value, codec="zstd")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * ROWS * 8 / 2


def test_a_failure_while_pieces_are_copied_leaves_the_next_write_alone(device, path, monkeypatch):
    """Pinned memory that is still being read is not given to anybody else."""
    monkeypatch.setattr(copies, "ROOM", 2 * BLOCK)
    with monkeypatch.context() as broken, pytest.raises(OSError, match="full"):
        broken.setattr(os, "pwritev", lambda *args: (_ for _ in ()).throw(OSError("full")))
        save(path, host.OfCudf(table()), threads=3)
    (spare,) = copies._spare
    assert spare.begun == []
    written = save(path, host.OfCudf(table()), threads=3)
    assert list(copies._spare) == [spare]
    check(partition.read(path, IDENTITY, written.digest, library="pandas"))


def test_writes_at_the_same_time(device, tmp_path, monkeypatch):
    """Pinned memory is one write's until its last piece was encoded: nothing of another one gets into its file."""
    monkeypatch.setattr(copies, "ROOM", 2 * BLOCK)
    values = [np.full((3, BLOCK // 8 + 100 * n), n, np.int64) for n in range(24)]

    def write(n):
        path = str(tmp_path / str(n))
        frame = host.frame([host.column(pa.array(row)) for row in values[n]])
        written = save(path, host.OfCudf(frame), codec=["lz4", "none"][n % 2], threads=2 + n % 3)
        read = partition.read(path, IDENTITY, written.digest, library="pandas")
        return all(np.array_equal(read[f"c{k}"].to_numpy(), row) for k, row in enumerate(values[n]))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(write, range(len(values))))


@pytest.mark.parametrize("threads", [2, 8])
def test_an_error_in_any_piece_ends_the_write(device, path, monkeypatch, threads):
    """Whichever piece cannot be encoded: the error comes, nobody waits for the pieces that were behind it."""
    monkeypatch.setattr(copies, "ROOM", 2 * BLOCK)
    value, encode = host.OfCudf(table(["steps", "noise", "times"] * 8)), blocks._encode_piece
    for short_ones_from in range(0, 24, 5):

        def fail(piece, first=short_ones_from):
            if piece.buffer >= first and piece.nbytes < BLOCK:
                raise MemoryError("no room")
            return encode(piece)

        monkeypatch.setattr(blocks, "_encode_piece", fail)
        with pytest.raises(MemoryError, match="no room"):
            save(path, value, codec="lz4", threads=threads)


@pytest.mark.parametrize(("module", "name"), [(direct, "write"), (hashes, "hash_blocks")])
def test_what_fails_on_the_device_is_not_written(device, path, monkeypatch, module, name):
    """An error of kvikio's or CUDA's is one of writing, and says how to do without them."""

    def fail(*args, **kwargs):
        raise RuntimeError("cudaErrorIllegalAddress")

    monkeypatch.setattr(module, name, fail)
    with pytest.raises(cs.WriteError, match=r"cudaErrorIllegalAddress.*gds set to false"):
        save(path, host.OfCudf(table(["noise"])), codec="none", paths=ALL)


def as_far(array):
    host.kept.append(array)
    return Far(Memory(array.ctypes.data, array.nbytes), array.itemsize)


CHOICES = [Choice("none", 1), Choice("lz4", 1), Choice("zstd", 8)]
BUFFERS = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from([1, 2, 4, 8, 16]),
        st.one_of(st.integers(0, 300), st.integers(BLOCK - 40, BLOCK + 40), st.integers(0, 3 * BLOCK)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BUFFERS, st.sampled_from([1, 2, 4]), st.booleans())
def test_any_mixture_of_buffers(path, buffers, threads, gds):
    """Buffers of the host and a device, of any length, in any order, are read as they were; nothing waits for ever."""
    far = [far for far, _, _ in buffers]
    arrays = [(np.arange(n // w * w) * 31 >> 3).astype(np.uint8).view(f"V{w}") for _, w, n in buffers]
    with host_device.standing_in(), pytest.MonkeyPatch.context() as patch, open(path, "w+b") as file:
        patch.setattr(copies, "ROOM", BLOCK)
        ready = [as_far(array) if there else array for there, array in zip(far, arrays, strict=True)]
        out = Writer(file.fileno(), durable=False)
        out.write(footer.HEADER)
        table, _ = write_buffers(out, ready, lambda buffer: CHOICES[buffer.nbytes % 3], threads, Paths(gds=gds))
        packed = footer.pack(Footer(IDENTITY, {}, BLOCK, table))
        out.write(packed)
        out.write(footer.trailer(packed))
        out.finish()
    partition.verify(path, IDENTITY, None)
    outs = {n: np.empty(array.nbytes, np.uint8) for n, array in enumerate(arrays)}
    with open_regular(path) as source:
        for run in blocks.runs(partition.read_footer(path, IDENTITY, None), outs, frozenset()):
            blocks.read_run(source, run)
    assert [outs[n].tobytes() for n in range(len(arrays))] == [array.tobytes() for array in arrays]


def test_padding_that_is_not_zeros(device, path):
    """Every byte of a file is looked at when it is verified."""
    written = save(path, RANDOM.random(ROWS), codec="none")
    whole = content(path)
    for at in (16, 4095):
        with open(path, "wb") as file:
            file.write(whole[:at] + b"x" + whole[at + 1 :])
        with pytest.raises(cs.CorruptPartitionError, match="padding at 16"):
            partition.verify(path, IDENTITY, written.digest)


# ---------------------------------------------------------------------------------------------------------- reading
class Counting:
    """A file from which the bytes that the host reads are counted."""

    def __init__(self, file):
        self.name, self.size, self.file, self.nbytes = file.name, file.size, file, 0

    def read_into(self, out, offset):
        self.nbytes += len(out)
        return self.file.read_into(out, offset)


@pytest.fixture
def built(device, monkeypatch):
    """Let tables be read for a device, as which they stay tables; CuPy's arrays are numpy's."""
    monkeypatch.setattr(libraries, "rapids", lambda name: None)
    monkeypatch.setattr(rapids, "build", lambda table: table)
    return device


def on_host(values):
    """Give the bytes of a column as it is sent to or already on the device."""
    laid = layout.lay_out(values.array)
    return flat(laid)


def flat(laid):
    data = host_device.shown(laid.data) if isinstance(laid.data, Memory) else laid.data
    mask = None if laid.mask is None else laid.mask.tobytes()
    return (*laid[:4], None if data is None else data.tobytes(), mask, [flat(child) for child in laid.children])


@pytest.mark.parametrize("paths", [ALL, NONE, Paths(gds=True, nvcomp=False), Paths(gds=False, nvcomp=True)])
@pytest.mark.parametrize("codec", ["auto", "zstd", "lz4", "none"])
def test_each_way_to_the_device_gives_the_same(built, path, codec, paths):
    """Read directly, decoded there, or by the host: the memory of each column is that of the Arrow data."""
    written = save(path, host.OfCudf(table()), codec=codec)
    read = partition.read(path, IDENTITY, written.digest, paths=paths, threads=2)
    for name, values in zip(COLUMNS, read.columns, strict=True):
        assert on_host(values) == flat(layout.lay_out(COLUMNS[name][0])), name
    large = {"auto": (1, 1), "zstd": (0, 1), "lz4": (0, 1), "none": (1, 0)}[codec]
    assert (built.read > 0, built.decoded > 0) == (bool(large[0] and paths.gds), bool(large[1] and paths.nvcomp))


@pytest.mark.parametrize("paths", [ALL, NONE])
@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_arrays_in_any_layout(built, path, codec, paths):
    """Arrays of CuPy's, with gaps, backwards, repeated, with axes in another order, of no axis, and without items."""
    cube = RANDOM.integers(0, 9, (50, 60, 200))
    arrays = [cube, cube.transpose(2, 0, 1), np.asfortranarray(cube), cube[::2, 1:], cube[::-1], cube[:, ::-2]]
    arrays += [np.broadcast_to(cube[:1], (5, 60, 200)), cube[:0], np.array(7), cube > 4]
    for array in arrays:
        written = save(path, host.OfCupy(array), codec=codec, paths=paths)
        back = partition.read(path, IDENTITY, written.digest, paths=paths)
        assert diff(partition.read(path, IDENTITY, written.digest, library="pandas"), back) == []
        assert np.array_equal(back, array)
        assert back.dtype == array.dtype


def test_the_host_does_not_see_what_goes_directly(built, path):
    """Of raw columns it reads footer, bitmaps and offsets; of compressed ones what is stored."""
    names = ["noise", "times"]
    written = save(path, host.OfCudf(table(names)), codec="none")
    found = partition.read_footer(path, IDENTITY, written.digest)
    assert written.stored_nbytes > 2 * ROWS * 8
    seen, read_into = [], OpenFile.read_into
    with open_regular(path) as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenFile, "read_into", lambda file, out, at: seen.append(len(out)) or read_into(file, out, at))
        partition.read(file, IDENTITY, written.digest, paths=ALL)
        assert sum(seen) < 64 << 10
        counting = Counting(file)
        partition.read(counting, IDENTITY, written.digest, paths=ALL)  # from elsewhere: not directly
        assert counting.nbytes > 2 * ROWS * 8
    assert built.read == len([buffer for buffer in found.buffers if buffer.length >= BLOCK]) == 2


def test_only_columns_that_are_wanted_are_read(built, path):
    """A projection takes memory of the device, and bytes of the file, for its columns alone."""
    written = save(path, host.OfCudf(table()), codec="none")
    read = partition.read(path, IDENTITY, written.digest, columns=["times"], paths=ALL)
    assert built.read == 1
    assert on_host(read.columns[0]) == flat(layout.lay_out(COLUMNS["times"][0]))


@pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])
def test_damage_is_found_on_the_device(built, path, codec):
    """A flipped bit in a block that the host does not see or does not decode is named, and no value is given."""
    written = save(path, host.OfCudf(table(["steps"])), codec=codec)
    (buffer,) = (b for b in partition.read_footer(path, IDENTITY, written.digest).buffers if b.length >= BLOCK)
    whole, last = content(path), len(buffer.stored) - 1
    for block, at in ((0, buffer.offset), (last, buffer.end - 1)):
        with open(path, "wb") as file:
            file.write(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(cs.CorruptPartitionError, match=f"block {block}, fails its CRC-32C") as caught:
            partition.read(path, IDENTITY, written.digest, paths=ALL)
        assert (caught.value.buffer, caught.value.block) == (0, block)


def test_a_file_that_is_cut_while_it_is_read(built, path, monkeypatch):
    """That the file ends too early is damage, whoever finds it."""
    written = save(path, host.OfCudf(table(["steps"])), codec="none")
    monkeypatch.setattr(direct, "read", lambda *args: False)
    with pytest.raises(cs.CorruptPartitionError, match="ends before"):
        partition.read(path, IDENTITY, written.digest, paths=ALL)


def test_what_fails_on_the_device_is_no_fault_of_the_file(built, path, monkeypatch):
    """An error of kvikio's or CUDA's is one of reading, not damage."""
    written = save(path, host.OfCudf(table(["steps"])), codec="none")

    def fail(*args, **kwargs):
        raise RuntimeError("cudaErrorIllegalAddress")

    for module, name in ((direct, "read"), (hashes, "hash_blocks"), (memory, "allocate")):
        with monkeypatch.context() as broken:
            broken.setattr(module, name, fail)
            with pytest.raises(cs.ReadError, match="cudaErrorIllegalAddress") as caught:
                partition.read(path, IDENTITY, written.digest, paths=ALL)
        assert not isinstance(caught.value, cs.CorruptPartitionError)
    monkeypatch.setattr(direct, "read", lambda *args: int("x"))
    with pytest.raises(cs.ReadError, match="ValueError"):
        partition.read(path, IDENTITY, written.digest, paths=ALL)


def test_frames_that_claim_another_size(built, path, monkeypatch):
    """NVCOMP takes memory for what a frame claims: that is compared before."""
    written = save(path, host.OfCudf(table(["steps"])), codec="zstd")
    monkeypatch.setattr(inbound, "zstd_content_size", lambda frame: 1 << 40)
    with pytest.raises(cs.CorruptPartitionError, match="block 0, does not decode: 1099511627776 bytes"):
        partition.read(path, IDENTITY, written.digest, paths=ALL)
    assert built.decoded == 0


def test_blocks_that_decode_to_another_size(built, path, monkeypatch):
    """What nvCOMP makes of a block has to have its raw size."""
    written = save(path, host.OfCudf(table(["steps"])), codec="lz4")

    def decode(codec, sources, sizes):
        raise blocks.CodecError("block 0 decodes to 7 bytes where 8 were expected")

    monkeypatch.setattr(nvcomp, "decode", decode)
    with pytest.raises(cs.CorruptPartitionError, match="does not decode: block 0 decodes to 7"):
        partition.read(path, IDENTITY, written.digest, paths=ALL)


@pytest.mark.parametrize(("at", "end"), [(0, -1), (5, 1), (ROWS, 1 << 30)])
def test_offsets_that_point_anywhere(built, path, monkeypatch, at, end):
    """Text whose bytes are on the device already is not shown with offsets that leave them."""
    written = save(path, host.OfCudf(table(["text"])), codec="none")
    read_into = OpenFile.read_into

    def forged(file, out, offset):
        done = read_into(file, out, offset)
        if len(out) == 4 * (ROWS + 1):
            out.view(np.int32)[at] = end
        return done

    monkeypatch.setattr(blocks, "crc32c", lambda data: ANY)
    monkeypatch.setattr(OpenFile, "read_into", forged)
    with pytest.raises(cs.CorruptPartitionError, match="do not ascend within"):
        partition.read(path, IDENTITY, written.digest, paths=ALL)
    assert built.read == 1


class _Any:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


ANY = _Any()


# ----------------------------------------------------------------------------------------------------------- choice
@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("mode", ["gds", "compat", ""])
@pytest.mark.parametrize("right", [True, False])
def test_what_is_chosen(monkeypatch, here, mode, right):
    """By itself only what is of use and was found to work; what is insisted on and is not there is an error that says
    what is missing."""
    monkeypatch.setattr(libraries, "has_device", lambda: here)
    monkeypatch.setattr(direct, "mode", lambda: mode)
    monkeypatch.setattr(hashes, "trusted", lambda: right)
    monkeypatch.setattr(nvcomp, "import_library", lambda: None)
    monkeypatch.setattr(nvcomp, "trusted", lambda: right)
    assert not Paths(gds=False).direct()
    assert not Paths(nvcomp=False).decoding()
    assert Paths().direct() == (here and mode == "gds" and right)
    assert Paths().decoding() == (here and right)
    if here and mode and right:
        assert Paths(gds=True).direct()
    else:
        missing = "no GPU" if not here else "checksums" if mode else "kvikio"
        with pytest.raises(cs.RefusedError, match=f"gds is true, but .*{missing}"):
            Paths(gds=True).direct()
    if here and right:
        assert Paths(nvcomp=True).decoding()
    else:
        with pytest.raises(
            cs.RefusedError, match="nvcomp is true, but .*" + ("nvCOMP does not work" if here else "no GPU")
        ):
            Paths(nvcomp=True).decoding()


def test_without_the_packages(monkeypatch):
    """What has to be installed is named; where nothing is configured, nothing is said."""
    monkeypatch.setattr(libraries, "has_device", lambda: True)
    for name in ("kvikio", "kvikio.defaults", "nvidia.nvcomp"):
        monkeypatch.setitem(sys.modules, name, None)
    assert not Paths().direct()
    assert not Paths().decoding()
    with pytest.raises(cs.RefusedError, match="kvikio cannot be used here: install it"):
        Paths(gds=True).direct()
    with pytest.raises(cs.RefusedError, match="nvidia-nvcomp cannot be imported here: install it"):
        Paths(nvcomp=True).decoding()


@pytest.mark.parametrize("name", ["gds", "nvcomp"])
@pytest.mark.parametrize("value", ["yes", 1, "auto"])
def test_what_is_neither_true_nor_false(tmp_path, name, value):
    """A choice that is none is refused before anything is computed."""
    array = da.ones(3)
    with dask.config.set({f"ckpt-spill.{name}": value}), pytest.raises(cs.RefusedError, match="true, false or null"):
        cs.persist_to_disk(array, name="x", root=str(tmp_path))


# --------------------------------------------------------------------------------------------------------- manifest
def test_the_manifest_tells_what_was_written_directly(device, tmp_path):
    """Its bytes are in the manifest and its file, by partition."""
    array = RANDOM.random((2, ROWS))
    blocks_of = [da.from_delayed(delayed(host.OfCupy)(part), part.shape, part.dtype) for part in array]
    root, meta = str(tmp_path), host.OfCupy(np.empty(0))
    with telling_of(meta, ArrayAdapter), dask.config.set({"scheduler": "sync", "ckpt-spill.gds": True}):
        made = cs.persist_to_disk(da.concatenate(blocks_of), name="x", root=root, codec="none")
        assert list(made.paths().values()) == [{"gds": True, "nvcomp": True}]
    assert made.direct_nbytes == array.nbytes
    assert "2.29 MiB written directly from GPUs" in repr(made)
    made.save(tmp_path / "manifest.json")
    loaded = cs.Manifest.load(tmp_path / "manifest.json")
    assert loaded == made
    assert loaded.direct_nbytes == array.nbytes
    assert [p.direct_nbytes for p in loaded.partitions] == [array[0].nbytes] * 2
    assert np.array_equal(cs.rehydrate(loaded, backend="pandas").compute(scheduler="sync"), array.ravel())


def test_without_a_gpu_nothing_is_direct(tmp_path):
    """A checkpoint of the host says nothing of GPUs; this process has no way to one."""
    made = cs.persist_to_disk(da.ones(3), name="x", root=str(tmp_path))
    assert made.direct_nbytes == 0
    assert "GPU" not in repr(made)
    assert b"direct" not in made.to_json()
    assert made.paths() == {"local": {"gds": False, "nvcomp": False}}
    with dask.config.set({"ckpt-spill.gds": True, "ckpt-spill.nvcomp": True}):
        with pytest.raises(
            cs.RefusedError, match=r"(?s)local: ckpt-spill.gds is true.*local: ckpt-spill.nvcomp is true"
        ):
            made.paths()
        again = cs.persist_to_disk(da.ones(3), name="again", root=str(tmp_path))  # which needs no GPU
        assert cs.rehydrate(again).sum().compute() == 3
