"""The benchmarks in the manner of dask-cuda's, without a GPU: they run, and what they report is true."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pandas as pd
import pytest

pytest.importorskip("dask_cuda", reason="dask-cuda is not installed")

pytestmark = pytest.mark.rapids

BACKENDS = ["ckpt-spill", "parquet", "to-shared-parquet", "persist"]
MEASURED = [
    "checkpoint",
    "restart",
    "read_back",
    "wallclock",
    "data_processed",
    "stored_nbytes",
    "peak_checkpoint",
    "peak_read_back",
    "rows",
    "digest",
]
SIZES = {
    "shuffle": ["--in-parts", "4", "--partition-size", "64 KiB"],
    "merge": ["--chunk-size", "8000", "--frac-match", "0.5", "--shuffle-join"],
    "read": ["--in-parts", "4", "--partition-size", "80 KB"],
}
CONTENT = {"shuffle": (4 * 8192, 16), "merge": (2 * 4000, 24), "read": (4 * 2000, 40)}  # rows, and bytes of one


def run(script, *options, directory):
    command = [sys.executable, "-m", f"benchmarks.local_checkpoint_{script}", "--type", "cpu", "--devs", "0,1"]
    command += ["--runs", "1", "--warmup-runs", "0", "--ignore-size", "1", "--directory", directory, *options]
    environment = os.environ | {"RAPIDS_NO_INITIALIZE": "1"}  # cuDF is not to look for a GPU
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=environment)


@pytest.mark.parametrize("script", SIZES)
def test_backends_give_the_same_and_report_it(script, tmp_path):
    """All backends keep the same data on the disk, but for persist, and remove it; results are in all three outputs."""
    kept = tmp_path / "kept"
    kept.mkdir()
    results = str(tmp_path / "results")
    done = run(script, *SIZES[script], "--markdown", "--output-basename", results, directory=kept)
    assert done.returncode == 0, done.stderr
    rows = pd.DataFrame(json.loads((tmp_path / "results.json").read_text())).set_index("backend")
    assert list(rows.index) == BACKENDS
    assert set(MEASURED) <= set(rows.columns)
    assert set(rows.digest) == {rows.digest["persist"]}
    count, width = CONTENT[script]
    assert set(rows.rows) == {count}
    assert set(rows.data_processed) == {count * width}
    assert (rows.stored_nbytes > 0).tolist() == [True, True, True, False]
    assert (rows.stored_nbytes < 2 * count * width).all()
    assert (rows[["checkpoint", "restart", "read_back"]] > 0).all(axis=None)
    assert rows.wallclock.tolist() == pytest.approx(rows.checkpoint + rows.read_back)
    assert (rows[["peak_checkpoint", "peak_read_back"]] > 30e6).all(axis=None)  # of a process that has imported pandas
    assert (rows.num_workers == 2).all()
    assert (rows.dataframe_type == "pandas").all()
    lines = done.stdout.splitlines()
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| ")] == ["", *BACKENDS]
    assert list(kept.iterdir()) == []


def test_a_wrong_result_is_an_error(tmp_path):
    """A backend that gives back something else than it was given ends the benchmark."""
    code = (
        "import benchmarks.local_checkpoint_backends as b, benchmarks.local_checkpoint_shuffle as s\n"
        "from benchmarks.local_checkpoint import Benchmark\n"
        "whole = b.CkptSpill.collection\n"
        "b.CkptSpill.collection = lambda self: whole(self).partitions[1:]\n"
        "if __name__ == '__main__':\n"
        "    Benchmark('', '', s.OPTIONS, s.shuffled, s.facts).main()\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    options = ["--type", "cpu", "--runs", "1", "--warmup-runs", "0", "--backend", "ckpt-spill", *SIZES["shuffle"]]
    environment = os.environ | {"RAPIDS_NO_INITIALIZE": "1"}
    done = subprocess.run(
        [sys.executable, script, *options], capture_output=True, text=True, timeout=110, check=False, env=environment
    )
    assert done.returncode == 1
    assert "AssertionError: ckpt-spill gave back Summary(rows=" in done.stderr


def test_help_says_what_backends_do():
    """--help names each backend with what it does, and that persist computes again."""
    done = run("read", "--help", directory=".")
    text = " ".join(done.stdout.split())
    assert done.returncode == 0
    assert all(f"{name}: " in text for name in BACKENDS)
    assert "lost at the restart" in text
