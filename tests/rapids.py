"""RAPIDS, which is not everywhere. Tests that need it are marked ``rapids``, and skipped where it is not installed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable

import pytest

EXPECTED = "CKPT_SPILL_TEST_RAPIDS"
"""The environment variable by which ``make test-rapids`` says that it has to be here."""

PACKAGES = ("cudf", "cupy", "dask_cuda", "dask_cudf", "kvikio", "nvidia.nvcomp", "rmm")


def prepare() -> None:
    """Let RAPIDS be imported without a GPU; where it is expected, see that it can be.

    Raises
    ------
    ImportError
        It was expected, and cannot be imported.
    """
    os.environ.setdefault("RAPIDS_NO_INITIALIZE", "1")
    if os.environ.get(EXPECTED):
        for name in PACKAGES:
            importlib.import_module(name)


def summary(skipped: Iterable[pytest.TestReport]) -> str:
    """Say how many tests were skipped for want of a GPU; nothing where there were none."""
    n = sum("gpu" in getattr(report, "keywords", ()) for report in skipped)  # a module that is skipped has none
    return f"{n} test{'s' * (n > 1)} marked gpu skipped" if n else ""
