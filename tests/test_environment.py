"""The conditions under which all tests run: their clusters, settings and checks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from types import SimpleNamespace

import dask
import psutil
import pytest

from tests import rapids
from tests.clusters import running_cluster
from tests.gpu.report import Report
from tests.leaks import child_processes, nothing_left_behind
from tests.nodes import CHECKOUT


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
    of_a_module = SimpleNamespace()
    assert rapids.summary([*reports, of_a_module]) == "2 tests marked gpu skipped"
    assert rapids.summary(reports[:3]) == "1 test marked gpu skipped"
    assert rapids.summary(reports[:2]) == ""


WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def outside_of_make():
    """The environment without what make tells a make in a make, which says more."""
    return {name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}


@pytest.mark.parametrize("command", ["make test-gpu", "python -m tests.gpu.present", "python -m tests.gpu"])
def test_no_gpu_is_said_at_once(command, tmp_path):
    """Tests that need a GPU fail as a whole where there is none, before an environment is made; the reason is said."""
    if command.startswith("make") and shutil.which("make") is None:
        pytest.skip("needs make")
    line = command.replace("python", sys.executable).split()
    if command.startswith("make"):
        line += [f"PYTHON={sys.executable}", f"RAPIDS={tmp_path / 'venv'}"]
    done = subprocess.run(
        line, cwd=CHECKOUT, env=outside_of_make() | WITHOUT_GPU, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "These tests need a GPU" in done.stderr
    assert "the NVIDIA driver has no GPU" in done.stderr or "there is no NVIDIA driver" in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


PASSES_AND_FAILS = """
import pytest

def test_that_passes():
    pass

def test_that_fails():
    assert "this" == "that"

@pytest.mark.skip(reason="for no reason")
def test_that_is_skipped():
    pass

@pytest.fixture
def broken():
    yield
    raise OSError("at the end")

def test_that_fails_at_its_end(broken):
    pass
"""


def test_report(tmp_path):
    """What was tested on what, how many tests passed, why others did not, and how long it took."""
    (tmp_path / "test_x.py").write_text(PASSES_AND_FAILS)
    (tmp_path / "test_y.py").write_text("import nothing_of_this_name")
    code = (
        "import pathlib, pytest\nfrom tests.gpu.report import Report\n"
        "pytest.main(['--continue-on-collection-errors'], plugins=[Report(pathlib.Path('r.md'), {'GPU': 'a big one'})])"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    text = (tmp_path / "r.md").read_text()
    assert "| GPU | a big one |" in text
    assert "**1 passed, 3 failed, 1 skipped, in " in text
    failed = ["test_y.py", "test_x.py::test_that_fails", "test_x.py::test_that_fails_at_its_end"]
    assert [line for line in text.splitlines() if line.startswith("## failed")] == [f"## failed: {x}" for x in failed]
    for reason in ("nothing_of_this_name", "'this' == 'that'", "OSError: at the end", "Skipped: for no reason"):
        assert reason in text
    assert "Not at its end" not in text
    assert "| test_x.py | " in text


def test_report_of_a_run_that_is_ended(tmp_path):
    """The report is there all the time, and says which test is running."""
    report = Report(tmp_path / "r.md", {})
    report.pytest_runtest_logstart("test_x.py::test_endless")
    text = (tmp_path / "r.md").read_text()
    assert "0 passed" in text
    assert "test_x.py::test_endless is running" in text
