"""The spelling of dask/distributed#8483: its example, and what its class promises."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap

import dask.dataframe as dd
import pandas as pd
import pytest
from dask.dataframe.utils import assert_eq

import ckpt_spill as cs

# The steps of the proposal, on data made here: its own module is the import that is another.
EXAMPLE = """
    import dask
    import dask.dataframe as dd

    from distributed import LocalCluster, Client
    from ckpt_spill import DataFrameCheckpoint

    if __name__ == "__main__":
        cluster = LocalCluster(n_workers=2, dashboard_address=":0")
        client = Client(cluster)

        df = dask.datasets.timeseries(end="2000-01-05", freq="1min").shuffle("name")
        expected = df.x.sum().compute()

        path = "{path}"
        checkpoint = DataFrameCheckpoint.create(df, path)
        del df
        client.restart()

        new_df = checkpoint.load()
        assert abs(new_df.x.sum().compute() - expected) < 1e-6
        checkpoint.clean()
        client.shutdown()
        print(len(new_df.columns))
"""


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "checkpoint")


@pytest.fixture
def frame():
    return dd.from_pandas(pd.DataFrame({"a": range(20), "b": pd.Categorical(list("xy") * 10)}), npartitions=4)


def part_files(directory):
    return [file for _, _, files in os.walk(directory) for file in files if file.endswith(".part")]


def test_the_example_of_the_proposal(path, tmp_path):
    """Create, restart the cluster, load: a script of the proposal runs, and leaves no partition behind."""
    script = tmp_path / "example.py"
    script.write_text(textwrap.dedent(EXAMPLE).format(path=path))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr
    assert os.path.isdir(path)
    assert part_files(path) == []


def test_loads_lazily_what_was_saved_in_place(path, frame):
    """Files are below the path; partitions, divisions and types come back; options of both functions are passed on."""
    checkpoint = cs.DataFrameCheckpoint.create(frame, path, codec="zstd")
    assert len(part_files(path)) == 4
    back = checkpoint.load()
    assert back.divisions == frame.divisions
    assert_eq(back, frame)
    assert list(checkpoint.load(columns=["b"]).columns) == ["b"]
    assert_eq(pickle.loads(pickle.dumps(checkpoint)).load(), frame)


def test_a_path_has_one_checkpoint(path, frame):
    """Another collection takes the place of the first one, unless that is forbidden; another path is another one."""
    first = cs.DataFrameCheckpoint.create(frame, path)
    beside = cs.DataFrameCheckpoint.create(frame, path + "-too")
    with pytest.raises(cs.CheckpointExistsError):
        cs.DataFrameCheckpoint.create(frame.a, path, overwrite=False)
    assert_eq(first.load(), frame)
    second = cs.DataFrameCheckpoint.create(frame.a, path)
    assert [m.kind for m in cs.list_checkpoints(root=path)] == ["series"]
    assert_eq(second.load(), frame.a)
    assert_eq(beside.load(), frame)


def test_clean_deletes(path, frame):
    """After clean() there is nothing to load."""
    checkpoint = cs.DataFrameCheckpoint.create(frame, path)
    checkpoint.clean()
    assert part_files(path) == []
    with pytest.raises(cs.MissingPartitionError):
        checkpoint.load()


def test_formats_of_the_proposal_are_refused(path, frame):
    """Asking for parquet is an error, and nothing is written."""
    with pytest.raises(TypeError, match="format"):
        cs.DataFrameCheckpoint.create(frame, path, format="parquet")
    assert not os.path.exists(path)
