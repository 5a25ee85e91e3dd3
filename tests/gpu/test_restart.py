"""What was saved on a GPU is there after the workers, after the cluster, and where there is no GPU."""

from __future__ import annotations

import sys

import numpy as np

import ckpt_spill as cs
from tests.clusters import running_cluster
from tests.gpu import marks, parts
from tests.gpu.parts import each, gpu_cluster, same
from tests.spilling import keep

pytestmark = marks(180)

N = 4
KINDS = {
    "frame": (lambda: parts.frames(N), parts.part),
    "series": (lambda: parts.frames(N)["c"], parts.text),
    "array": (lambda: parts.arrays(N), parts.block),
}


def are_right(client, manifests):
    for kind, manifest in manifests.items():
        kept = keep(client, cs.rehydrate(manifest))
        found = dict(each(kept))
        assert sorted(found) == list(range(N))
        for number, value in found.items():
            same(value, KINDS[kind][1](number))


def test_restart(root, tmp_path):
    """Read by restarted workers, by a new cluster, and as pandas' and numpy's by workers that see no GPU."""
    with gpu_cluster() as client:
        manifests = {kind: cs.persist_to_disk(make(), name=kind, root=root) for kind, (make, _) in KINDS.items()}
        before = set(client.scheduler_info()["workers"])
        client.restart()
        assert not before & set(client.scheduler_info()["workers"])
        are_right(client, manifests)
        manifests["frame"].save(str(tmp_path / "frame.json"))
    with gpu_cluster() as client:
        are_right(client, {"frame": str(tmp_path / "frame.json"), **manifests})
    with running_cluster(2, env={"CUDA_VISIBLE_DEVICES": ""}) as client:
        opened = {kind: cs.rehydrate(manifest, backend="pandas") for kind, manifest in manifests.items()}
        frame, series, array = (dict(each(keep(client, opened[kind]))) for kind in KINDS)
        for number in range(N):
            want = parts.on_host(number)
            assert list(frame[number].columns) == list(want.columns)
            assert np.array_equal(frame[number]["a"].to_numpy(), want["a"].to_numpy())
            assert np.array_equal(frame[number]["b"].to_numpy(), want["b"].to_numpy())
            assert list(frame[number]["c"]) == list(series[number]) == list(want["c"])
            assert list(frame[number]["d"].fillna(-1)) == list(want["d"].fillna(-1))
            assert np.array_equal(array[number], parts.block_on_host(number))
        assert not any(client.run(lambda: "cudf" in sys.modules).values())
