"""What reads cost the scheduler, beside tasks of ``dd.from_map``.

    python -m benchmarks.scheduler_cost [--partitions N] [--rounds N] [--check]

The sum of a frame of one row in each partition, on in-process clusters of four workers with one thread:

- from_map: the frame is made by ``dd.from_map``, on a cluster without any plugin, and not fused, so that the graph has
  as many tasks as the others, of the same shape; the usual, fused form is there for information;
- rehydrated: the same frame, saved and read again, by workers that all see all files;
- held: the same again, on a cluster whose workers see a store of their own each, so that every read is held until the
  worker that sees its file has a free slot.

In one process everything shares an event loop and a lock, so neither wall time nor that of the process says what the
scheduler costs. Taken is the CPU time, of the thread that runs it, of everything that belongs to the scheduler: the
handlers of what clients and workers send, the making and ordering of graphs, which it does in a thread, its periodic
callbacks, and what it or its plugins put on the event loop. Workers and client are not counted, nor is the writing of
messages, which is none in one process. In one round of a hundredth of the size workers do their work, and results are
checked; after that they answer every task at once, without doing it, as their own time would be most of it. The ways
take turns in each round, and the table has the medians. Garbage is collected between the runs and not in them.

Last, the locality queue alone: every partition is put in, found as the best for a store, and taken out.

The promise, at 100,000 partitions: rehydrated costs at most 20 % more for each task than from_map does, and the queue
50 microseconds for each partition. ``--check`` makes it the exit status.
"""

from __future__ import annotations

import argparse
import functools
import gc
import inspect
import logging
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import distributed.scheduler
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster, wait

import ckpt_spill as cs
from ckpt_spill.cluster.queue import LocalityQueue
from ckpt_spill.cluster.scheduler import NAME, Steering
from ckpt_spill.cluster.sight import Seen
from ckpt_spill.cluster.worker import Sharing

WORKERS = 4
TYPE = pickle.dumps(pd.DataFrame)
MORE, MICROSECONDS = 1.2, 50
ROW = "{:<20}{:>10}{:>12}{:>12}{:>15}"


def one_row(number: int) -> pd.DataFrame:
    return pd.DataFrame({"n": np.array([number], "i8")})


# ------------------------------------------------------------------------------------------------- the scheduler's time
class Clock:
    """Adds up the CPU time of functions, each in the thread that runs it. They must not call one another."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Give a function, or a coroutine function, that is timed; while it awaits something it is not."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - started

        @functools.wraps(function)
        async def await_steps(*args: Any, **kwargs: Any) -> Any:
            return await _Steps(function(*args, **kwargs), self)

        return await_steps if inspect.iscoroutinefunction(function) else call


class _Steps:
    """Awaits a coroutine, and times each of its steps."""

    def __init__(self, coroutine: Any, clock: Clock) -> None:
        self._coroutine, self._clock = coroutine, clock

    def __await__(self) -> Generator[Any, Any, Any]:
        step, sent = self._coroutine.send, None
        while True:
            try:
                awaited = self._clock.timed(step)(sent)
            except StopIteration as end:
                return end.value
            try:
                step, sent = self._coroutine.send, (yield awaited)
            except BaseException as e:  # noqa: BLE001 (it is the coroutine's)
                step, sent = self._coroutine.throw, e


class Loop:
    """The event loop as the scheduler sees it: what it puts there is timed."""

    def __init__(self, loop: Any, clock: Clock) -> None:
        self._loop, self._clock = loop, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def add_callback(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._loop.add_callback(self._clock.timed(callback), *args, **kwargs)


@contextmanager
def time_of(scheduler: Any) -> Iterator[Clock]:
    """Time everything that a scheduler and its plugins do, until it is left."""
    clock, offload = Clock(), distributed.scheduler.offload
    handlers, stream_handlers, loop = dict(scheduler.handlers), dict(scheduler.stream_handlers), scheduler.loop
    callbacks = {callback: callback.callback for callback in scheduler.periodic_callbacks.values()}
    lasting = {"register-client", "register-worker", "heartbeat-client"}  # those that run for as long as a connection
    scheduler.handlers.update({op: clock.timed(f) for op, f in handlers.items() if f and op not in lasting})
    scheduler.stream_handlers.update({op: clock.timed(f) for op, f in stream_handlers.items()})
    scheduler.loop = Loop(loop, clock)
    for callback, function in callbacks.items():
        callback.callback = clock.timed(function)
    distributed.scheduler.offload = lambda function, *args, **kwargs: offload(clock.timed(function), *args, **kwargs)
    try:
        yield clock
    finally:
        distributed.scheduler.offload = offload
        for callback, function in callbacks.items():
            callback.callback = function
        scheduler.loop = loop
        scheduler.stream_handlers.update(stream_handlers)
        scheduler.handlers.update(handlers)


# ------------------------------------------------------------------------------------------------------------ measuring
class OwnStore(Sharing):
    """Sees one store only: that whose root ends with the name of its worker."""

    idempotent = False  # it takes the place of the one that the scheduler brings

    async def look(self, roots: Iterable[str]) -> dict[str, Seen]:
        seen = await super().look(roots)
        return {store: place for store, place in seen.items() if place.root.endswith(f"-{self._worker.name}")}


class AtOnce:
    """Stands in for the stream to a worker: every task that is sent is finished in the next turn of the event loop."""

    def __init__(self, scheduler: Any, worker: str) -> None:
        self._scheduler, self._worker = scheduler, worker

    def send(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            if message["op"] == "compute-task":
                self._scheduler.loop.asyncio_loop.call_soon(self._finish, message["key"], message["run_id"])

    def _finish(self, key: Any, run_id: int) -> None:
        now = time.time()
        self._scheduler.stream_handlers["task-finished"](
            key=key,
            worker=self._worker,
            stimulus_id=f"task-finished-{now}",
            run_id=run_id,
            metadata={},
            nbytes=100,
            type=TYPE,
            typename="DataFrame",
            thread=1,
            startstops=[{"action": "compute", "start": now, "stop": now + 0.001}],
            status="OK",
        )


@contextmanager
def answering_at_once(scheduler: Any) -> Iterator[None]:
    """Let nothing that the scheduler sends reach a worker."""
    streams = dict(scheduler.stream_comms)
    scheduler.stream_comms.update({worker: AtOnce(scheduler, worker) for worker in streams})
    try:
        yield
    finally:
        scheduler.stream_comms.update(streams)


@dataclass
class Way:
    """One way to have the frame, where it is computed, and what the rounds measured."""

    client: Client
    sum: Any
    tasks: int = 0
    seconds: list[float] = field(default_factory=list)

    def measure(self) -> None:
        """Let the scheduler have it computed, and forget it."""
        scheduler = self.client.cluster.scheduler
        gc.collect()
        gc.disable()
        try:
            with answering_at_once(scheduler), time_of(scheduler) as clock:
                future = self.client.compute(self.sum, optimize_graph=False)
                wait(future)
                if future.status != "finished" or len(scheduler.tasks) < self.tasks:
                    raise AssertionError(f"{self.tasks} tasks, but {future} and {scheduler.tasks}")
                future.release()
                while scheduler.tasks:
                    time.sleep(0.01)
        finally:
            gc.enable()
        self.seconds.append(clock.seconds)


@contextmanager
def ways(directory: Path, partitions: int) -> Iterator[dict[str, Way]]:
    """Start three clusters and save the frame."""
    frame = dd.from_map(one_row, range(partitions), meta=one_row(0).iloc[:0])
    roots = [str(directory / f"root-{number}") for number in range(WORKERS)]
    manifest = cs.persist_to_disk(frame, name="rows", root=roots, durable=False)
    with ExitStack() as stack:
        stock, seeing, apart = (stack.enter_context(cluster()) for _ in range(3))
        apart.register_plugin(Steering())
        apart.register_plugin(OwnStore())
        sums = {
            "from_map": Way(stock, frame.sum().optimize(fuse=False)),
            "from_map, fused": Way(stock, frame.sum().optimize()),
            "rehydrated": Way(seeing, cs.rehydrate(manifest, client=seeing).sum().optimize()),
            "held": Way(apart, cs.rehydrate(manifest, client=apart).sum().optimize()),
        }
        for way in sums.values():
            way.tasks = len(way.sum.__dask_graph__())
        if NAME not in seeing.cluster.scheduler.plugins or NAME in stock.cluster.scheduler.plugins:
            raise AssertionError("the plugin is not where it should be")
        yield sums


@contextmanager
def cluster() -> Iterator[Client]:
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.ERROR}
    with LocalCluster(n_workers=WORKERS, **options) as started, Client(started) as client:
        yield client


def of_queue(partitions: int) -> float:
    """Give the seconds that the queue alone takes for all partitions, each in one of four stores."""
    queue, stores = LocalityQueue(), [str(number) for number in range(WORKERS)]
    started = time.thread_time()
    for number in range(partitions):
        queue.add(("read", number), (0, 1, number), (stores[number % WORKERS],))
    for number in range(partitions):
        _, key = queue.best((stores[number % WORKERS],))
        queue.discard(key)
    return time.thread_time() - started


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=100_000, help="default 100,000")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--check", action="store_true", help="fail where the promise is not kept")
    options = parser.parse_args()
    n, few = options.partitions, max(options.partitions // 100, 1)
    config = {"distributed.scheduler.validate": False, "dataframe.convert-string": False}
    with tempfile.TemporaryDirectory() as scratch, dask.config.set(config):
        with ways(Path(scratch) / "few", few) as measured:
            for name, way in measured.items():
                with way.client.as_current():
                    result = way.sum.compute(optimize_graph=False)
                if result["n"] != sum(range(few)):
                    raise AssertionError(f"a wrong result of {name}: {result}")
                way.measure()
        with ways(Path(scratch) / "all", n) as measured:
            for _ in range(options.rounds):
                for way in measured.values():
                    way.measure()
    queue = statistics.median(of_queue(n) for _ in range(options.rounds)) / n * 1e6
    each = {name: statistics.median(way.seconds) / way.tasks * 1e6 for name, way in measured.items()}
    print(f"{n:,} partitions, medians of {options.rounds} rounds\n")
    print(ROW.format("", "tasks", "seconds", "us/task", "to from_map"))
    for name, way in measured.items():
        seconds = f"{statistics.median(way.seconds):.2f}"
        ratio = each[name] / each["from_map"]
        print(ROW.format(name, f"{way.tasks:,}", seconds, f"{each[name]:.1f}", f"{ratio:.2f}"))
    print(ROW.format("limit, rehydrated", "", "", "", MORE))
    print(f"\nlocality queue: {queue:.1f} us/partition, limit {MICROSECONDS}")
    more = statistics.median(measured["held"].seconds) - statistics.median(measured["rehydrated"].seconds)
    print(f"held beside rehydrated: {more / n * 1e6:.1f} us/partition")
    kept = each["rehydrated"] <= MORE * each["from_map"] and queue <= MICROSECONDS
    return kept or not options.check


if __name__ == "__main__":
    sys.exit(not main())
