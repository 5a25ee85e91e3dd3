"""How the scheduler learns which worker sees which store: workers announce it, and are asked to look again."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ckpt_spill.cluster.sight import Seen, Sight

_LOOK_AGAIN = 1.0  # seconds
_WITHOUT_PLUGIN = 60.0
_ANSWER = 5.0


class Lookout:
    """Keeps a ``Sight`` true, through workers that come and go and disks that are mounted.

    Parameters
    ----------
    scheduler : distributed.Scheduler
    changed : callable
        Called with the address of a worker after it has said what it sees.
    """

    def __init__(self, scheduler: Any, changed: Callable[[str], None]) -> None:
        self.sight = Sight()
        self._scheduler, self._changed = scheduler, changed
        self._roots: set[str] = set()
        self._asked: dict[str, float] = {}  # when, or until when not to

    async def announce(self, worker: str, stores: Mapping[str, Sequence[str]]) -> list[str]:
        """Take what a worker says it sees; give the roots that manifests name, for it to look there too."""
        # One that was removed may still have something to say; one that is not here yet says it again when it is.
        if worker in self._scheduler.workers:
            self._asked.pop(worker, None)
            self._take(worker, stores)
        return sorted(self._roots)

    async def look(self, roots: Sequence[str]) -> None:
        """Let all workers look for stores, also in ``roots``, and wait for their answers, but not for ever."""
        self._roots.update(roots)
        now = time.monotonic()
        await self._ask([w for w in self._scheduler.workers if self._asked.get(w, -math.inf) <= now])

    def look_again(self, roots: Iterable[str] = ()) -> None:
        """Let workers look once more, as stores may have been made, or mounted, meanwhile."""
        self._roots.update(roots)
        now = time.monotonic()
        workers = [w for w in self._scheduler.workers if now - self._asked.get(w, -math.inf) >= _LOOK_AGAIN]
        if workers:
            self._asked.update(dict.fromkeys(workers, now))
            self._scheduler.loop.add_callback(self._ask, workers)

    def forget(self, worker: str) -> None:
        """Forget a worker that is gone."""
        self.sight.remove(worker)
        self._asked.pop(worker, None)

    async def _ask(self, workers: Sequence[str]) -> None:
        message = {"op": "ckpt_spill_look", "roots": sorted(self._roots)}
        asking = [self._scheduler.broadcast(msg=message, workers=[w], on_error="ignore") for w in workers]
        answers = await asyncio.gather(*(asyncio.wait_for(a, _ANSWER) for a in asking), return_exceptions=True)
        found = {w: stores for answer in answers if isinstance(answer, dict) for w, stores in answer.items()}
        for worker, stores in found.items():
            if worker not in self._scheduler.workers:
                continue
            if stores is None:  # it has no plugin, and announces itself when it gets it
                self._asked[worker] = time.monotonic() + _WITHOUT_PLUGIN
            else:
                self._take(worker, stores)

    def _take(self, worker: str, stores: Mapping[str, Sequence[str]]) -> None:
        self.sight.update(worker, {store: Seen(*seen) for store, seen in stores.items()})
        self._changed(worker)
