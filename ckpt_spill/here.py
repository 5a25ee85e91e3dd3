"""The process that code runs in, which may be a dask worker."""

from __future__ import annotations

import contextvars
import os
from typing import Any

from distributed import get_worker

from ckpt_spill.config import Settings

errand_of: contextvars.ContextVar[Any] = contextvars.ContextVar("errand_of", default=None)
"""The worker that runs an errand; dask tells only tasks where they run."""


def this_worker() -> Any:
    """Give the dask worker this code runs in; None in a process that is none."""
    if worker := errand_of.get():
        return worker
    try:
        return get_worker()  # of the task that this thread runs
    except ValueError:
        return None


def process_name() -> str:
    """Name this process for an error."""
    worker = this_worker()
    return f"worker {worker.address}" if worker else f"process {os.getpid()}"


def settings_here(roots: tuple[str, ...] | None) -> Settings:
    """Read the settings of this process."""
    worker = this_worker()
    return Settings.here(roots, nthreads=worker.state.nthreads if worker else None)


def scratch_here() -> list[str]:
    """Directories that dask removes when a worker or a machine's next worker starts."""
    worker = this_worker()
    return [os.path.dirname(worker.local_directory)] if worker else []
