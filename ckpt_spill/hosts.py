"""Where functions run: on the workers of a dask client, or in this process when there is none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

import dask
from dask.base import get_scheduler
from distributed import Client, as_completed, get_worker, rejoin, secede

from ckpt_spill.errors import CkptSpillError, RefusedError, WriteError
from ckpt_spill.here import errand_of

LOCAL = "local"
Call = tuple[str, Sequence[Any]]
_PATIENCE = 60


class Hosts(Protocol):
    """The processes that see the disks."""

    def each(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """Run a function once in every process; results by address."""

    def at(self, function: Callable[..., Any], calls: Sequence[Call]) -> list[Any]:
        """Run a function in some processes at the same time; results in the order of the calls."""

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Make these the hosts that dask optimises graphs for."""

    def compute(self, graph: dict[Any, Any], keys: Sequence[Any]) -> Generator[Any]:
        """Run tasks; results in the order in which they are there. Closing the iterator cancels the rest."""


def connect(client: Client | None, collections: Sequence[Any] = ()) -> Hosts:
    """Find out where to run: the client given, the one that dask would use now, or dask's local scheduler."""
    if client is None:
        get = get_scheduler() or _default_scheduler(collections)
        client = getattr(get, "__self__", None)
        if not isinstance(client, Client):
            return LocalHost(get)
    if client.asynchronous:
        raise RefusedError(
            "this client is asynchronous; call in a thread with a synchronous one, Client(address, asynchronous=False)"
        )
    return Workers(client)


def _default_scheduler(collections: Sequence[Any]) -> Callable[..., Any]:
    """Give the scheduler that all collections prefer, or else threads."""
    preferred = {collection.__dask_scheduler__ for collection in collections}
    return preferred.pop() if len(preferred) == 1 else dask.threaded.get


class LocalHost:
    """No cluster: this process, with one of dask's local schedulers."""

    def __init__(self, get: Callable[..., Any]) -> None:
        self._get = get

    def each(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """Run here."""
        return {LOCAL: function(*args)}

    def at(self, function: Callable[..., Any], calls: Sequence[Call]) -> list[Any]:
        """Run here."""
        return [function(*args) for _, args in calls]

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Nothing to change."""
        return contextlib.nullcontext()

    def compute(self, graph: dict[Any, Any], keys: Sequence[Any]) -> Generator[Any]:
        """Run all tasks, then give the results."""
        yield from self._get(graph, list(keys))


class Workers:
    """The workers of a distributed client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def each(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """Run on every worker, beside its tasks: a worker that is busy or paused answers too."""
        if not (answers := self._client.run(_in_thread, function, args, on_error="return")):
            self._wait_for_a_worker()
            answers = self._client.run(_in_thread, function, args, on_error="return")
        return self._checked(function, answers)

    def at(self, function: Callable[..., Any], calls: Sequence[Call]) -> list[Any]:
        """Run on some workers at the same time; several calls to one worker run one after the other."""
        by_address: dict[str, list[Sequence[Any]]] = {}
        for address, args in calls:
            by_address.setdefault(address, []).append(args)
        if not calls:
            return []
        answers = self._checked(
            function,
            self._client.run(_in_thread_own, function, by_address, workers=list(by_address), on_error="return"),
        )
        results = {address: iter(answer) for address, answer in answers.items()}
        return [next(results[address]) for address, _ in calls]

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Make the client the current one: dask asks it how to shuffle."""
        return self._client.as_current()

    def compute(self, graph: dict[Any, Any], keys: Sequence[Any]) -> Generator[Any]:
        """Give each result as it comes and let its future go, so that a worker lost later costs nothing."""
        with _leaving_the_thread_pool():
            yield from self._results(graph, keys)

    def _results(self, graph: dict[Any, Any], keys: Sequence[Any]) -> Generator[Any]:
        pending = set(self._client.get(graph, list(keys), sync=False))
        try:
            for future, result in as_completed(list(pending), with_results=True):
                if future.status != "finished":
                    raise WriteError(
                        f"the cluster gave up task {future.key}: {result}; call again to resume"
                    ) from result
                pending.discard(future)
                future.release()
                yield result
        finally:
            if pending and self._client.status == "running":
                self._client.cancel(list(pending))

    def _wait_for_a_worker(self) -> None:
        """Give an adaptive cluster that has scaled down to nothing a reason to start a worker."""
        try:
            self._client.submit(_nothing, pure=False).result(timeout=_PATIENCE)
        except TimeoutError:
            raise RefusedError(f"the cluster has had no worker for {_PATIENCE} seconds; start one") from None

    def _checked(self, function: Callable[..., Any], answers: dict[str, Any]) -> dict[str, Any]:
        for address, answer in answers.items():
            if isinstance(answer, CkptSpillError):
                raise answer
            if isinstance(answer, BaseException):
                raise CkptSpillError(f"worker {address} failed in {function.__name__!r}: {answer!r}") from answer
        return answers


@contextlib.contextmanager
def _leaving_the_thread_pool() -> Generator[None]:
    """Inside a task, give its thread back while it waits for other tasks, which may need it."""
    try:
        get_worker()
    except ValueError:
        yield
        return
    secede()
    try:
        yield
    finally:
        rejoin()


def _nothing() -> None:
    """Do nothing, on a worker."""


async def _in_thread(function: Callable[..., Any], args: Sequence[Any], dask_worker: Any) -> Any:
    """Keep the disk out of the worker's event loop; the thread runs in a copy of this context."""
    errand_of.set(dask_worker)
    return await asyncio.to_thread(function, *args)


async def _in_thread_own(
    function: Callable[..., Any], calls: Mapping[str, Sequence[Sequence[Any]]], dask_worker: Any
) -> list[Any]:
    return [await _in_thread(function, args, dask_worker) for args in calls[dask_worker.address]]
