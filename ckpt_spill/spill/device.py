"""Device memory of a worker on top of host memory on top of the store: dask-cuda's ``DeviceHostFile`` over a store.

As a preload of ``dask cuda worker``: ``--preload ckpt_spill.spill.device``.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sized
from typing import Any

from dask.typing import Key
from dask_cuda.device_host_file import DeviceHostFile, DeviceSerialized
from dask_cuda.is_device_object import is_device_object
from dask_cuda.is_spillable_object import is_spillable_object
from distributed.spill import SpilledSize

from ckpt_spill.clean import CleanFile
from ckpt_spill.spill.host import HostSpill, open_tier, or_no_worker, replace_memory
from ckpt_spill.spill.tier import DiskTier

logger = logging.getLogger("ckpt_spill")


class DeviceSpill(DeviceHostFile):  # type: ignore[misc]  # mypy does without dask-cuda, which is not everywhere
    """Worker memory that evicts from the device to the host, and from the host to partition files in a store.

    Unlike its base it evicts what cuDF spills itself, too, as it would otherwise never leave host memory; counts and
    lists all keys, also without a limit for the device; finds a key without reading its value; and does not keep an
    older value of a key that is set to one of another kind.

    Parameters
    ----------
    worker_local_directory : str
    tier : DiskTier
    device_memory_limit : int or None
        Bytes on the device at most; None for no limit.
    target : int or None
        Bytes of managed memory on the host to keep at most, as for ``HostSpill``.

    See Also
    --------
    ckpt_spill.device_spill : Makes it for a cluster.
    """

    def __init__(
        self, worker_local_directory: str, *, tier: DiskTier, device_memory_limit: int | None, target: int | None
    ) -> None:
        self.tier = tier  # first: what closes this needs it, and comes after a failure, too
        super().__init__(worker_local_directory, device_memory_limit=device_memory_limit, memory_limit=None)
        self.disk = self.slow = tier
        tier.stand_ins = (DeviceSerialized,)
        self.host_buffer = HostSpill(tier, target, _Part(tier), owner=self)
        self.host = self.host_buffer.fast.d
        self.device_host_func.d = self.host_buffer
        self.others = HostSpill(tier, sys.maxsize, _Part(tier), owner=self)
        self.fast = _Sizes(self.host_buffer.fast, self.others.fast)
        self._limited = device_memory_limit is not None

    # --------------------------------------------------------------------------------------------------- a mapping
    def __setitem__(self, key: Key, value: object) -> None:
        if key in self:
            del self[key]
        if is_spillable_object(value) or is_device_object(value):
            self.tier.noted.pop(key, None)  # a file gives a value on the host
        super().__setitem__(key, value)

    def __getitem__(self, key: Key) -> object:
        """Give a value. Where the device has no room for it, others move to the host.

        Raises
        ------
        MemoryError
            There is nothing left to move.
        """
        while True:
            try:
                return super().__getitem__(key)
            except MemoryError:
                if not self.make_room():
                    raise

    def __contains__(self, key: object) -> bool:
        return key in self.device_keys or key in self.host_buffer or key in self.others

    def __iter__(self) -> Iterator[Key]:
        # A limited buffer of the device has that of the host below it.
        host = () if self._limited else self.host_buffer
        return itertools.chain(self.device_buffer, host, self.others)

    def __len__(self) -> int:
        return sum(map(len, (self.device_buffer, () if self._limited else self.host_buffer, self.others)))

    def close(self) -> None:
        """Remove all files."""
        self.tier.close()

    def set_address(self, addr: str) -> None:
        """Nothing to do: only a log of the base would tell it."""

    # ---------------------------------------------------------------------------------- as distributed's SpillBuffer
    def evict(self) -> int:
        """Move what was not used for longest from the host to disk; after that, what cuDF manages. Never raises.

        Returns
        -------
        int
            Its bytes in memory; -1 where nothing could be evicted. The reason is logged.
        """
        for buffer in (self.host_buffer, self.others):
            if buffer.fast and (weight := buffer.evict()) != -1:
                return weight
        return -1

    def make_room(self) -> bool:
        """Move what was not used for longest from the device to the host, where an allocation has failed. Never raises.

        Returns
        -------
        bool
            Whether something was moved; what could not be moved stays, and is logged.
        """
        if not self._limited or not self.device_buffer.fast:
            return False
        try:
            self.device_buffer.fast.evict()
        except Exception:
            logger.exception("nothing could be evicted from the device")
            return False
        return True

    @property
    def noted(self) -> dict[Key, CleanFile]:
        """By key, files that hold just what the value is that will be set next."""
        return self.tier.noted

    def learn(self, key: Key, file: CleanFile) -> None:
        """Hear that the value of a key is what is in a file, if it is still here; that gives a value on the host."""
        if self._is_on_host(key):
            self.host_buffer.learn(key, file)

    def learn_alias(self, key: Key, target: Key) -> bool:
        """Hear that the value of a key is that of another one; tell whether that is known to be in a file."""
        return self._is_on_host(key) and self._is_on_host(target) and self.host_buffer.learn_alias(key, target)

    def _is_on_host(self, key: Key) -> bool:
        return key not in self.device_keys and key not in self.others

    @property
    def spilled_total(self) -> SpilledSize:
        """Bytes of what is on disk: in memory, and there."""
        return self.tier.total_weight

    @property
    def cumulative_metrics(self) -> Mapping[tuple[str, str], float]:
        """What was read and written so far, by label and unit."""
        return Counter(self.host_buffer.cumulative_metrics) + Counter(self.others.cumulative_metrics)


class _Part(MutableMapping[Key, object]):
    """Those values in a disk tier that were put there through this."""

    def __init__(self, tier: DiskTier) -> None:
        self._tier = tier
        self._keys: set[Key] = set()

    def __getitem__(self, key: Key) -> object:
        if key not in self._keys:
            raise KeyError(key)
        return self._tier[key]

    def __setitem__(self, key: Key, value: object) -> None:
        self._tier[key] = value
        self._keys.add(key)

    def __delitem__(self, key: Key) -> None:
        self._keys.remove(key)
        del self._tier[key]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class _Sizes:
    """The length of several mappings together."""

    def __init__(self, *parts: Sized) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))


async def dask_setup(worker: Any) -> None:
    """Preload. Limits are those that ``dask cuda worker`` was started with."""
    with or_no_worker(worker):
        limit = getattr(getattr(worker.data, "device_buffer", None), "n", None)
        directory = worker.local_directory
        tier = open_tier(directory, None, "auto")
        replace_memory(worker, DeviceSpill(directory, tier=tier, device_memory_limit=limit, target=None))
