"""The notebooks run from the top."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs(path, tmp_path):
    """All code cells, one after the other, run as a script, and their assertions hold."""
    cells = [cell["source"] for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    body = "\n".join(cells).replace("\n", "\n    ")
    (tmp_path / "cells.py").write_text(f'if __name__ == "__main__":\n    {body}\n')
    subprocess.run([sys.executable, "cells.py"], cwd=tmp_path, env=_environment(tmp_path), check=True, timeout=100)


def test_there_are_some():
    """The glob finds what it should."""
    assert [p.stem for p in NOTEBOOKS] == ["quickstart"]


def _environment(tmp_path):
    return os.environ | {"TMPDIR": str(tmp_path), "DASK_TEMPORARY_DIRECTORY": str(tmp_path)}
