"""What holds for all tests that need a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import missing


def pytest_collection_modifyitems(items):
    """Let warnings of libraries about this GPU or driver be no errors."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session", autouse=True)
def started():
    """What CUDA keeps open as long as the process is open before a test looks for what it has left behind."""
    if missing() is None:
        import cupy

        from ckpt_spill.store.device.copies import to_host
        from ckpt_spill.store.device.memory import Memory

        array = cupy.arange(10)
        to_host([Memory(array.data.ptr, array.nbytes)])


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")
