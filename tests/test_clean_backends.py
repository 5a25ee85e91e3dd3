"""Partitions that were opened as objects of another library than they were saved from are clean, too."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from distributed import futures_of

import ckpt_spill as cs
from tests import host_columns as host
from tests.spilling import LIMIT, MiB, frame, keep, links, spill_all, spilled_files, written
from tests.strict import diff
from tests.test_arrivals import concat, to_both, wait_for_clean
from tests.test_backends import LABELS, WANT, saved, small

pytestmark = pytest.mark.slow

PARTS = 12


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "root")


@pytest.fixture
def spilling(cluster, root):
    """A cluster of workers that spill at 12 MiB each, or only by hand."""
    return lambda n=1, limit=LIMIT: cluster(n, data=cs.host_spill(root, memory_limit=limit))


def large(root):
    """A checkpoint in cuDF's words, of partitions of 2 MiB."""

    def table(part, rows):
        arrays = np.random.default_rng(part).integers(0, 2**40, (2, rows))
        return host.OfCudf(host.frame([host.column(pa.array(array)) for array in arrays], labels=LABELS))

    return saved([table(part, MiB // 8) for part in range(PARTS)], table(0, 0), root)


def from_pandas(root):
    return cs.persist_to_disk(frame(PARTS), name="x", root=root)


@pytest.mark.parametrize("make", [large, from_pandas])
def test_a_scan_writes_nothing(spilling, root, make):
    """Of twice as much as the memory; what is read again is of the library that was asked for."""
    made = make(root)
    expected = cs.rehydrate(made, backend="pandas").compute(scheduler="threads")
    client = spilling()
    kept = keep(client, cs.rehydrate(made, backend="pandas"))
    for n in range(3):
        found = kept.map_partitions(lambda part, n: part["a"].sum() + n, n, meta=(None, "i8")).compute()
        assert found.sum() == expected["a"].sum() + PARTS * n
    assert written(client) == 0
    assert len(spilled_files(root)) > PARTS // 3
    assert diff(expected, kept.compute()) == []


@pytest.mark.parametrize("columns", [None, ["b"]])
def test_replicas(spilling, root, columns):
    """Those that were sent by another worker are evicted for nothing, and read again as what they were."""
    made = small(root)
    client = spilling(2, limit=100 * LIMIT)
    kept = keep(client, cs.rehydrate(made, backend="pandas", columns=columns))
    to_both(client, kept)
    wait_for_clean(client, 2)
    spill_all(client)
    assert written(client) == 0
    assert len(spilled_files(root)) == 4
    expected = pd.concat([WANT, WANT])[columns or ["a", "b"]]
    for address in client.has_what():
        parts = [client.submit(lambda part: part, part, workers=[address], pure=False) for part in futures_of(kept)]
        assert diff(expected, client.submit(concat, parts, workers=[address]).result()) == []


@pytest.mark.parametrize("make", [large, from_pandas])
def test_a_checkpoint_of_them_is_written(spilling, root, make):
    """Their file is no partition of a collection of the other library: none becomes one by a link."""
    made = make(root)
    expected = cs.rehydrate(made, backend="pandas").compute(scheduler="threads")
    client = spilling()
    kept = keep(client, cs.rehydrate(made, backend="pandas"))
    spill_all(client)
    assert set(links(made, root)) == {2}
    again = cs.persist_to_disk(kept, name="again", root=root)
    assert again.library == "pandas"
    assert set(links(again, root)) == {1}
    del kept
    made.delete()
    again.verify()
    assert diff(expected, cs.rehydrate(again).compute()) == []
