"""The partition file: what is written comes back, and nothing else ever does."""

import contextlib
import io
import json
import os
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from blake3 import blake3
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckpt_spill.errors import CorruptPartitionError
from ckpt_spill.store import blocks, choice, descriptors, footer, partition, write_back
from ckpt_spill.store.choice import Choice
from ckpt_spill.store.footer import BLOCK, HEADER, HEADER_SIZE, PAGE, TRAILER_SIZE, Identity
from ckpt_spill.store.partition import read, read_footer, verify, write
from tests.leaks import open_paths
from tests.strict import diff

IDENTITY = Identity("by-order", 3, 7)
CODECS = ["auto", "zstd", "lz4", "none"]
SLOW_OK = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def save(path, value, identity=IDENTITY, **options):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        return write(fd, value, identity, **{"durable": False, **options})
    finally:
        os.close(fd)


def frame(rows=1000):
    rng = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "id": np.arange(rows),
            "x": rng.random(rows),
            "name": pd.array([f"name {n % 17}" for n in range(rows)], dtype="str"),
            "kind": pd.Categorical.from_codes(np.arange(rows) % 3, ["a", "b", "c"]),
            "things": [{"n": n} for n in range(rows)],
        }
    )


def small():
    """Short enough to try every byte of its file, and with blocks that are raw, compressed and pickled."""
    return pd.DataFrame({"n": np.arange(60), "x": [0.5, 1.5, -2.5] * 20, "o": [(1, "a")] * 60})


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.part")


def assert_corrupt(path, digest=None, identity=IDENTITY, match=None):
    """Both ways to look at all of a file find it damaged, in the words of the package."""
    for look in (read, verify):
        with pytest.raises(CorruptPartitionError, match=match) as caught:
            look(path, identity, digest)
        assert caught.value.path == path
        assert path in str(caught.value)
    return caught.value


class TestRoundTrip:
    @pytest.mark.parametrize("codec", CODECS)
    @pytest.mark.parametrize("threads", [1, 3])
    def test_large_frame(self, path, codec, threads):
        """A frame of many blocks comes back equal, and passes verification."""
        value = frame(60_000)
        written = save(path, value, codec=codec, threads=threads, durable=True)
        assert diff(value, read(path, IDENTITY, written.digest, threads=threads)) == []
        assert verify(path, IDENTITY, written.digest, threads=threads) == written
        assert written.stored_nbytes == os.path.getsize(path)

    @pytest.mark.parametrize("length", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 9 * BLOCK + 5])
    @pytest.mark.parametrize("codec", CODECS)
    def test_lengths_around_blocks(self, path, codec, length):
        """Buffers that end at, before and after the end of a block come back."""
        value = np.resize(np.arange(97, dtype=np.uint8), length)
        written = save(path, value, codec=codec, threads=2)
        assert diff(value, read(path, IDENTITY, written.digest, threads=2)) == []
        assert written.nbytes == length

    @SLOW_OK
    @given(
        st.sampled_from(["u1", "?", "<i2", ">f4", "<M8[ns]", "c16", "S3", "U5", "V12"]),
        st.integers(0, 3 * BLOCK // 20),
        st.sampled_from([1, -1, 2, 7, -3]),
        st.sampled_from(CODECS),
        st.integers(0, 255),
    )
    def test_any_stride_and_dtype(self, tmp_path_factory, dtype, length, step, codec, seed):
        """Arrays of any item size and stride come back, whether items are cut by block ends or not."""
        path = str(tmp_path_factory.getbasetemp() / "strided.part")
        width = np.dtype(dtype).itemsize
        data = np.resize(np.random.default_rng(seed).integers(0, 2, 1009, np.uint8), length * abs(step) * width)
        value = data.view(dtype)[::step]
        digest = save(path, value, codec=codec, threads=2).digest
        assert diff(np.array(value), np.array(read(path, IDENTITY, digest))) == []

    def test_column_of_a_row_major_block(self, path):
        """Columns that lie strided in memory come back, though they are copied block by block only."""
        value = pd.DataFrame(np.arange(900_000.0).reshape(-1, 3), columns=list("abc"))
        digest = save(path, value, threads=2).digest
        assert diff(value, read(path, IDENTITY, digest, threads=2)) == []

    def test_many_small_buffers(self, path):
        """A wide frame, each column of which is tiny, comes back."""
        value = pd.DataFrame({f"c{n}": pd.array([str(n), None], dtype="str") for n in range(700)})
        digest = save(path, value, threads=4).digest
        assert diff(value, read(path, IDENTITY, digest, threads=4)) == []

    def test_what_was_read_is_writable_and_its_own(self, path):
        """A value read twice shares nothing."""
        digest = save(path, np.arange(1000), codec="none").digest
        first, second = read(path, IDENTITY, digest), read(path, IDENTITY, digest)
        first[:] = 0
        assert second[999] == 999


class CountingSource:
    """Another kind of source than a file, which says what was read of it."""

    def __init__(self, file):
        self._file, self.wanted = file, []
        self.name, self.size = file.name, file.size

    def read_into(self, out, offset):
        self.wanted.append(len(out))
        return self._file.read_into(out, offset)


class TestColumns:
    def test_only_their_blocks_are_read(self, path):
        """Of two columns in five, two are read: bytes of the others may be damaged."""
        value = frame(300_000)
        digest = save(path, value, threads=2).digest
        with descriptors.open_regular(path) as file:
            counting = CountingSource(file)
            part = read(counting, IDENTITY, digest, columns=["x"])
        assert diff(value[["x"]], part) == []
        assert sum(counting.wanted) <= 300_000 * 8 + (64 << 10)

    def test_no_such_column(self, path):
        """A column that is not there is the caller's mistake, not the file's."""
        digest = save(path, frame(10)).digest
        with pytest.raises(KeyError):
            read(path, IDENTITY, digest, columns=["nowhere"])

    def test_no_columns_at_all(self, path):
        """Columns of an array are a TypeError."""
        digest = save(path, np.arange(10)).digest
        with pytest.raises(TypeError):
            read(path, IDENTITY, digest, columns=["a"])


class TestSize:
    def test_tiny_frame(self, path):
        """The whole file of a frame of one column and one row is shorter than a kilobyte."""
        for value in (pd.DataFrame({"a": [1]}), pd.DataFrame({"a": ["x"]})):
            assert save(path, value).stored_nbytes < 1024

    def test_footer_of_a_large_buffer(self):
        """Ten gigabytes have a footer of less than 300 kB."""
        count = 10_000
        big = footer.Buffer(HEADER_SIZE, count * BLOCK, "zstd", 8, (654_321,) * count, (0xFFFFFFFF,) * count, bytes(32))
        assert len(footer.pack(footer.Footer(IDENTITY, {}, BLOCK, (big,)))) < 300_000

    def test_memory_of_writing(self, path):
        """Writing takes memory of a few blocks, not of the value."""
        value = np.random.default_rng(1).random(8 << 20)[::2]
        save(path, value[:100], threads=2)
        tracemalloc.start()
        try:
            save(path, value, threads=2)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < value.nbytes / 2


def damaged_everywhere(whole):
    """Every single-byte change that can be made to a file."""
    for at in range(len(whole)):
        for flip in (0x01, 0xFF):
            yield whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :]


def content_of(path):
    with open(path, "rb") as file:
        return file.read()


def overwrite(path, content):
    with open(path, "wb") as file:
        file.write(content)


class TestDamage:
    @pytest.mark.parametrize("with_digest", [True, False])
    def test_every_byte(self, path, with_digest):
        """No byte of a file can change without verify() and read() finding it."""
        digest = save(path, small(), codec="zstd").digest
        whole = content_of(path)
        for content in damaged_everywhere(whole):
            overwrite(path, content)
            assert_corrupt(path, digest if with_digest else None)

    @SLOW_OK
    @given(st.floats(0, 1, exclude_max=True), st.integers(1, 255), st.sampled_from([1, 2]))
    def test_any_byte_of_a_larger_file(self, larger, place, flip, threads):
        """Nor can any byte of a file of several blocks; threads or not."""
        path, digest, whole = larger
        at = int(place * len(whole))
        overwrite(path, whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
        for look in (read, verify):
            with pytest.raises(CorruptPartitionError):
                look(path, IDENTITY, digest, threads=threads)

    @pytest.fixture
    def larger(self, path):
        digest = save(path, frame(60_000), threads=2).digest
        return path, digest, content_of(path)

    def test_every_truncation(self, path):
        """A file that lacks its end, from one byte to all, is found out."""
        digest = save(path, small()).digest
        whole = content_of(path)
        for length in range(len(whole)):
            overwrite(path, whole[:length])
            assert_corrupt(path, digest)
            assert_corrupt(path)

    @pytest.mark.parametrize("garbage", [b"\0", b"x" * 100, bytes(1 << 16)], ids=["a zero", "text", "64 KiB"])
    def test_extended(self, path, garbage):
        """Bytes behind, before or within a file are found out, though its trailer be the last thing in it."""
        digest = save(path, small()).digest
        whole = content_of(path)
        for content in (whole + garbage, garbage + whole, whole[:16] + garbage + whole[16:], whole + whole):
            overwrite(path, content)
            assert_corrupt(path, digest)
            assert_corrupt(path)

    @pytest.mark.parametrize("start", [0, 16, 200, -24, -100])
    def test_zeroed(self, path, start):
        """A stretch of zeros, as a crash leaves it, is found out."""
        digest = save(path, small()).digest
        content = bytearray(content_of(path))
        content[start : start + 24 or None] = bytes(24)
        overwrite(path, content)
        assert_corrupt(path, digest)

    @pytest.mark.parametrize(
        "content",
        [b"", b"\0" * 1000, b"PAR1" * 100, HEADER, HEADER * 10],
        ids=["empty", "zeros", "parquet", "header", "headers"],
    )
    def test_not_ours(self, path, content):
        """Empty files, zeros and files of other kinds are no partition files."""
        overwrite(path, content)
        assert_corrupt(path)

    def test_names_buffer_and_block(self, path):
        """The error of a flipped bit names the buffer and the block."""
        value = np.random.default_rng(1).random(BLOCK)
        digest = save(path, value, codec="none").digest
        with open(path, "r+b") as file:
            file.seek(PAGE + 5 * BLOCK + 100)
            file.write(b"\0\0\0\0\0\0\0\0")
        error = assert_corrupt(path, digest, match="buffer 0, block 5, fails its CRC-32C")
        assert (error.buffer, error.block) == (0, 5)

    def test_two_blocks_swapped(self, path):
        """Blocks of equal size in each other's place are found out."""
        digest = save(path, np.arange(BLOCK), codec="none").digest
        content = content_of(path)
        first, second = content[PAGE : PAGE + BLOCK], content[PAGE + BLOCK : PAGE + 2 * BLOCK]
        overwrite(path, content[:PAGE] + second + first + content[PAGE + 2 * BLOCK :])
        assert_corrupt(path, digest, match="block 0")

    def test_missing(self, path):
        """A file that is not there is FileNotFoundError, as for any file."""
        for look in (read, verify, read_footer):
            with pytest.raises(FileNotFoundError):
                look(path, IDENTITY, None)

    def test_shrinks_while_it_is_read(self, path, monkeypatch):
        """A file that ends earlier than it did when it was opened is found out."""
        digest = save(path, np.arange(BLOCK), codec="none").digest
        found = partition._read_footer

        def and_truncate(fd, *args):
            try:
                return found(fd, *args)
            finally:
                os.truncate(path, 1000)

        monkeypatch.setattr(partition, "_read_footer", and_truncate)
        with pytest.raises(CorruptPartitionError, match="ends before"):
            read(path, IDENTITY, digest)


class TestAnotherFile:
    @pytest.mark.parametrize("other", [{"checkpoint": "by-date"}, {"generation": 2}, {"partition": 8}])
    def test_of_another_identity(self, path, other):
        """A sound file of another checkpoint, generation or partition is damage of this one, digest or not."""
        save(path, small(), identity=replace(IDENTITY, **other))
        assert_corrupt(path, match="where partition 7 of 'by-order', generation 3 should be")
        assert read_footer(path, None, None).identity == replace(IDENTITY, **other)

    def test_swapped(self, tmp_path):
        """Two files in each other's place are both found out."""
        a, b = str(tmp_path / "a"), str(tmp_path / "b")
        one, two = save(a, small()), save(b, small(), identity=replace(IDENTITY, partition=8))
        os.rename(a, tmp_path / "c")
        os.rename(b, a)
        os.rename(tmp_path / "c", b)
        assert_corrupt(a, one.digest)
        assert_corrupt(b, two.digest, identity=replace(IDENTITY, partition=8))

    def test_same_identity_other_content(self, path):
        """A sound file with the right identity that is not the one in the manifest is found out by its digest."""
        digest = save(path, small()).digest
        save(path, frame(3))
        assert_corrupt(path, digest, match="not the one that was written")

    def test_symbolic_link(self, path, tmp_path):
        """A link is not followed, though it lead to the very file."""
        digest = save(tmp_path / "real", small()).digest
        os.symlink(tmp_path / "real", path)
        assert_corrupt(path, digest, match="regular")

    @pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
    def test_directory_or_pipe(self, path, make):
        """What is no file is refused, without waiting for anybody to write to it."""
        make(path)
        assert_corrupt(path, match="regular")

    def test_newer_version(self, path):
        """A file of a later format says that this release is too old."""
        save(path, small())
        with open(path, "r+b") as file:
            file.seek(8)
            file.write(struct.pack("<I", 2))
        assert_corrupt(path, match=r"format version 2; this release reads up to 1: upgrade")


def forge(path, change, data=None):
    """Rewrite the footer of a file, with the right checksum."""
    content = content_of(path)
    length, *_ = struct.unpack("<Q", content[-TRAILER_SIZE : -TRAILER_SIZE + 8])
    tree = json.loads(content[-TRAILER_SIZE - length : -TRAILER_SIZE])
    tree = change(tree) or tree
    packed = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    stored = content[HEADER_SIZE : -TRAILER_SIZE - length] if data is None else data
    overwrite(path, HEADER + stored + packed + footer.trailer(packed))


def change_buffer(**changes):
    def change(tree):
        tree["buffers"][0].update(changes)

    return change


HUGE = 1 << 62
FORGERIES = {
    "not JSON": lambda tree: b"{",
    "not UTF-8": lambda tree: b"\xff\xfe",
    "a list": lambda tree: b"[]",
    "deep": lambda tree: b'{"value":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "not a number": lambda tree: json.dumps({**tree, "block": float("nan")}).encode(),
    "endless number": lambda tree: b'{"block":' + b"9" * 100_000 + b"}",
    "member missing": lambda tree: tree.pop("block") and tree,
    "member added": lambda tree: {**tree, "more": 1},
    "version": lambda tree: {**tree, "version": 2},
    "checkpoint": lambda tree: {**tree, "checkpoint": 5},
    "generation true": lambda tree: {**tree, "generation": True},
    "partition": lambda tree: {**tree, "partition": 7.0},
    "value": lambda tree: {**tree, "value": [tree["value"]]},
    "empty value": lambda tree: {**tree, "value": {}},
    "nonsense value": lambda tree: {**tree, "value": {"kind": "frame"}},
    "block 0": lambda tree: {**tree, "block": 0},
    "block huge": lambda tree: {**tree, "block": HUGE},
    "block smaller": lambda tree: {**tree, "block": 1 << 19},
    "buffers": lambda tree: {**tree, "buffers": None},
    "no buffers": lambda tree: {**tree, "buffers": []},
    "buffer": lambda tree: {**tree, "buffers": [1, *tree["buffers"][1:]]},
    "length": change_buffer(length=HUGE),
    "length negative": change_buffer(length=-1),
    "length more": change_buffer(length=3 * BLOCK + 8),
    "length less": change_buffer(length=2 * BLOCK + 8),
    "length text": change_buffer(length="3"),
    "codec": change_buffer(codec="zip"),
    "codec list": change_buffer(codec=["zstd"]),
    "codec other": change_buffer(codec="lz4"),
    "codec none": change_buffer(codec="none"),
    "shuffle": change_buffer(shuffle=3),
    "shuffle true": change_buffer(shuffle=True),
    "stored huge": change_buffer(stored=[HUGE, 1, 1]),
    "stored negative": change_buffer(stored=[-5, 10, 10]),
    "stored zero": change_buffer(stored=[0, 0, 0]),
    "stored few": change_buffer(stored=[]),
    "stored text": change_buffer(stored="abc"),
    "crc few": change_buffer(crc32c=[]),
    "crc large": change_buffer(crc32c=[1 << 32] * 3),
    "crc wrong": change_buffer(crc32c=[1, 2, 3]),
    "blake3 short": change_buffer(blake3="ab"),
    "blake3 upper": change_buffer(blake3="AB" * 32),
    "blake3 spaced": change_buffer(blake3=" " + "ab" * 32),
    "blake3 number": change_buffer(blake3=5),
}


class TestForged:
    @pytest.fixture
    def saved(self, path):
        """A file of one buffer of three blocks."""
        save(path, np.arange(3 * BLOCK // 8), codec="zstd")
        return path

    @pytest.mark.parametrize("forgery", FORGERIES)
    def test_footer(self, saved, forgery):
        """A footer with the right checksum that cannot be true is refused, and costs no memory."""
        forge(saved, FORGERIES[forgery])
        tracemalloc.start()
        try:
            with pytest.raises(CorruptPartitionError):
                read(saved, IDENTITY, None)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 20 << 20

    def test_buffer_digest(self, saved):
        """A buffer's digest that differs from its blocks' is found by verify()."""
        forge(saved, change_buffer(blake3="ab" * 32))
        with pytest.raises(CorruptPartitionError, match="BLAKE3"):
            verify(saved, IDENTITY, None)

    @pytest.mark.parametrize(
        "begin",
        [b"", bytes.fromhex("28b52ffd"), bytes.fromhex("28b52ffde0") + struct.pack("<Q", HUGE)],
        ids=["zeros", "a frame of nothing", "a frame of exabytes"],
    )
    @pytest.mark.parametrize("codec", ["zstd", "lz4"])
    def test_block_with_right_checksum(self, path, begin, codec):
        """A block that is not of its codec, or claims another size, is refused though its checksum is right."""
        stored = begin + bytes(8000)
        save(path, np.zeros(BLOCK // 8), codec=codec)
        entry = {
            "length": BLOCK,
            "codec": codec,
            "stored": [len(stored)],
            "crc32c": [crc32c(stored)],
            "blake3": blake3(blake3(stored).digest()).hexdigest(),
        }
        forge(path, lambda tree: {**tree, "buffers": [entry]}, stored)
        verify(path, IDENTITY, None)
        with pytest.raises(CorruptPartitionError, match="block 0, does not decode"):
            read(path, IDENTITY, None)

    def test_impossible_ratio(self, saved):
        """Lengths that no codec could make of so few bytes are refused before memory is asked for."""
        count = 200_000

        def change(tree):
            tree["buffers"][0] |= {"length": count * BLOCK, "stored": [1] * count, "crc32c": [0] * count}

        forge(saved, change, bytes(count))
        assert_corrupt(saved, match="impossible stored size")

    def test_trailer_with_a_huge_length(self, saved):
        """A trailer that tells of a footer of an exabyte is refused."""
        with open(saved, "r+b") as file:
            file.seek(-TRAILER_SIZE, io.SEEK_END)
            file.write(struct.pack("<Q", 1 << 60))
        assert_corrupt(saved, match="footer of")


class Bomb:
    """Notes that it was unpickled; too large to stand in the description."""

    def __reduce__(self):
        return setattr, (Bomb, "exploded", "x" * 2000)


def test_nothing_is_unpickled_before_its_digest_is_checked(path, monkeypatch):
    """A pickle whose CRC was mended, but whose digest in the footer was not, is not opened."""
    digest = save(path, Bomb(), codec="none").digest
    monkeypatch.setattr(Bomb, "exploded", None, raising=False)
    monkeypatch.setattr(Bomb, "EXPLODED", None, raising=False)
    content = content_of(path)
    stored = content[16 : content.index(b'{"version"')]
    evil = stored.replace(b"exploded", b"EXPLODED")
    assert evil != stored

    def mend(tree):
        at = 0
        for entry in tree["buffers"]:
            entry["crc32c"] = [crc32c(evil[at : at + entry["length"]])] if entry["length"] else []
            at += entry["length"]

    forge(path, mend, evil)
    with pytest.raises(CorruptPartitionError, match="BLAKE3"):
        read(path, IDENTITY, None)
    assert Bomb.EXPLODED is None
    with pytest.raises(CorruptPartitionError, match="not the one that was written"):
        read(path, IDENTITY, digest)


class TestWriting:
    def test_errors_of_the_system_pass_through(self):
        """A full disk is the OSError it is, and leaves no thread at work on the value."""
        fd = os.open("/dev/full", os.O_WRONLY)
        try:
            with pytest.raises(OSError, match="No space left"):
                write(fd, np.random.default_rng(1).random(3 * BLOCK), IDENTITY, threads=2, durable=False)
        finally:
            os.close(fd)

    @pytest.mark.parametrize("durable", [True, False])
    def test_the_page_cache_is_not_taken_for_the_disk(self, path, monkeypatch, durable):
        """What is not flushed tells nothing of the disk, nor the disk of it; and stored bytes have a price in each."""
        seen = []

        def see(array, **options):
            seen.append((options["bandwidth"], options["byte_price"]))
            return choice.RAW

        monkeypatch.setattr(partition, "_disk", choice.Disk(1e8))
        monkeypatch.setattr(partition, "_page_cache", choice.Disk(4e9))
        monkeypatch.setattr(partition, "choose", see)
        save(path, np.zeros(2 << 20), durable=durable)
        learnt = (partition._disk.bandwidth != 1e8, partition._page_cache.bandwidth != 4e9)
        assert seen == [(1e8, choice.BYTE_PRICE) if durable else (4e9, choice.BYTE_PRICE_OF_SPILLS)]
        assert learnt == (durable, not durable)

    @pytest.mark.parametrize("codec", CODECS)
    def test_a_value_that_is_changed_meanwhile(self, path, monkeypatch, codec):
        """What is in the file is sound all the same: hashes are those of what is written."""
        values = np.random.default_rng(1).integers(0, 256, 7 * BLOCK + 5, dtype="u1")
        pwritev = os.pwritev

        def changing(fd, pieces, offset):
            values[:] += 1
            return pwritev(fd, pieces, offset)

        monkeypatch.setattr(os, "pwritev", changing)
        written = save(path, values, codec=codec, threads=2)
        assert verify(path, IDENTITY, written.digest) == written
        assert read(path, IDENTITY, written.digest).shape == values.shape

    def test_short_writes(self, path, monkeypatch):
        """A system that writes less than it was asked to is asked again."""
        pwritev = os.pwritev

        def reluctant(fd, pieces, offset):
            return pwritev(fd, [pieces[0][: max(len(pieces[0]) // 2, 1)]], offset)

        monkeypatch.setattr(os, "pwritev", reluctant)
        value = frame(50_000)
        digest = save(path, value, threads=2).digest
        assert diff(value, read(path, IDENTITY, digest)) == []

    def test_short_reads(self, path, monkeypatch):
        """A system that reads less than it was asked to is asked again."""
        value = frame(50_000)
        digest = save(path, value).digest
        preadv = os.preadv
        monkeypatch.setattr(os, "preadv", lambda fd, out, at: preadv(fd, [out[0][: max(len(out[0]) // 3, 1)]], at))
        assert diff(value, read(path, IDENTITY, digest)) == []

    def test_durable_is_flushed_once_everything_is_written(self, path, monkeypatch):
        """The flush comes last, and only where it was asked for."""
        sizes = []
        monkeypatch.setattr(descriptors, "datasync", lambda fd: sizes.append(os.fstat(fd).st_size))
        save(path, frame(10), durable=False)
        assert sizes == []
        written = save(path, frame(10), durable=True)
        assert sizes == [written.stored_nbytes]

    def test_one_descriptor(self, path, monkeypatch):
        """Reading needs one descriptor and closes it, also after an error."""
        digest = save(path, small()).digest
        write_back._thread()._pool.submit(int).result()  # which has one of its own for a moment
        with contextlib.suppress(CorruptPartitionError):
            read(path, IDENTITY, bytes(32))
        read(path, IDENTITY, digest)
        assert str(path) not in open_paths()
        with open(path, "rb"):
            assert str(path) in open_paths()


def test_a_piece_of_a_strided_buffer_is_copied_alone():
    """Of a strided buffer, a block is gathered, not the whole."""
    array = np.arange(4 * BLOCK)[::2]
    piece = next(blocks.cut(0, array, Choice("none", 1), BLOCK))
    assert np.shares_memory(piece.array, array)
    assert len(blocks.encode_piece(piece).data) == BLOCK
