"""What dask takes cuDF's objects for, in a process that only reads."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.rapids

SCRIPT = """
import ckpt_spill, sys
assert "cudf" not in sys.modules
import cudf
from dask.sizeof import sizeof, sizeof_default
assert "dask_cudf" not in sys.modules
assert sizeof.dispatch(cudf.DataFrame) is not sizeof_default
"""


def test_sizes_of_cudf():
    """Their sizes in memory, not those of the Python objects, by which no limit would ever be reached."""
    pytest.importorskip("cudf", reason="cuDF is not installed")
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=100)
