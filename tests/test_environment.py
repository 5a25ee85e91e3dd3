"""The conditions under which all tests run: their clusters, settings and checks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import dask
import psutil
import pytest

from tests import rapids
from tests.clusters import running_cluster
from tests.leaks import child_processes, nothing_left_behind


class Here:
    """A class of a test module."""


def worker_view(thing: Here) -> tuple[str, bool, object]:
    return type(thing).__module__, type(thing) is Here, dask.config.get("distributed.worker.validate")


def test_workers_import_the_classes_of_test_modules(client):
    """A value of a class that a test defines is of that same class on a worker process."""
    assert client.submit(worker_view, Here()).result() == (__name__, True, True)


def test_other_interpreters_import_the_project():
    """An interpreter started by a test, wherever it stands, finds the package and the tests."""
    code = "import ckpt_spill, tests.clusters"
    subprocess.run([sys.executable, "-c", code], cwd="/", check=True, timeout=60)


def test_clusters_have_the_size_asked_for_and_end(cluster):
    """The factory's clusters have as many processes as was asked for, which are gone when a cluster is closed."""
    before = child_processes()
    client = cluster(3)
    assert len(client.scheduler_info()["workers"]) == 3
    with running_cluster(1) as other:
        process = psutil.Process(other.submit(os.getpid).result())
    assert not process.is_running()
    assert len(child_processes() - before) == 3


@contextlib.contextmanager
def a_process():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield
        process.kill()


@contextlib.contextmanager
def a_thread():
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="forgotten")
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.mark.parametrize(
    ("leak", "named"),
    [(a_process, "processes left.*input"), (a_thread, "threads left.*forgotten"), (open, "files left")],
)
def test_a_leak_is_found(leak, named, tmp_path):
    """What a test leaves behind fails it, and is named."""
    arguments = [tmp_path / "file", "w"] if leak is open else []
    with contextlib.ExitStack() as stack, pytest.raises(AssertionError, match=named):  # noqa: SIM117
        with nothing_left_behind(grace=0.1):
            stack.enter_context(leak(*arguments))


def test_settings_are_those_of_the_test(tmp_path):
    """The default root is below the test's own directory, so no test sees a checkpoint of another, or of a user."""
    assert dask.config.get("ckpt-spill.root").startswith(str(tmp_path))


@pytest.mark.parametrize("name", rapids.PACKAGES)
def test_rapids_where_it_is_expected(name, monkeypatch):
    """A run that is to test what needs RAPIDS fails where a package of it is missing; any other goes on."""
    monkeypatch.setattr(rapids, "PACKAGES", [name])
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delenv(rapids.EXPECTED, raising=False)
    rapids.prepare()
    monkeypatch.setenv(rapids.EXPECTED, "1")
    with pytest.raises(ImportError, match=name):
        rapids.prepare()


def test_what_is_skipped_without_a_gpu():
    """A run says how many tests need a GPU and were not run."""
    reports = [
        SimpleNamespace(keywords=dict.fromkeys(marks, 1)) for marks in ((), ("slow",), ("gpu",), ("gpu", "slow"))
    ]
    assert rapids.summary(reports) == "2 tests marked gpu skipped"
    assert rapids.summary(reports[:3]) == "1 test marked gpu skipped"
    assert rapids.summary(reports[:2]) == ""
