"""Where functions run: on the workers of a dask client, or in this process when there is none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

import dask
from dask.base import get_scheduler
from distributed import Client, as_completed, get_worker, rejoin, secede

from ckpt_spill.cluster.install import install
from ckpt_spill.errands import GoneError
from ckpt_spill.errors import CkptSpillError, RefusedError, WriteError
from ckpt_spill.here import errand_of, in_errand_thread

LOCAL = "local"
Call = tuple[str, Sequence[Any]]
_PATIENCE = 60  # seconds for a first worker
_SILENCE = 30  # seconds after which a worker does not answer
_LOOK = 0.5  # seconds between looks at whether the workers that were asked are still there

logger = logging.getLogger("ckpt_spill")


class HostLostError(GoneError):
    """A process was lost, or cannot be talked to, while it was asked something; ``address`` says which."""


class Hosts(Protocol):
    """The processes that see the disks."""

    @property
    def alone(self) -> bool:
        """Whether there is no cluster, so that what is out of reach stays so."""

    def each(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """Run a function once in every process; results by address, None for one that does not answer in time."""

    def at(self, function: Callable[..., Any], calls: Sequence[Call]) -> list[Any]:
        """Run a function in some processes at the same time; results in the order of the calls.

        Raises
        ------
        HostLostError
            A process was lost. The calls to others have been made.
        """

    def attempt(self, function: Callable[..., Any], calls: Sequence[Call]) -> list[Any]:
        """Do as ``at``, but give a HostLostError for the result of each call to a process that was lost."""

    def steer(self, roots: Sequence[str]) -> None:
        """See to it that files are read where they lie, also those of stores in these roots."""

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

    alone = True

    def __init__(self, get: Callable[..., Any]) -> None:
        self._get = get

    def each(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """Run here."""
        return {LOCAL: function(*args)}

    def at(self, function: Callable[..., Any], calls: Sequence[Call]) -> list[Any]:
        """Run here."""
        return [function(*args) for _, args in calls]

    attempt = at

    def steer(self, roots: Sequence[str]) -> None:
        """Nothing to do: files are here, or out of reach."""

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Nothing to change."""
        return contextlib.nullcontext()

    def compute(self, graph: dict[Any, Any], keys: Sequence[Any]) -> Generator[Any]:
        """Run all tasks, then give the results."""
        yield from self._get(graph, list(keys))


class Workers:
    """The workers of a distributed client."""

    alone = False

    def __init__(self, client: Client) -> None:
        self._client = client
        self._silent: set[str] = set()

    def each(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """Run on every worker, beside its tasks: a worker that is busy or paused answers too.

        A worker that goes away meanwhile is left out, as if it had gone before. One that did not answer the last time
        has as long as the others take.
        """
        end = time.monotonic() + _PATIENCE
        while not (answers := self._client.sync(self._survey, function, args)):
            self._wait_for_a_worker(end)
        self._silent = {address for address, answer in answers.items() if answer is None}
        return {address: answer and answer[0] for address, answer in _sound(answers).items()}

    def at(self, function: Callable[..., Any], calls: Sequence[Call]) -> list[Any]:
        """Run on some workers; several calls to one worker run one after the other."""
        results = self.attempt(function, calls)
        for result in results:
            if isinstance(result, HostLostError):
                raise result
        return results

    def attempt(self, function: Callable[..., Any], calls: Sequence[Call]) -> list[Any]:
        """Run on some workers."""
        if not calls:
            return []
        by_address: dict[str, list[Sequence[Any]]] = {}
        for address, args in calls:
            by_address.setdefault(address, []).append(args)
        answers = _sound(self._client.sync(self._ask, function, by_address))
        for address, answer in answers.items():
            if isinstance(answer, HostLostError):
                logger.warning("%s", answer)
                answers[address] = [answer] * len(by_address[address])
        results = {address: iter(answer) for address, answer in answers.items()}
        return [next(results[address]) for address, _ in calls]

    # --------------------------------------------------------------------------------------------------- questions
    async def _survey(self, function: Callable[..., Any], args: Sequence[Any]) -> dict[str, Any]:
        """Ask every worker; leave out those that went, and give None for those that are there but do not answer."""
        answers = await self._ask(function, {address: [args] for address in await self._client.nthreads()}, _SILENCE)
        if lost := {address for address, answer in answers.items() if isinstance(answer, HostLostError)}:
            await asyncio.sleep(_LOOK)  # the scheduler may hear of it later than we do
            known = await self._client.nthreads()
            for address in lost:
                logger.warning("%s", answers[address])
                answers[address] = None
            answers = {address: answer for address, answer in answers.items() if address not in lost - known.keys()}
        return answers

    async def _ask(
        self, function: Callable[..., Any], calls: Mapping[str, Sequence[Sequence[Any]]], limit: float | None = None
    ) -> dict[str, Any]:
        """Give each worker's answer: its results, what the function raised, or a HostLostError; None after the limit.

        The scheduler is asked who is there, too: where nobody listens any more, dask tries to connect for long.
        """
        tasks = {address: asyncio.create_task(self._ask_one(address, function, own)) for address, own in calls.items()}
        lost = set[str]()
        end = None if limit is None else time.monotonic() + limit
        try:
            while pending := {address for address, task in tasks.items() if not task.done()}:
                others = tasks.keys() - self._silent
                if end is not None and (time.monotonic() > end or (others and not pending & others)):
                    break
                await asyncio.wait([tasks[address] for address in pending], timeout=_LOOK)
                if not all(tasks[address].done() for address in pending):
                    lost |= pending - (await self._client.nthreads()).keys()
                    for address in lost:
                        tasks[address].cancel()
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        given = {address: None if task.cancelled() else task.result() for address, task in tasks.items()}
        return given | {address: _lost(address) for address in lost if given[address] is None}

    async def _ask_one(self, address: str, function: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> Any:
        answers = await self._client.run(_answer, function, calls, workers=[address], on_error="return")
        answer = answers[address]
        if isinstance(answer, OSError) and not isinstance(answer, CkptSpillError):
            return _lost(address)
        return answer

    def _wait_for_a_worker(self, end: float) -> None:
        """Give an adaptive cluster that has scaled down to nothing a reason to start a worker."""
        try:
            self._client.submit(_nothing, pure=False).result(timeout=max(end - time.monotonic(), 0))
        except TimeoutError:
            raise RefusedError(f"the cluster has had no worker for {_PATIENCE} seconds; start one") from None

    # ------------------------------------------------------------------------------------------------------- tasks
    def steer(self, roots: Sequence[str]) -> None:
        """Have the plugins in the scheduler and in the workers that steer reads, and let workers look for stores."""
        install(self._client, roots)

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


def _lost(address: str) -> HostLostError:
    return HostLostError(f"worker {address} was lost before it answered", address=address)


def _sound(answers: dict[str, Any]) -> dict[str, Any]:
    """Raise what a function raised on a worker, or what kept the worker from running it."""
    for address, answer in answers.items():
        if isinstance(answer, CkptSpillError) and not isinstance(answer, HostLostError):
            raise answer
        if isinstance(answer, BaseException) and not isinstance(answer, HostLostError):
            raise CkptSpillError(f"worker {address} could not be asked anything: {answer!r}") from answer
    return answers


def _nothing() -> None:
    """Do nothing, on a worker."""


async def _answer(
    function: Callable[..., Any], calls: Sequence[Sequence[Any]], dask_worker: Any
) -> list[Any] | CkptSpillError:
    """Run calls one after the other. What the function raises is a value: what dask raises is about the way."""
    errand_of.set(dask_worker)
    try:
        return [await in_errand_thread(function, *args) for args in calls]
    except CkptSpillError as e:
        return e
    except Exception as e:
        logger.exception("%r failed", function.__name__)
        return CkptSpillError(f"worker {dask_worker.address} failed in {function.__name__!r}: {e!r}")
