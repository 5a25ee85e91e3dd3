"""Nodes that tests use one after the other, as starting them takes longer than most of what is done with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
from distributed import Future, Scheduler

from tests import leaks
from tests.nodes import Nodes, require_nodes


class Lasting:
    """Lends the same nodes again and again: whoever gets them finds all at work, without a task, and empty disks.

    Parameters
    ----------
    n : int
    directory : Path
    **options
        Of ``Nodes``.
    """

    def __init__(self, n: int, directory: Path, **options: Any) -> None:
        require_nodes()
        self._n, self._directory, self._options = n, directory, options
        self._nodes: Nodes | None = None

    def __enter__(self) -> Lasting:
        self._start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._close()

    @contextlib.contextmanager
    def lent(self) -> Iterator[Nodes]:
        """Lend them; when they cannot be put in order afterwards, that is an error, and there are new ones."""
        nodes = self._nodes
        assert nodes is not None
        with nodes.client.as_current(), dask.config.set({"ckpt-spill.root": str(nodes.root)}):
            yield nodes
        try:
            self._put_in_order(nodes)
        except BaseException:
            self._close()
            self._start()
            raise

    def _put_in_order(self, nodes: Nodes) -> None:
        kept = list(nodes.client.futures)  # by errors that were raised, which the client keeps with their frames
        nodes.client.cancel([Future(key, nodes.client) for key in kept], force=True)
        for i in range(self._n):
            if not nodes.addresses(i):
                nodes.kill_node(i)
                nodes.add(i)
        nodes.wait_for(self._n)
        nodes.wait_until(lambda: nodes.client.run_on_scheduler(tasks) == 0, "tasks to be forgotten")
        for i in range(self._n):
            nodes.wipe(i)
        leaks.lasting_sessions |= nodes.sessions()

    def _start(self) -> None:
        directory = self._directory / str(len(list(self._directory.iterdir())))
        self._nodes = Nodes(self._n, directory=directory, **self._options)
        leaks.lasting_sessions |= self._nodes.sessions()

    def _close(self) -> None:
        if self._nodes is not None:
            leaks.lasting_sessions -= self._nodes.sessions()
            self._nodes.close()
            self._nodes = None


def tasks(dask_scheduler: Scheduler) -> int:
    return len(dask_scheduler.tasks)
