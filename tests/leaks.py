"""What a test must not leave behind: processes, threads, open files."""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator

import dask.threaded
import psutil

# Pools that live as long as the process, by what their threads are called: not a leak of the test that used one first.
LASTING_POOLS = ("ckpt-spill", "Dask-Offload")
# Processes that multiprocessing starts once, by what they are told to run.
HELPERS = ("from multiprocessing.resource_tracker import", "from multiprocessing.forkserver import")

# Sessions of processes that tests use one after the other, and of which one may have replaced some.
lasting_sessions: set[int] = set()


@contextlib.contextmanager
def nothing_left_behind(grace: float = 10.0) -> Iterator[None]:
    """Check that what was started inside has ended, giving what is ending already so many seconds."""
    processes, threads = child_processes(), set(threading.enumerate())
    files = collections.Counter(open_paths())
    yield
    _, alive = psutil.wait_procs(child_processes() - processes, timeout=grace)
    assert not alive, f"processes left: {[' '.join(process.cmdline()) for process in alive]}"
    started = [thread for thread in threading.enumerate() if thread not in threads and not is_lasting(thread)]
    for thread in started:
        thread.join(grace)
    running = [thread.name for thread in started if thread.is_alive()]
    assert not running, f"threads left: {running}"
    if collections.Counter(open_paths()) - files:
        gc.collect()
    end = time.monotonic() + grace
    while (left_open := collections.Counter(open_paths()) - files) and time.monotonic() < end:
        time.sleep(0.05)  # a lasting thread may be about to close it: the one that starts write-back
    assert not left_open, f"files left open: {sorted(left_open)}"


def child_processes() -> set[psutil.Process]:
    """Return the descendants of this process, but for those that are meant to stay."""
    children = psutil.Process().children(recursive=True)
    return {process for process in children if not is_lasting_process(process)}


def is_lasting_process(process: psutil.Process) -> bool:
    """Tell processes that tests share, and multiprocessing's tracker and server of forks, whose forks look like it."""
    try:
        if os.getsid(process.pid) in lasting_sessions:
            return True
        if process.ppid() != os.getpid():
            return any("multiprocessing.resource_tracker" in argument for argument in process.cmdline())
        return any(argument.startswith(HELPERS) for argument in process.cmdline())
    except (psutil.Error, ProcessLookupError):  # gone, or a zombie
        return False


def is_lasting(thread: threading.Thread) -> bool:
    """Tell a thread of one of the pools that stay for good: by its name, or because it is dask's own pool."""
    pool = dask.threaded.default_pool
    return thread.name.startswith(LASTING_POOLS) or (pool is not None and thread in getattr(pool, "_threads", ()))


def open_paths() -> list[str]:
    """Return the paths of the files and directories this process has open; sockets and pipes have none."""
    paths = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            paths.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in paths if path.startswith("/") and not path.startswith(("/dev/", "/proc/"))]
