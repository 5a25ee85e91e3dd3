"""The benchmarks in the manner of dask-cuda's with ``--type gpu``: they run, and all backends give the same."""

from __future__ import annotations

import json
import subprocess
import sys

import pandas as pd
import pytest

from tests.gpu import marks

pytestmark = marks(300)

SIZES = {
    "shuffle": ["--in-parts", "8", "--partition-size", "4 MiB"],
    "merge": ["--chunk-size", "200000", "--base-chunks", "4", "--other-chunks", "4", "--shuffle-join"],
    "read": ["--in-parts", "8", "--partition-size", "4 MiB"],
}
# Each takes a restart of the workers: all of them once.
BACKENDS = {
    "shuffle": ["ckpt-spill", "parquet", "to-shared-parquet", "persist"],
    "merge": ["ckpt-spill", "parquet"],
    "read": ["ckpt-spill", "parquet"],
}


def command(script, directory, results):
    line = [f"benchmarks.local_checkpoint_{script}", "--type", "gpu", "--devs", "0", "--runs", "1"]
    line += ["--warmup-runs", "0", "--ignore-size", "1", "--rmm-pool-size", "2 GB", "--directory", directory]
    line += ["--markdown", "--output-basename", results, *SIZES[script]]
    return [*line, "--backend", *BACKENDS[script]]


@pytest.mark.parametrize("script", SIZES)
def test_backends_give_the_same_and_report_it(script, tmp_path):
    """What was kept is the same for all backends, the memory of the device is measured, and files are removed."""
    from tests.test_benchmarks import MEASURED

    kept = tmp_path / "kept"
    kept.mkdir()
    line = [sys.executable, "-m", *command(script, str(kept), str(tmp_path / "results"))]
    done = subprocess.run(line, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = pd.DataFrame(json.loads((tmp_path / "results.json").read_text())).set_index("backend")
    assert list(rows.index) == BACKENDS[script]
    assert set(MEASURED) <= set(rows.columns)
    assert (rows.dataframe_type == "cudf").all()
    assert rows.digest.nunique() == rows.rows.nunique() == 1
    assert (rows.rows > 0).all()
    assert (rows[["checkpoint", "restart", "read_back"]] > 0).all(axis=None)
    assert (rows[["peak_device_checkpoint", "peak_device_read_back"]] > 1e6).all(axis=None)
    lines = done.stdout.splitlines()
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| ")] == ["", *BACKENDS[script]]
    assert list(kept.iterdir()) == []
