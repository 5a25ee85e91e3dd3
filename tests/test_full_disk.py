"""Disks that are really full."""

from __future__ import annotations

import os
import pickle
import subprocess

import dask.array as da
import numpy as np
import pytest

import ckpt_spill as cs
from ckpt_spill.jobs import Record

pytestmark = pytest.mark.filterwarnings("ignore:.*takes memory")  # the small disks are RAM disks


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "none", path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode().strip()}")
    yield str(path)
    subprocess.run(["umount", "--lazy", path], check=True)


def noise(n=8):
    """Partitions of 8 MiB that do not compress."""

    def block(block_info=None):
        seed = block_info[None]["chunk-location"][0]
        return np.random.default_rng(seed).integers(0, 256, 8 << 20, dtype="u1")

    return da.map_blocks(block, chunks=((8 << 20,) * n,), dtype="u1")


def files_below(path):
    return [os.path.join(d, f) for d, _, fs in os.walk(path) for f in fs]


@pytest.mark.parametrize("durable", [True, False])
def test_full(client, small_disk, durable):
    """One error says which worker, where, how much was wanted and what is free; no half file is left."""
    message = r"partition \d+ .* worker tcp://.* 8,388,\d+ bytes .* bytes are free"
    with pytest.raises(cs.DiskFullError, match=message) as e:
        cs.persist_to_disk(noise(), name="x", root=small_disk, durable=durable)
    assert e.value.path.startswith(small_disk)
    assert 0 <= e.value.free < 8 << 20
    assert not [f for f in files_below(small_disk) if "tmp-" in f]
    assert cs.list_checkpoints(small_disk) == []


def test_room_is_made(client, small_disk):
    """When room was made the same call goes on with what is there."""
    with pytest.raises(cs.DiskFullError):
        cs.persist_to_disk(noise(), name="x", root=small_disk)
    before = {os.path.basename(f) for f in files_below(small_disk) if f.endswith(".part")}
    assert before
    subprocess.run(["mount", "-o", "remount,size=100m", small_disk], check=True)
    m = cs.persist_to_disk(noise(), name="x", root=small_disk)
    assert before <= {os.path.basename(f) for f in files_below(small_disk)}
    m.verify()
    np.testing.assert_array_equal(cs.rehydrate(m).compute(), noise().compute())


def test_other_drives_take_over(client, small_disk, tmp_path):
    """With several roots a full one is passed over."""
    m = cs.persist_to_disk(noise(), name="x", root=[small_disk, str(tmp_path / "large")])
    assert len([f for f in files_below(tmp_path / "large") if f.endswith(".part")]) >= 6
    np.testing.assert_array_equal(cs.rehydrate(m).compute(), noise().compute())


def test_too_small_from_the_start(client, small_disk):
    """A disk with less than min-free is refused before anything is computed."""
    with open(os.path.join(small_disk, "ballast"), "wb") as f:
        f.write(b"x" * (12 << 20))
    with pytest.raises(cs.RootError, match="bytes are free"):
        cs.persist_to_disk(noise(), name="x", root=small_disk)


def test_read_only(client, small_disk):
    """A disk that was mounted read-only is refused; what is on it can be read."""
    m = cs.persist_to_disk(noise(2), name="x", root=small_disk)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(cs.RootError, match="cannot be written"):
        cs.persist_to_disk(noise(1), name="y", root=small_disk)
    np.testing.assert_array_equal(cs.rehydrate("x", root=small_disk).compute(), noise(2).compute())
    assert m == cs.list_checkpoints(small_disk)[0]


def test_records_are_small():
    """What a write task returns is a few hundred bytes at most, however wide the partition."""
    record = Record("0" * 8, 10**6, "0" * 32, "/a/long/path" * 8, "host" * 8, 1 << 40, 1 << 40, bytes(32))
    assert len(pickle.dumps(record)) < 500
