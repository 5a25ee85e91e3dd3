"""Runs all tests that need a GPU and writes reports: ``make test-gpu``.

In one process, as there is one GPU. Arguments go to pytest.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.gpu import missing
from tests.gpu.present import absent
from tests.gpu.report import Report, facts

MINUTES = 10


def main(arguments: list[str]) -> int | str:
    """Give what is to be the exit status: that of pytest, or a text that says why nothing can be run."""
    if reason := absent() or missing():
        return f"These tests need a GPU and RAPIDS: {reason}"
    options = ["-m", "gpu", "--junitxml=gpu-report.xml", f"--session-timeout={60 * MINUTES}"]
    # A signal ends a test that hangs; the other way is to end the process.
    options += ["--timeout-method=signal", *arguments]
    return pytest.main([str(Path(__file__).parent), *options], plugins=[Report(Path("gpu-report.md"), facts())])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
