"""The disk tier: a mapping of task keys to values in partition files."""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from dask.typing import Key
from distributed.metrics import context_meter
from distributed.protocol.serialize import deserialize_bytes, serialize_bytelist
from distributed.sizeof import safe_sizeof
from distributed.spill import MaxSpillExceeded, PickleError, SpilledSize

from ckpt_spill.clean import CleanFile
from ckpt_spill.errors import CorruptPartitionError, MissingPartitionError, ReadError, UnserializableError
from ckpt_spill.spill.area import SpillArea
from ckpt_spill.spill.files import Counting, created, unlink
from ckpt_spill.store import partition as partition_files
from ckpt_spill.store.descriptors import open_regular
from ckpt_spill.store.device.paths import ANY, Paths
from ckpt_spill.store.partition import CodecName, Identity
from ckpt_spill.store.store import Store

IDENTITY = Identity("spill", 0, 0)
"""Of files that are no checkpoint's. Which value is in one is told by its digest."""

_LOST = (
    "What was spilled of {!r} is lost: tasks of this worker that need it fail, clients and other workers go on waiting "
    "for it. Cancel or release it, and compute it again"
)

logger = logging.getLogger("ckpt_spill")


class Spilled(NamedTuple):
    """A file of the tier.

    Attributes
    ----------
    file : CleanFile
        Path and content. The path is ours alone, also where it is a link to a file of a checkpoint.
    packed : bool
        Whether the value is not in it as itself but as dask serialises it, since it cannot be pickled.
    is_whole : bool
        Whether it would do as a file of a checkpoint: it has the key's value, not what a buffer above this tier made of
        that, and it is certain that it can be loaded.
    """

    file: CleanFile
    packed: bool = False
    is_whole: bool = True


class DiskTier(MutableMapping[Key, object]):
    """Values in partition files of this process' own.

    Parameters
    ----------
    areas : sequence of SpillArea
        One for each drive. Values go to them in turn, and to the next where one is full.
    codec : str
    max_weight : int or False
        Bytes on disk at most.
    threads : int
        That compress and decompress.
    paths : Paths
        By which ways bytes may go between files and a GPU.

    Attributes
    ----------
    noted : dict
        By key, the checkpoint's file of a value that is about to be set. Whoever runs the tasks puts it there.
    clean : dict
        By key, the checkpoint's file of a value that was read from one and is not to be written: it gets a second name
        in an area instead, to stay when the checkpoint is deleted, and keeps that as long as the value is here.
        Who sets a value moves it here.
    awaited : set
        Keys of which it is not known yet whether they belong in ``clean``. Whoever finds out puts them there, and takes
        them out.
    stand_ins : tuple of type
        Of values that a buffer above this tier has made of others.
    weight_by_key, total_weight
        As those of ``distributed.spill.Slow``. A clean value has no bytes on disk.
    """

    def __init__(
        self,
        areas: Sequence[SpillArea],
        *,
        codec: CodecName,
        max_weight: int | Literal[False],
        threads: int,
        paths: Paths = ANY,
    ) -> None:
        self.noted: dict[Key, CleanFile] = {}
        self.clean: dict[Key, CleanFile] = {}
        self.awaited: set[Key] = set()
        self.stand_ins: tuple[type, ...] = ()
        self.max_weight = max_weight
        self.weight_by_key: dict[Key, SpilledSize] = {}
        self.total_weight = SpilledSize(0, 0)
        self._areas, self._codec, self._threads, self._paths = list(areas), codec, threads, paths
        self._other_areas: list[SpillArea] = []
        self._files: dict[Key, Spilled] = {}
        self._turns = itertools.count()

    # --------------------------------------------------------------------------------------------------- a mapping
    def __getitem__(self, key: Key) -> object:
        file, packed, *_ = self._files[key]
        try:
            with context_meter.meter("disk-read", "seconds"), open_regular(file.path) as opened:
                counting = Counting(opened)
                value = partition_files.read(
                    counting,
                    file.identity,
                    file.digest,
                    columns=file.columns,
                    library=file.library,
                    threads=self._threads,
                    paths=self._paths,
                )
        except FileNotFoundError as e:
            raise MissingPartitionError(f"{file.path} is gone. {_LOST.format(key)}", path=file.path) from e
        except CorruptPartitionError as e:
            raise CorruptPartitionError(f"{e}. {_LOST.format(key)}", **e.details) from e
        context_meter.digest_metric("disk-read", 1, "count")
        context_meter.digest_metric("disk-read", counting.count, "bytes")
        return deserialize_bytes(value.data) if packed else value

    def __setitem__(self, key: Key, value: object) -> None:
        self._files[key], nbytes = self._link(key) or self._write(key, value)
        weight = self.weight_by_key[key] = SpilledSize(safe_sizeof(value), nbytes)
        self.total_weight += weight

    def __delitem__(self, key: Key) -> None:
        file = self._files.pop(key).file
        self.total_weight -= self.weight_by_key.pop(key)
        clean = self.clean.get(key)
        if clean and clean.content == file.content:
            self.clean[key] = file  # whose link stays for the next time: the checkpoint may be deleted until then
            return
        unlink(file.path)

    def share(self, key: Key, target: Key) -> bool:
        """Take the value of a key for the one that another has in a file of a checkpoint; tell whether it has.

        A path is one key's alone: a link of the other's is linked again.
        """
        if (file := self.clean.get(target)) is None or key in self.clean:
            return file is not None
        if self._is_ours(file):
            path = self._area_in(file.store).new_path()
            try:
                os.link(file.path, path)
            except OSError as e:
                logger.info("%r is written when it is evicted: %s cannot be linked: %s", key, file.path, e)
                return False
            file = file._replace(path=path)
        self.clean[key] = file
        return True

    def forget(self, key: Key) -> None:
        """Take the value of a key for one that is in no file of a checkpoint."""
        file, spilled = self.clean.pop(key, None), self._files.get(key)
        goes_with_value = spilled and file and spilled.file.path == file.path
        if file and self._is_ours(file) and not goes_with_value:
            unlink(file.path)

    def __contains__(self, key: object) -> bool:
        return key in self._files

    def __iter__(self) -> Iterator[Key]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def whole_file(self, key: Key) -> CleanFile | None:
        """Give the file that holds the value of a key and nothing else; None where there is none.

        In whatever thread this is asked: the file may go at any time.
        """
        spilled = self._files.get(key)
        return spilled.file if spilled and spilled.is_whole and spilled.file.is_as_saved else None

    def close(self) -> None:
        """Remove all files."""
        self._files.clear()
        self.weight_by_key.clear()
        self.total_weight = SpilledSize(0, 0)
        for area in self._areas + self._other_areas:
            area.close()

    # ----------------------------------------------------------------------------------------------------- writing
    def _link(self, key: Key) -> tuple[Spilled, int] | None:
        """Give the checkpoint's file of a clean value a second name; None where that cannot be done."""
        if (clean := self.clean.get(key)) is None:
            return None
        try:
            if self._is_ours(clean):
                partition_files.read_footer(clean.path, clean.identity, clean.digest)
                return Spilled(clean), 0
            path = self._area_in(clean.store).new_path()
            os.link(clean.path, path)
            try:
                partition_files.read_footer(path, clean.identity, clean.digest)
            except BaseException:
                unlink(path)
                raise
        except (OSError, ReadError) as e:
            logger.info("%r is written when it is evicted: its file %s cannot be used: %s", key, clean.path, e)
            return None
        return Spilled(clean._replace(path=path)), 0

    def _is_ours(self, file: CleanFile) -> bool:
        directory = os.path.dirname(file.path)
        return any(area.directory == directory for area in self._areas + self._other_areas)

    def _area_in(self, store: Store) -> SpillArea:
        for area in self._areas + self._other_areas:
            if area.store == store:
                return area
        self._other_areas.append(SpillArea(store))
        return self._other_areas[-1]

    def _write(self, key: Key, value: object) -> tuple[Spilled, int]:
        """Write a file, on the next drive that has room."""
        room = math.inf if self.max_weight is False else self.max_weight - self.total_weight.disk
        if room <= 0:
            raise MaxSpillExceeded(key)
        with context_meter.meter("disk-write", "seconds"):
            try:
                spilled, nbytes = self._write_any(value)
            except OSError:
                raise
            except Exception as e:
                raise PickleError(key) from e
        if nbytes > room:
            unlink(spilled.file.path)
            raise MaxSpillExceeded(key)
        context_meter.digest_metric("disk-write", 1, "count")
        context_meter.digest_metric("disk-write", nbytes, "bytes")
        return spilled, nbytes

    def _write_any(self, value: object) -> tuple[Spilled, int]:
        try:
            return self._write_somewhere(value, packed=False)
        except UnserializableError:
            if (frames := _frames_of(value)) is None:
                raise
            return self._write_somewhere(frames, packed=True)

    def _write_somewhere(self, value: object, *, packed: bool) -> tuple[Spilled, int]:
        first = next(self._turns) % len(self._areas)
        *others, last = self._areas[first:] + self._areas[:first]
        for area in others:
            try:
                return self._write_to(area, value, packed=packed)
            except OSError as e:
                logger.warning("spilling to another drive than that of %s: %s", area.directory, e)
        return self._write_to(last, value, packed=packed)

    def _write_to(self, area: SpillArea, value: object, *, packed: bool) -> tuple[Spilled, int]:
        path = area.new_path()
        with created(path) as fd:
            written = partition_files.write(
                fd,
                value,
                IDENTITY,
                codec=self._codec,
                threads=self._threads,
                durable=False,
                prove=False,
                paths=self._paths,
            )
        file = CleanFile(area.store, path, IDENTITY, written.digest, None)
        whole = written.proven and not packed and not isinstance(value, self.stand_ins)
        return Spilled(file, packed, whole), written.stored_nbytes


def _frames_of(value: object) -> np.ndarray | None:
    """Serialise a value as dask does, which also knows types that pickle does not; None where that fails, too."""
    try:
        frames = serialize_bytelist(value, serializers=("dask", "pickle"), on_error="raise")
    except TypeError:
        return None
    return np.frombuffer(b"".join(frames), np.uint8)
