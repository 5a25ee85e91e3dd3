"""Clusters of nodes on one machine: real processes; each node with a disk and a host name of its own.

A node is a mount, a host name and a process namespace. All nodes see their disks at one path, and no other node's. A
node lives as long as this process holds the pipe to its standard input: whatever ends this process ends its nodes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest
from distributed import Client

from tests.clusters import VALIDATE

CHECKOUT = Path(__file__).parents[1]
NAMESPACES = ["unshare", *(["--map-root-user"] if os.getuid() else []), "--mount", "--uts", "--pid", "--fork"]
NODE = [*NAMESPACES, "--kill-child", "--mount-proc", "sh", "-c"]
# Arguments: host name, disk, where to mount it; and the command, with which the node ends, or with its standard input.
BIRTH = 'hostname "$0" && mount --bind "$1" "$2"'
LIFE = f"""
{BIRTH} || exit
shift 2
exec 3<&0
"$@" </dev/null 3<&- & command=$!
(cat <&3 >/dev/null; kill -KILL $command) &
wait $command
"""
DEADLINE = 60  # seconds, for anything that should take one or two


class Nodes:
    """A scheduler on a host of its own, some nodes, and a client. Closing kills and reaps all, and keeps the disks.

    Parameters
    ----------
    n : int
        Number of nodes, 0 to n - 1, when ``disks`` does not name them.
    directory : Path
        Where disks, scratch space and logs are. Nodes that are started in the same directory later have the same disks.
    disks : sequence of int, optional
        Numbers of the nodes to start; a number that was there before has the disk it had.
    nthreads, workers_per_node, memory_limit
        Threads of a worker, workers of a node, memory of a worker.
    shared : bool
        Let all nodes have one and the same disk.
    env, config : mapping, optional
        More environment variables, and dask configuration as ``dask.config.set`` takes it, for scheduler and workers.
    validate : bool
        Let scheduler and workers check their state all the time.
    preload : bool
        Start them with the plugins of this project as ``--preload``.

    Attributes
    ----------
    client : Client
    root : Path
        Where each node has its disk; the root that workers are configured with. For this process it is empty.
    directory : Path
    """

    def __init__(
        self,
        n: int = 0,
        *,
        directory: Path,
        disks: Sequence[int] | None = None,
        nthreads: int = 1,
        workers_per_node: int = 1,
        memory_limit: str | int = "2GB",
        shared: bool = False,
        env: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        validate: bool = True,
        preload: bool = False,
    ) -> None:
        self.directory = Path(directory)
        self.root = self.directory / "disk"
        self._shared, self._preload = shared, preload
        self._env = dict(os.environ) | environment({"ckpt-spill.root": str(self.root)})
        self._env |= environment(VALIDATE if validate else {}) | environment(config or {}) | dict(env or {})
        self._env["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._scheduler_file = self.directory / f"scheduler-{time.time_ns()}.json"
        self._options = ["--nthreads", nthreads, "--nworkers", workers_per_node, "--memory-limit", memory_limit]
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}
        self.root.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            stack.callback(self._end_hosts)
            self._start("scheduler", self._private("scheduler"), "scheduler", "--port", "0")
            for i in range(n) if disks is None else disks:
                self.add(i)
            self.wait_until(lambda: self._address is not None, "the scheduler to start")
            self.client = Client(self._address, timeout=DEADLINE)
            # A client that has lost its scheduler keeps the thread of its event loop alive.
            stack.callback(self.client._loop_runner.stop)
            stack.enter_context(self.client)
            self.wait_for((len(self._hosts) - 1) * workers_per_node)
            self._stack = stack.pop_all()

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client, kill everything."""
        self._stack.close()

    # --------------------------------------------------------------------------------------------------------- nodes
    def add(self, i: int | None = None) -> int:
        """Start a node: with the disk that number i had before, if it had one; by default a new one. Does not wait."""
        if i is None:
            i = max([-1, *(int(path.name.removeprefix("disk-")) for path in self.directory.glob("disk-[0-9]*"))]) + 1
        scratch = self.directory / f"scratch-{i}"
        scratch.mkdir(exist_ok=True)
        options = ["--name", f"node{i}", "--local-directory", scratch, *self._options]
        self._private(i)
        self._start(f"node{i}", self.disk(i), "worker", *options)
        return i

    def kill_node(self, i: int, *, wipe: bool = False) -> None:
        """Kill -9 everything in a node, if there is anything; with ``wipe``, its disk is lost too."""
        if f"node{i}" in self._hosts:
            self._end(f"node{i}")
        if wipe:
            self.wipe(i)

    def disk(self, i: int) -> Path:
        """Give the disk of a node as this process sees it."""
        return self._private("shared" if self._shared else i)

    def wipe(self, i: int) -> None:
        """Remove everything from the disk of a node, which may be running and writing."""
        lost = self.directory / f"lost-{time.time_ns()}"
        lost.mkdir()
        for path in self.disk(i).iterdir():
            path.rename(lost / path.name)

        def is_gone() -> bool:
            shutil.rmtree(lost, ignore_errors=True)  # a writer that is still in it would have it fail
            return not lost.exists()

        self.wait_until(is_gone, f"the files of node {i} to be removed")

    # ------------------------------------------------------------------------------------------------------- workers
    def kill_worker(self, i: int, k: int = 0) -> None:
        """Kill -9 worker process k of a node, in order of their starts; its nanny starts another."""
        process = self._workers(i)[k]
        process.kill()
        self.wait_until(lambda: process not in self._workers(i), f"a worker of node {i} to die")

    def stop_worker(self, i: int, k: int = 0) -> None:
        """Have worker process k of a node, not its nanny, stand still."""
        process = self._workers(i)[k]
        process.send_signal(signal.SIGSTOP)
        self.wait_until(lambda: process.status() == psutil.STATUS_STOPPED, f"a worker of node {i} to stop")

    def continue_worker(self, i: int, k: int = 0) -> None:
        """Have a worker that was stopped go on."""
        self._workers(i)[k].send_signal(signal.SIGCONT)

    def addresses(self, i: int) -> list[str]:
        """Give the addresses of a node's workers, as the scheduler knows them."""
        return [address for address, (node, _) in self._known().items() if node == i]

    def wait_for(self, n: int) -> None:
        """Wait until the scheduler has n workers at work, all of them processes that are alive."""

        def are_there() -> bool:
            if self.client.scheduler_info(n_workers=0)["n_workers"] != n:
                return False
            known = set(self._known().values())
            return len(known) == n and known <= self._alive()

        self.wait_until(are_there, f"{n} workers")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something, but not for ever, nor when a host has ended by itself: then the logs are in the error."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            ended = [name for name, process in self._hosts.items() if process.poll()]
            if ended or time.monotonic() > deadline:
                reason = f"{ended} ended" if ended else f"not within {DEADLINE} s"
                logs = "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in ended or self._hosts)
                raise RuntimeError(f"waiting for {what}: {reason}\n{logs}")
            time.sleep(0.01)

    def log(self, host: int | str) -> str:
        """Give what a node, or the "scheduler", has logged."""
        name = f"node{host}" if isinstance(host, int) else host
        return (self.directory / f"{name}.log").read_text(errors="replace")

    # ----------------------------------------------------------------------------------------------------- processes
    def sessions(self) -> set[int]:
        """Give the sessions that all processes of all hosts are in."""
        return {process.pid for process in self._hosts.values()}

    def _private(self, name: int | str) -> Path:
        path = self.directory / f"disk-{name}"
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    @property
    def _address(self) -> str | None:
        """Give the address of the scheduler, once its file is there and whole."""
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            return json.loads(self._scheduler_file.read_text())["address"]
        return None

    def _start(self, name: str, disk: Path, kind: str, *options: Any) -> None:
        command = [sys.executable, "-m", "dask", kind, "--host", "127.0.0.1", "--no-dashboard"]
        command += ["--scheduler-file", self._scheduler_file, *options]
        if self._preload:
            command += ["--preload", f"ckpt_spill.cluster.{kind}"]
        with (self.directory / f"{name}.log").open("ab") as log:
            self._hosts[name] = subprocess.Popen(
                list(map(str, [*NODE, LIFE, name, disk, self.root, *command])),
                env=self._env,
                cwd=self.directory,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt from the keyboard is for the tests
            )

    def _end(self, name: str) -> None:
        process = self._hosts.pop(name)
        process.stdin.close()
        process.wait(DEADLINE)  # a process namespace has ended when all processes in it have

    def _end_hosts(self) -> None:
        for process in self._hosts.values():
            process.stdin.close()  # all at once
        while self._hosts:
            self._end(next(iter(self._hosts)))

    def _workers(self, i: int) -> list[psutil.Process]:
        """Give the worker processes of a node that are alive, oldest first."""
        found = []
        for process in psutil.Process(self._hosts[f"node{i}"].pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has just ended; a zombie has no command line
                if any("multiprocessing.spawn" in argument for argument in process.cmdline()):
                    found.append(process)
        return sorted(found, key=lambda process: process.create_time())

    def _alive(self) -> set[tuple[int, int]]:
        """Give node and process id, as the node counts, of every worker process that is alive."""
        numbers = [int(name.removeprefix("node")) for name in self._hosts if name != "scheduler"]
        found = set()
        for i in numbers:
            for process in self._workers(i):
                with contextlib.suppress(OSError):  # it has just ended
                    status = Path(f"/proc/{process.pid}/status").read_text()
                    found.add((i, int(status.partition("NSpid:")[2].partition("\n")[0].split()[-1])))
        return found

    def _known(self) -> dict[str, tuple[int, int]]:
        """Give node and process id of the workers that the scheduler takes for running, by address."""

        def running(dask_scheduler: Any) -> list[tuple[str, str, int]]:
            return [(ws.address, ws.name, ws.pid) for ws in dask_scheduler.running]

        workers = self.client.run_on_scheduler(running)
        return {address: (int(name.removeprefix("node").split("-")[0]), pid) for address, name, pid in workers}


def environment(config: Mapping[str, Any]) -> dict[str, str]:
    """Give dask configuration as the environment variables that dask reads it from."""
    return {f"DASK_{key.upper().replace('.', '__').replace('-', '_')}": repr(value) for key, value in config.items()}


@functools.cache
def obstacle() -> str:
    """Say why there can be no nodes on this machine; empty if there can."""
    here = tempfile.gettempdir()
    try:
        command = [*NODE, BIRTH, "probe", here, here]
        probe = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    except OSError as e:
        return str(e)
    return "" if probe.returncode == 0 else probe.stderr.strip() or f"exit status {probe.returncode}"


def require_nodes() -> None:
    """Skip the test where there can be no nodes; fail it in continuous integration, which has to run it."""
    if reason := obstacle():
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"nodes need namespaces of their own, which this machine does not allow: {reason}")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    """A factory of ``Nodes``, all in one directory, so that those started later have the disks of those before."""
    require_nodes()
    directory = tmp_path / "nodes"
    with contextlib.ExitStack() as stack, dask.config.set({"ckpt-spill.root": str(directory / "disk")}):
        yield lambda *args, **options: stack.enter_context(Nodes(*args, directory=directory, **options))
