"""Dask's commands, run as a shell runs them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from distributed import Client

DEADLINE = 60  # seconds, for anything that should take one or two


@contextlib.contextmanager
def started(line: str, directory: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a line of a shell in a directory, where its log is, too; on leaving, all that it started has ended."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    variables = {"PATH": path, "DASK_TEMPORARY_DIRECTORY": str(directory / "scratch"), **variables}
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec env {line}"],
            env={**os.environ, **variables},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def scheduler(directory: Path) -> Iterator[Client]:
    """Run ``dask scheduler`` and yield a client of it."""
    file = directory / "scheduler.json"
    with started(f"dask scheduler --host 127.0.0.1 --port 0 --no-dashboard --scheduler-file {file}", directory):
        wait_until(lambda: address_in(file) is not None, directory)
        with Client(address_in(file), timeout=DEADLINE) as client:
            yield client


def address_in(file: Path) -> str | None:
    """Give the address of a scheduler, once its file is there and whole."""
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        return json.loads(file.read_text())["address"]
    return None


def wait_until(condition: Callable[[], bool], directory: Path) -> None:
    """Wait for something, but not for ever: then the log is in the error."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError((directory / "log").read_text(errors="replace")[-5000:])
        time.sleep(0.02)
