"""Buffers on their way from a file to a device, where not all of them goes through the host.

Raw ones are read directly, and checked there. Compressed ones are read and checked on the host as they are stored, and
decoded on the device. Both are for large buffers only; what else is needed on a device comes decoded from the host.
"""

from __future__ import annotations

import itertools
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from ckpt_spill.errors import ReadError
from ckpt_spill.store import blocks
from ckpt_spill.store.blocks import BlockError, Run
from ckpt_spill.store.codecs import Bytes, CodecError, zstd_content_size
from ckpt_spill.store.descriptors import OpenFile, Source
from ckpt_spill.store.device import arrays, copies, direct, hashes, nvcomp
from ckpt_spill.store.device.libraries import failing_to_read
from ckpt_spill.store.device.memory import Memory
from ckpt_spill.store.device.paths import Paths
from ckpt_spill.store.footer import PAGE, Footer
from ckpt_spill.store.pool import ordered

_SMALL = 1 << 20
_RUNS_AT_ONCE = 16  # of four blocks: 64 MiB on the device, and as much for what is decoded


class Ways:
    """Which buffers of a file can be read to a device, as a container of their numbers; and the reading."""

    def __init__(self, file: Source, footer: Footer, paths: Paths, threads: int) -> None:
        self._file, self._footer, self._paths, self._threads = file, footer, paths, threads

    def __contains__(self, number: object) -> bool:
        if type(number) is not int or not 0 <= number < len(self._footer.buffers):
            return False
        return self._footer.buffers[number].length >= _SMALL and (self._is_direct(number) or self._is_decoded(number))

    def _is_direct(self, number: int) -> bool:
        buffer = self._footer.buffers[number]
        aligned = buffer.is_raw and not buffer.offset % PAGE
        return aligned and isinstance(self._file, OpenFile) and self._paths.direct()

    def _is_decoded(self, number: int) -> bool:
        return not self._footer.buffers[number].is_raw and self._paths.decoding()

    def read(self, number: int, memory: Memory) -> None:
        """Read, check and decode a buffer into memory of its length.

        Raises
        ------
        BlockError
            A block fails its checksum or does not decode.
        ReadError
            A library or the device failed; the file is not at fault.
        """
        try:
            with failing_to_read():
                (self._read_direct if self._is_direct(number) else self._read_decoded)(number, memory)
        except BlockError:
            raise
        except ValueError as e:
            raise ReadError(f"a partition cannot be brought to the device: {type(e).__name__}: {e}") from e

    def _read_direct(self, number: int, memory: Memory) -> None:
        buffer = self._footer.buffers[number]
        if not isinstance(self._file, OpenFile) or not direct.read(self._file.fd, buffer.offset, memory):
            raise BlockError("ends before its last block", number, 0)
        crcs, _ = hashes.hash_blocks(memory, self._footer.block, digests=False)
        for block, (found, crc) in enumerate(zip(crcs, buffer.crcs, strict=True)):
            if found != crc:
                raise BlockError("fails its CRC-32C", number, block)

    def _read_decoded(self, number: int, memory: Memory) -> None:
        runs, ahead = itertools.tee(blocks.runs(self._footer, {number: None}, frozenset()))
        read = partial(blocks.read_stored, self._file)
        with closing(ordered(read, ahead, weight=lambda run: run.nbytes, threads=self._threads)) as stored:
            pairs = zip(runs, stored, strict=True)
            at = 0
            while batch := list(itertools.islice(pairs, _RUNS_AT_ONCE)):
                at = self._decode(batch, memory, at)

    def _decode(self, batch: list[tuple[Run, Bytes]], memory: Memory, at: int) -> int:
        """Send stored blocks to the device and decode them there, from a place in the buffer on."""
        sources: list[Memory] = []
        targets: list[Memory] = []
        for run, data in batch:
            _check_claims(run, data)
            sent, start = copies.to_device(data), 0
            for stored, raw in zip(run.stored, run.raw, strict=True):
                sources.append(sent.part(start, start + stored))
                targets.append(memory.part(at, at + raw))
                start, at = start + stored, at + raw
        packed = [n for n, (s, t) in enumerate(zip(sources, targets, strict=True)) if s.nbytes < t.nbytes]
        first, decoded = batch[0][0], []
        try:
            if packed:
                decoded = nvcomp.decode(first.codec, [sources[n] for n in packed], [targets[n].nbytes for n in packed])
        except CodecError as e:
            raise BlockError(f"does not decode: {e}", first.buffer, None) from e
        made = dict(zip(packed, decoded, strict=True))
        for n, (source, target) in enumerate(zip(sources, targets, strict=True)):
            found, width = (made[n], first.width) if n in made else (_bytes(source), 1)
            arrays.unshuffle(found, width, _bytes(target))
        return at


def _check_claims(run: Run, data: Bytes) -> None:
    """Look at what zstd frames claim to hold before nvCOMP takes so much memory of the device."""
    at = 0
    for block, (stored, raw) in enumerate(zip(run.stored, run.raw, strict=True), run.first):
        if run.codec == "zstd" and stored < raw:
            try:
                size = zstd_content_size(data[at : at + stored])
            except CodecError as e:
                raise BlockError(f"does not decode: {e}", run.buffer, block) from e
            if size != raw:
                raise BlockError(f"does not decode: {size} bytes in a frame, not {raw}", run.buffer, block)
        at += stored


def _bytes(memory: Memory) -> Any:
    return arrays.view(memory, (memory.nbytes,), np.dtype(np.uint8))
