"""The process that code runs in, which may be a dask worker."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import importlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dask.sizeof import sizeof
from distributed import get_worker

from ckpt_spill.config import Settings
from ckpt_spill.store.device.paths import Paths

_ERRANDS = 64  # at once

errand_of: contextvars.ContextVar[Any] = contextvars.ContextVar("errand_of", default=None)
"""The worker that runs an errand; dask tells only tasks where they run."""


def _register_sizes_of_cudf() -> None:
    """Let dask know how large cuDF's objects are: only dask-cudf tells it, which a worker that just reads lacks."""
    with contextlib.suppress(ImportError):
        importlib.import_module("dask_cudf")


sizeof.register_lazy("cudf", _register_sizes_of_cudf)


def this_worker() -> Any:
    """Give the dask worker this code runs in; None in a process that is none."""
    if worker := errand_of.get():
        return worker
    try:
        return get_worker()  # of the task that this thread runs
    except ValueError:
        return None


def current_task() -> Any:
    """Give the key of the task that this thread runs; None in one that runs none, as those that a task has started."""
    try:
        return this_worker().get_current_task()
    except (AttributeError, KeyError):
        return None


async def in_errand_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a thread, in a copy of this context, so that its disk is kept out of the event loop.

    The threads are for errands alone. These may wait for peers, which wait for the loop's default executor: were they
    to have their threads from there, workers could wait for each other in a circle.
    """
    run = functools.partial(contextvars.copy_context().run, function, *args)
    return await asyncio.get_running_loop().run_in_executor(_errand_threads(), run)


@functools.cache
def _errand_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_ERRANDS, thread_name_prefix="ckpt-spill-errand")


if hasattr(os, "register_at_fork"):
    # A forked child has the pool but none of its threads.
    os.register_at_fork(after_in_child=_errand_threads.cache_clear)


def process_name() -> str:
    """Name this process for an error."""
    worker = this_worker()
    return f"worker {worker.address}" if worker else f"process {os.getpid()}"


def settings_here(roots: tuple[str, ...] | None) -> Settings:
    """Read the settings of this process."""
    worker = this_worker()
    return Settings.here(roots, nthreads=worker.state.nthreads if worker else None)


def paths_here() -> Paths:
    """Read by which ways bytes may go between files and a GPU in this process."""
    settings = settings_here(None)
    return Paths(settings.gds, settings.nvcomp)


def scratch_here() -> list[str]:
    """Directories that dask removes when a worker or a machine's next worker starts."""
    worker = this_worker()
    return [os.path.dirname(worker.local_directory)] if worker else []
