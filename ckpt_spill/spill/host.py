"""Host memory of a worker on top of the store: dask's ``SpillBuffer`` with another disk tier.

As a preload of ``dask worker``: ``--preload ckpt_spill.spill.host``.

What is used of distributed beyond its documented interface: what ``SpillBuffer`` is made of (its ``slow`` is a
``zict.Cache`` around what tells ``total_weight``), ``Worker._instances``, that a worker closes its ``extensions``, and,
in the preload, that it has its memory in two places.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import weakref
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, MutableMapping
from typing import Any

import dask
import zict
from dask.typing import Key
from dask.utils import parse_bytes
from distributed import Worker
from distributed.sizeof import safe_sizeof
from distributed.spill import HandledError, MaxSpillExceeded, PickleError, SpillBuffer
from zict.common import nodefault

from ckpt_spill.clean import CleanFile
from ckpt_spill.config import Settings
from ckpt_spill.errors import RootError
from ckpt_spill.spill.area import SpillArea
from ckpt_spill.spill.tier import DiskTier
from ckpt_spill.store.device.paths import Paths
from ckpt_spill.store.partition import CodecName
from ckpt_spill.store.preflight import check_root

_FAR = 10_000
"""Keys that are looked through for one to evict; more would take longer than writing a small one."""

logger = logging.getLogger("ckpt_spill")


class CleanFirst(zict.LRU[Key, object]):
    """Evicts what need not be written before what has to be; of each, what was not used for longest.

    What has to be written is passed over for up to half of what is held. Were it always, a few clean values among many
    others, used again and again, would be read anew each time. What may turn out to be clean any moment is evicted when
    there is nothing else.

    Parameters
    ----------
    clean : mapping
        Keys of what need not be written; kept by others.
    awaited : container
        Keys of which that is not known yet; kept by others.
    """

    def __init__(self, *args: Any, clean: Mapping[Key, object], awaited: Container[Key], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clean, self._awaited = clean, awaited

    def evict(self, key: Any = nodefault) -> Any:
        """Evict a key, or the one that is next."""
        if key is nodefault and not self.heavy:
            with self.lock:
                key = self._next()
        return super().evict(key)

    def _next(self) -> Any:
        oldest: Any = nodefault
        passed = 0.0
        for key in itertools.islice(self.order, _FAR):
            if key in self._clean:
                return key
            if key in self._awaited:
                continue
            if oldest is nodefault:
                oldest = key
            passed += self.weights[key]
            if passed > self.total_weight / 2 or not self._clean:
                break
        return oldest


class HostSpill(SpillBuffer):
    """Worker memory that evicts what was not used for longest to partition files in a store.

    Parameters
    ----------
    tier : DiskTier
    target : int or None
        Bytes of managed memory to keep at most. None: dask's fraction ``target`` of the limit of the worker whose
        memory this is.
    part : mapping, optional
        Which of the tier's keys are this buffer's; all of them, where none is given.
    owner : mapping, optional
        The memory of a worker that this is a part of, where it is not all of it.

    See Also
    --------
    ckpt_spill.host_spill : Makes it for a cluster.
    """

    def __init__(
        self,
        tier: DiskTier,
        target: int | None,
        part: MutableMapping[Key, object] | None = None,
        owner: object | None = None,
    ) -> None:
        self.tier = tier  # first: what closes this needs it, and comes after a failure, too
        # Not SpillBuffer's own, which makes a disk tier.
        limit = sys.maxsize if target is None else target
        slow = zict.Cache(tier if part is None else part, zict.WeakValueMapping())
        zict.Buffer.__init__(self, fast={}, slow=slow, n=limit, weight=_sizeof)
        hooks = {"on_evict": [self.fast_to_slow], "on_cancel_evict": [self._cancel_evict]}
        self.fast = CleanFirst(limit, {}, weight=_sizeof, clean=tier.clean, awaited=tier.awaited, **hooks)
        self.logged_pickle_errors = set()
        self.cumulative_metrics = defaultdict(float)
        self._find_target = target is None
        self._owner = weakref.ref(self if owner is None else owner)
        self._joined = False

    @property
    def noted(self) -> dict[Key, CleanFile]:
        """By key, files that hold just what the value is that will be set next."""
        return self.tier.noted

    def learn(self, key: Key, file: CleanFile) -> None:
        """Hear that the value of a key is what is in a file, if it is still here."""
        if key in self:
            self.tier.clean.setdefault(key, file)

    def learn_alias(self, key: Key, target: Key) -> bool:
        """Hear that the value of a key is that of another one; tell whether that is known to be in a file."""
        return key in self and self.tier.share(key, target)

    def __setitem__(self, key: Key, value: object) -> None:
        """Keep a value in memory, or, where it is larger than all of the target, on disk.

        As with ``SpillBuffer`` nothing is lost: what cannot be evicted stays in memory, and is logged.

        Raises
        ------
        Exception
            The value is larger than the target and cannot be serialised. The key has been forgotten.
        """
        if not self._joined:
            self._joined = True
            self._join()
        self.tier.forget(key)
        if file := self.tier.noted.pop(key, None):
            self.tier.clean[key] = file
        # Not SpillBuffer's own, which takes it for granted that a key is in memory when something could not be evicted:
        # this one may have been, and another not.
        with contextlib.suppress(HandledError), self._capture_metrics(), self._handle_errors(key):
            zict.Buffer.__setitem__(self, key, value)
            self.logged_pickle_errors.discard(key)

    def _join(self) -> None:
        """Take the limit of the worker whose memory this is, and end with it."""
        if (worker := _worker_of(self._owner())) is None:
            return
        worker.extensions["ckpt-spill-memory"] = self._owner()  # which a worker closes with itself
        if self._find_target and worker.memory_manager.memory_limit:
            self.n = target_of(worker.memory_manager.memory_limit)

    def __getitem__(self, key: Key) -> object:
        """Give a value. Where room has to be made for it and cannot be, others stay in memory, and that is logged."""
        try:
            return super().__getitem__(key)
        except (OSError, MaxSpillExceeded, PickleError) as e:
            value = self.fast[key] if key in self.fast else self.slow[key]  # raises again what reading has raised
            with contextlib.suppress(HandledError), self._handle_errors(None):
                raise e  # noqa: TRY201
            return value

    def __delitem__(self, key: Key) -> None:
        super().__delitem__(key)
        self.tier.forget(key)

    def evict(self) -> int:
        """Move what was not used for longest to disk. Never raises.

        Returns
        -------
        int
            Its bytes in memory; -1 where it stays in memory, or there is nothing to evict. The reason is logged.
        """
        try:
            return super().evict()
        except Exception:
            logger.exception("nothing could be evicted from memory")
            return -1

    def close(self) -> None:
        """Remove all files."""
        super().close()
        self.tier.close()


def open_tier(worker_local_directory: str, roots: tuple[str, ...] | None, codec: CodecName) -> DiskTier:
    """Make the disk tier of a worker, in its process.

    Raises
    ------
    RootError
        A root cannot be used; the message says why.
    """
    settings = Settings.here(roots)
    areas, problems = [], []
    for root in settings.roots:
        store, found, warnings = check_root(root, scratch=[os.path.dirname(worker_local_directory)])
        problems += [f"{root}: {problem}" for problem in found]
        for warning in warnings:
            logger.warning("%s", warning)
        if store:
            try:
                areas.append(SpillArea(store))
            except OSError as e:
                problems.append(f"{root}: {e}")
    if problems:
        raise RootError("cannot spill here:\n  " + "\n  ".join(problems), problems=problems)
    max_spill = dask.config.get("distributed.worker.memory.max-spill")
    max_weight = False if max_spill is False else parse_bytes(max_spill)
    paths = Paths(settings.gds, settings.nvcomp)
    return DiskTier(areas, codec=codec, max_weight=max_weight, threads=settings.threads, paths=paths)


def target_of(memory_limit: int) -> int:
    """Give the bytes of managed memory to keep at most, by dask's configuration."""
    fraction = dask.config.get("distributed.worker.memory.target")
    return int(memory_limit * fraction) if fraction else sys.maxsize


def _sizeof(key: Key, value: object) -> int:  # noqa: ARG001
    return safe_sizeof(value)


def _worker_of(data: object) -> Any:
    """Give the worker whose memory this is; None where there is none."""
    managers = {worker: getattr(worker, "memory_manager", None) for worker in list(Worker._instances)}  # noqa: SLF001
    return next((worker for worker, manager in managers.items() if manager and manager.data is data), None)


def replace_memory(worker: Any, data: MutableMapping[Key, object]) -> None:
    """Give a worker that has just been made another memory."""
    if worker.data:
        raise RuntimeError(f"worker {worker.address} has data already; its memory cannot be replaced")
    worker.memory_manager.data = worker.state.data = data


@contextlib.contextmanager
def or_no_worker(worker: Any) -> Iterator[None]:
    """Keep a worker from starting whose memory cannot be made.

    Dask only logs what a preload raises, and goes on: with another memory, on another disk.
    """
    if not isinstance(worker, Worker):
        raise TypeError(f"this preload is for `dask worker`, not for a {type(worker).__name__}")
    try:
        yield
    except Exception as e:
        logger.critical("this worker does not start: %s", e)
        raise SystemExit(1) from e


async def dask_setup(worker: Any) -> None:
    """Preload."""
    with or_no_worker(worker):
        replace_memory(worker, HostSpill(open_tier(worker.local_directory, None, "auto"), None))
