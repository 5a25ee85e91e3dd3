"""What holds for every test: settings of its own, and nothing left behind.

The clusters are in tests/clusters.py, and those of several nodes in tests/nodes.py.
"""

from __future__ import annotations

import copy
import logging
import os
from pathlib import Path

import dask
import pytest

from tests import rapids
from tests.clusters import client, cluster, shared_cluster
from tests.leaks import nothing_left_behind
from tests.nodes import nodes
from tests.notes import notes

__all__ = ["client", "cluster", "nodes", "notes", "shared_cluster"]  # fixtures, which pytest finds here


def pytest_configure() -> None:
    """Let worker processes, and the interpreters that tests start, import what this process can; see RAPIDS is here."""
    here = str(Path(__file__).parent)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([here, *filter(None, inherited)]))
    rapids.prepare()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tested for want of a GPU."""
    if text := rapids.summary(terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(text)


@pytest.fixture(scope="session", autouse=True)
def scratch_of_the_session(tmp_path_factory):
    """Dask's own scratch files of this run are below pytest's directory, not in the system's."""
    with dask.config.set({"temporary-directory": str(tmp_path_factory.mktemp("scratch"))}):
        yield


@pytest.fixture(autouse=True)
def own_settings(tmp_path, monkeypatch, scratch_of_the_session):
    """Each test has a default root of its own, and leaves configuration and environment as they were."""
    for name in [name for name in os.environ if name.startswith("DASK_")]:
        monkeypatch.delenv(name)
    before = copy.deepcopy(dask.config.config)
    dask.config.set({"ckpt-spill.root": str(tmp_path / "default-root")})
    yield
    dask.config.config.clear()
    dask.config.config.update(before)


@pytest.fixture(autouse=True)
def logs(caplog):
    """What a test logs is caught, though a cluster that other tests have running keeps the handlers quiet."""
    caplog.handler.setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def check_for_leaks():
    """Processes, threads and files of a test are gone when it is over; clusters that it shares with others stay."""
    with nothing_left_behind():
        yield
