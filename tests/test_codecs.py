"""Codecs, the byte shuffle, and the choice between them."""

import contextlib

import cramjam
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ckpt_spill.store import choice
from ckpt_spill.store.choice import BYTE_PRICE, BYTE_PRICE_OF_SPILLS, RAW, Choice, Disk, Trial, cheapest, choose, sample
from ckpt_spill.store.codecs import CODECS, WIDTHS, CodecError, decode, encode, shuffle, unshuffle

FAST = settings(deadline=None, max_examples=60)
SOME_BYTES = npst.arrays(np.uint8, st.integers(1, 5000), elements=st.integers(0, 255), fill=st.integers(0, 255))


def compressible(nbytes):
    return np.resize(np.repeat(np.arange(50, dtype=np.uint8), 20), nbytes)


def noise(nbytes):
    return np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)


def decoded(stored, codec, width, nbytes):
    out = np.full(nbytes, 77, np.uint8)
    decode(np.frombuffer(stored, np.uint8), codec, width, out)
    return out


class TestShuffle:
    @FAST
    @given(SOME_BYTES, st.sampled_from(WIDTHS))
    def test_undone(self, data, width):
        """Unshuffle gives back what shuffle took, for lengths that are no multiple of the width, too."""
        there, back = np.zeros_like(data), np.zeros_like(data)
        shuffle(data, width, there)
        unshuffle(there, width, back)
        assert np.array_equal(back, data)

    def test_order(self):
        """Byte k of element i goes to k * m + i; the rest stays at the end."""
        out = np.empty(11, np.uint8)
        shuffle(np.arange(11, dtype=np.uint8), 4, out)
        assert out.tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10]


@pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])
class TestCodecs:
    @FAST
    @given(data=SOME_BYTES, width=st.sampled_from([1, *WIDTHS]))
    def test_round_trip(self, codec, data, width):
        """Any bytes come back, and are never stored in more bytes than they have."""
        before = data.copy()
        stored = encode(data, codec, width)
        assert len(stored) <= len(data)
        assert np.array_equal(decoded(stored, codec, width, len(data)), before)

    def test_incompressible_is_stored_as_it_is(self, codec):
        """What compressing would not make smaller is handed back itself, not copied."""
        data = noise(10_000)
        assert np.shares_memory(np.frombuffer(encode(data, codec, 8), np.uint8), data)

    @pytest.mark.parametrize("width", [1, 8])
    def test_other_length_is_refused(self, codec, width):
        """A block that makes more or fewer bytes than expected is an error, whichever it is."""
        stored = bytes(encode(compressible(10_000), codec, width))
        for nbytes in (9_999, 10_001, 100_000):
            with pytest.raises(CodecError):
                decoded(stored, codec, width, nbytes)

    def test_truncated_is_refused(self, codec):
        """A block that is cut anywhere is an error."""
        stored = bytes(encode(compressible(10_000), codec, 1))
        for end in {0, 1, 2, len(stored) // 2, len(stored) - 1}:
            with pytest.raises(CodecError):
                decoded(stored[:end], codec, 1, 10_000)


@pytest.mark.parametrize("codec", CODECS)
@FAST
@given(garbage=st.binary(min_size=0, max_size=300), nbytes=st.integers(301, 3000))
def test_garbage_never_escapes(codec, garbage, nbytes):
    """Whatever the bytes, the outcome is the right number of bytes or a CodecError."""
    with contextlib.suppress(CodecError):
        assert len(decoded(garbage, codec, 1, nbytes)) == nbytes


class TestStandardFormats:
    def test_zstd(self):
        """A zstd block is one standard frame that tells its content size."""
        data = compressible(100_000)
        stored = bytes(encode(data, "zstd", 1))
        assert zstandard.frame_content_size(stored) == len(data)
        assert zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False) == data.tobytes()

    def test_lz4(self):
        """An LZ4 block is a raw block without its size."""
        data = compressible(100_000)
        stored = bytes(encode(data, "lz4", 1))
        assert bytes(cramjam.lz4.decompress_block(stored, output_len=len(data))) == data.tobytes()

    def test_zstd_frame_that_claims_much_allocates_nothing(self):
        """A frame that claims a terabyte is refused by what it claims."""
        header = bytes.fromhex("28b52ffde0") + (1 << 40).to_bytes(8, "little")
        with pytest.raises(CodecError, match=str(1 << 40)):
            decoded(header, "zstd", 1, 1000)

    def test_zstd_frame_without_size_is_refused(self):
        """A frame that does not tell its content size is not what a writer makes."""
        frame = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(compressible(1000).tobytes())
        with pytest.raises(CodecError):
            decoded(frame, "zstd", 1, 1000)

    @pytest.mark.parametrize(("codec", "unit"), [("zstd", 1 << 17), ("lz4", 1 << 20)])
    def test_no_block_is_smaller_than_the_reader_allows(self, codec, unit):
        """The largest possible ratio, that of zeros, is within what a reader accepts."""
        for nbytes in (unit, 1 << 24):
            stored = encode(np.zeros(nbytes, np.uint8), codec, 1)
            assert nbytes <= len(stored) * CODECS[codec].max_ratio


class TestCheapest:
    ZSTD, LZ4 = Choice("zstd", 1), Choice("lz4", 1)

    def pick(self, zstd, lz4, bandwidth=1e9, threads=2, byte_price=BYTE_PRICE):
        trials = [Trial(self.ZSTD, *zstd), Trial(self.LZ4, *lz4)]
        return cheapest(trials, threads=threads, bandwidth=bandwidth, byte_price=byte_price)

    def test_slow_disk_wants_the_smaller(self):
        """On a disk of 50 MB/s the codec that compresses better wins, though it is slower."""
        assert self.pick((4.0, 400e6), (2.5, 800e6), bandwidth=50e6) == self.ZSTD

    def test_fast_disk_wants_the_faster(self):
        """On a disk of 5 GB/s the faster codec wins where it gives away little."""
        assert self.pick((2.5, 400e6), (2.2, 800e6), bandwidth=5e9) == self.LZ4

    def test_bytes_count_on_any_disk(self):
        """However fast the disk, half the bytes are worth some time."""
        assert self.pick((5.0, 500e6), (2.3, 700e6), bandwidth=1e12) == self.ZSTD

    def test_bytes_count_less_in_what_is_spilled(self):
        """What is soon gone, and waited for, is stored in the faster way where a checkpoint is in the smaller."""
        trials = (3.6, 550e6), (2.4, 900e6)
        prices = (BYTE_PRICE, BYTE_PRICE_OF_SPILLS)
        assert [self.pick(*trials, bandwidth=3e9, byte_price=p) for p in prices] == [self.ZSTD, self.LZ4]

    def test_more_threads_make_cpu_time_cheaper(self):
        """One thread takes the faster codec where sixteen take the smaller."""
        trials = (3.0, 300e6), (2.4, 700e6)
        assert [self.pick(*trials, threads=n) for n in (1, 16)] == [self.LZ4, self.ZSTD]

    def test_bound_by_the_disk_the_smaller_wins_at_once(self):
        """With both bound by the disk the stored size decides."""
        assert self.pick((2.1, 1e12), (2.0, 1e12), bandwidth=1e6) == self.ZSTD

    def test_nothing_to_choose_from(self):
        """Without a trial that gains enough the buffer is raw."""
        assert cheapest([], threads=1, bandwidth=1e9) == RAW

    def test_price_of_a_byte_is_what_the_module_says(self):
        """A stored byte costs as much as a disk of 200 MB/s takes for it."""
        assert pytest.approx(200e6) == 1 / BYTE_PRICE


class TestChoose:
    def choose(self, array, codec="auto"):
        return choose(array, codec, threads=2, bandwidth=1e9)

    def test_noise_is_raw(self):
        """What does not compress is left as it is."""
        assert self.choose(noise(1 << 20)) == RAW

    def test_compressible_is_never_raw(self, monkeypatch):
        """What compresses well is compressed though the disk be infinitely fast."""
        assert choose(compressible(1 << 20), "auto", threads=1, bandwidth=1e15).codec in CODECS

    def test_rising_integers_are_shuffled(self):
        """A column of ids is shuffled by its item size, for both codecs."""
        ids = np.cumsum(np.random.default_rng(1).integers(1, 12, 300_000))
        assert {self.choose(ids, codec).width for codec in ("zstd", "lz4")} == {8}

    def test_text_is_not_shuffled(self):
        """Bytes have no width."""
        text = np.frombuffer(b"GET /index.html 200\nPOST /form 404\n" * 30_000, np.uint8)
        assert self.choose(text).width == 1

    def test_tiny_is_raw(self):
        """A buffer that fits beside its own entry in the footer is not worth a codec."""
        assert self.choose(np.zeros(200, np.uint8), "zstd") == RAW

    def test_none_looks_at_nothing(self, monkeypatch):
        """With codec "none" no sample is taken."""
        monkeypatch.setattr(choice, "sample", None)
        assert self.choose(np.zeros(1 << 20), "none") == RAW

    @pytest.mark.parametrize("codec", ["zstd", "lz4"])
    def test_what_is_asked_for_is_taken(self, codec):
        """A codec that is named is used on whatever data."""
        assert {self.choose(data, codec).codec for data in (noise(1 << 20), compressible(1 << 20))} == {codec}

    @pytest.mark.parametrize("dtype", ["u1", "?", "i2", "f4", "i8", "c16", "V3", "V12", "V48", "S7", "U5"])
    @pytest.mark.parametrize("step", [1, -1, 3])
    def test_any_dtype_and_stride(self, dtype, step):
        """Every flat array gets a choice, of a width that divides its items."""
        array = np.resize(compressible(60_000 * np.dtype(dtype).itemsize), 60_000 * np.dtype(dtype).itemsize)
        chosen = self.choose(array.view(dtype)[::step])
        assert chosen.codec in CODECS
        assert np.dtype(dtype).itemsize % chosen.width == 0


class TestSample:
    @pytest.mark.parametrize("nbytes", [300, 32 << 10, 1 << 20, 100 << 20])
    def test_bounded(self, nbytes):
        """A sample is small, whatever the buffer."""
        sampled = sample(np.zeros(nbytes // 8))
        assert min(nbytes // 8 * 8, 32 << 10) <= len(sampled) <= 256 << 10

    def test_reaches_both_ends(self):
        """First and last item are in it, and items are whole."""
        array = np.arange(10_000_000)[::-1]
        items = sample(array).view(np.int64)
        assert items[0] == array[0]
        assert items[-1] == array[-1]


class TestDisk:
    def test_learns(self):
        """The bandwidth follows what files took, a step at a time."""
        disk = Disk(1e9)
        disk.wrote(100 << 20, 1.0)
        once = disk.bandwidth
        for _ in range(50):
            disk.wrote(100 << 20, 1.0)
        assert 100 << 20 < once < 1e9
        assert disk.bandwidth == pytest.approx(100 << 20, rel=0.01)

    def test_small_files_tell_nothing(self):
        """A file of a kilobyte measures the latency of a flush, not the bandwidth."""
        disk = Disk(1e9)
        disk.wrote(1000, 0.01)
        assert disk.bandwidth == 1e9
