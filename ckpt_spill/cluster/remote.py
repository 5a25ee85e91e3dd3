"""A partition file on a peer: read by ranges, as it lies on the peer's disk.

The peer decodes nothing and keeps no state; the reader checks what arrives as if it came from a disk of its own. Ranges
are asked for by the threads that decode them, a few at a time, so a file is never in memory as a whole.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from typing import Any

import numpy as np
from distributed.protocol.serialize import to_serialize

from ckpt_spill.store.codecs import Bytes
from ckpt_spill.store.descriptors import open_regular
from ckpt_spill.store.runs import Run
from ckpt_spill.store.store import Store

RANGE = 8 << 20
UNSEEN = {"unseen": True}
"""The answer of a peer that does not see the store, and so cannot say whether the file is there."""

_PATIENCE = 10.0  # seconds for one range


class PeerLostError(Exception):
    """A peer, an address, cannot say: it does not answer, or does not see the store. The file may be there."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"worker {peer} {reason}")
        self.peer = peer


@dataclasses.dataclass(frozen=True)
class FileId:
    """What to ask a peer for.

    Parameters
    ----------
    store : str
        Id of the store.
    run : Run
    partition : int
    digest : bytes
    """

    store: str
    run: Run
    partition: int
    digest: bytes

    def packed(self) -> list[Any]:
        """Give plain values, to be sent."""
        return [self.store, self.run.checkpoint, self.run.directory, self.partition, self.digest]

    @classmethod
    def unpack(cls, store: str, checkpoint: str, directory: str, partition: int, digest: bytes) -> FileId:
        """Take what was sent.

        Raises
        ------
        ValueError
            It names no run, and so no path.
        """
        if (run := Run.parse(checkpoint, directory)) is None:
            raise ValueError(f"{directory!r} is no run of checkpoint {checkpoint!r}")
        return cls(store, run, partition, digest)


class RemoteFile:
    """A source of bytes for ``partition.read`` and ``partition.verify``, for use in threads of a worker.

    Parameters
    ----------
    worker : distributed.Worker
        This worker.
    peer : str
        Address of the other.
    file : FileId

    Raises
    ------
    FileNotFoundError
        The peer sees the store, and the file is not there or cannot be read.
    PeerLostError
        It does not answer, or does not see the store. Both are also raised when reading.
    """

    def __init__(self, worker: Any, peer: str, file: FileId) -> None:
        self._worker, self._peer, self._file = worker, peer, file
        self.name = f"partition {file.partition} in store {file.store} at {peer}"
        self.fetched, self.seconds = 0, 0.0
        self.size = int(self._ask(0, 0)["size"])

    def read_into(self, out: Bytes, offset: int) -> bool:
        """Fill `out` from `offset` on; False when the file ends before."""
        for start in range(0, len(out), RANGE):
            part = out[start : start + RANGE]
            began = time.monotonic()
            data = np.frombuffer(self._ask(offset + start, len(part))["data"], np.uint8)
            self.seconds += time.monotonic() - began
            self.fetched += len(data)
            if len(data) != len(part):
                return False
            part[:] = data
        return True

    def _ask(self, offset: int, length: int) -> Any:
        asking = asyncio.run_coroutine_threadsafe(self._request(offset, length), self._worker.loop.asyncio_loop)
        try:
            answer = asking.result(_PATIENCE)
        except (OSError, TimeoutError) as e:  # of which distributed's communication errors are
            asking.cancel()
            raise PeerLostError(self._peer, f"does not answer: {e!r}") from e
        if answer is None:
            raise PeerLostError(self._peer, "does not have the plugin")
        if answer == UNSEEN:
            raise PeerLostError(self._peer, f"does not see store {self._file.store}")
        if "missing" in answer:
            raise FileNotFoundError(f"{self.name}: {answer['missing']}")
        return answer

    async def _request(self, offset: int, length: int) -> Any:
        peer = self._worker.rpc(self._peer)
        return await peer.ckpt_spill_read(file=self._file.packed(), offset=offset, length=length)


def read_range(store: Store, file: FileId, *, offset: int, length: int) -> dict[str, Any]:
    """Answer a peer: the size of a partition file, and a range of it as it lies on disk; or why there is none."""
    try:
        with open_regular(store.partition_path(file.run, file.partition, file.digest)) as opened:
            data = np.empty(max(min(length, opened.size - offset), 0), np.uint8)
            count = len(data) if opened.read_into(data, offset) else 0
            return {"size": opened.size, "data": to_serialize(data[:count].data)}
    except (OSError, ValueError) as e:
        if Store.open(store.root) != store:  # the disk went away since it was looked for
            return UNSEEN
        return {"missing": os.strerror(e.errno) if isinstance(e, OSError) and e.errno else str(e)}
