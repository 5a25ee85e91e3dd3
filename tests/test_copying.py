"""Copies of partition files, as workers make them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from distributed.utils_test import captured_logger

from ckpt_spill import copying
from ckpt_spill.cluster import remote
from ckpt_spill.cluster.install import install
from ckpt_spill.copying import Copy, Holder
from ckpt_spill.errands import GoneError
from ckpt_spill.here import this_worker
from ckpt_spill.hosts import _answer, connect
from ckpt_spill.jobs import Record, StoreRef
from ckpt_spill.store import partition as partition_files
from ckpt_spill.store.partition import Identity
from ckpt_spill.store.runs import Run
from ckpt_spill.store.store import Store
from tests.test_full_disk import small_disk  # noqa: F401

RUN = Run("x", 7, "0" * 16, "1" * 8)
MIB = 1 << 20


def write(root, partition=0, nbytes=3 * MIB, run=RUN):
    """Write a partition of random numbers into a store; give the copy to be made of it, with this store as a holder."""
    store = Store.create(str(root))
    value = np.random.default_rng(partition).integers(0, 256, nbytes, dtype="u1")
    identity = Identity(run.checkpoint, run.generation, partition)
    written = store.publish(
        run, partition, lambda fd: partition_files.write(fd, value, identity, codec="none"), needed=nbytes
    )
    return Copy(partition, written.digest, written.stored_nbytes, (Holder(ref_of(store), ()),))


def ref_of(store, root=None):
    return StoreRef(store.id, root or store.root, socket.gethostname())


def held_by(copy, *roots):
    return copy._replace(holders=tuple(Holder(ref_of(Store.open(str(root))), ()) for root in roots))


def path_of(root, copy):
    return Store(str(root), "").partition_path(RUN, copy.partition, copy.digest)


def contents(root):
    return {path.name: path.read_bytes() for path in Path(root).rglob("*") if path.is_file() and path.suffix != ".json"}


def fetch(root, *copies, durable=True):
    return copying.fetch(ref_of(Store.create(str(root))), RUN, copies, durable)


def facts(outcome):
    return {name: value for name, value in outcome._asdict().items() if value}


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


# ------------------------------------------------------------------------------------------------ within one machine
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("nbytes", [0, 1, 8 * MIB, 20 * MIB + 1])
def test_the_same_bytes(tmp_path, durable, nbytes):
    """A copy is the same file under the same name, but another one on the disk, which only we can read."""
    copy = write(tmp_path / "a", 3, nbytes)
    [outcome] = fetch(tmp_path / "b", copy, durable=durable)
    record = outcome.record
    assert facts(outcome) == {"record": record}
    store = Store.open(str(tmp_path / "b"))
    assert record == Record(
        RUN.run, 3, store.id, store.root, socket.gethostname(), record.nbytes, copy.stored_nbytes, copy.digest
    )
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    source, made = os.stat(path_of(tmp_path / "a", copy)), os.stat(path_of(tmp_path / "b", copy))
    assert source.st_ino != made.st_ino
    assert (made.st_nlink, stat.S_IMODE(made.st_mode)) == (1, 0o600)


@pytest.mark.parametrize("at", [0, 100, 2 * MIB, -200, -1])
def test_a_damaged_holder(tmp_path, at):
    """A damaged copy is found out before it has a name; the next holder is asked."""
    copy = write(tmp_path / "a")
    assert write(tmp_path / "b") == held_by(copy, tmp_path / "b")
    flip(path_of(tmp_path / "a", copy), at)
    damaged = Store.open(str(tmp_path / "a")).id
    [outcome] = fetch(tmp_path / "c", copy)
    assert facts(outcome) == {"damaged": {damaged: outcome.reason()}}
    assert path_of(tmp_path / "a", copy) in outcome.reason()
    assert contents(tmp_path / "c") == {}
    [outcome] = fetch(tmp_path / "c", held_by(copy, tmp_path / "a", tmp_path / "b"))
    assert outcome.record
    assert outcome.damaged.keys() == {damaged}
    assert contents(tmp_path / "c") == contents(tmp_path / "b")


def truncate(path, copy):
    os.truncate(path, copy.stored_nbytes - 1)


def lengthen(path, copy):
    os.truncate(path, copy.stored_nbytes + 1)


def remove(path, copy):
    os.unlink(path)


def link(path, copy):
    os.rename(path, path + "-")
    os.symlink(path + "-", path)


@pytest.mark.parametrize(
    ("harm", "what"), [(truncate, "damaged"), (lengthen, "damaged"), (link, "damaged"), (remove, "missing")]
)
def test_no_such_file(tmp_path, harm, what):
    """What is not that file is not copied, and one that fails does not keep others from being copied."""
    copy, other = write(tmp_path / "a", 0), write(tmp_path / "a", 1)
    harm(path_of(tmp_path / "a", copy), copy)
    harmed, sound = fetch(tmp_path / "b", copy, other)
    assert facts(harmed) == {what: {Store.open(str(tmp_path / "a")).id: harmed.reason()}}
    assert facts(sound) == {"record": sound.record}
    assert len(contents(tmp_path / "b")) == 1


def test_another_partition(tmp_path):
    """A sound file of another partition in its place is no copy."""
    copy, other = write(tmp_path / "a", 0), write(tmp_path / "a", 1)
    os.replace(path_of(tmp_path / "a", other), path_of(tmp_path / "a", copy))
    [outcome] = fetch(tmp_path / "b", copy)
    assert facts(outcome).keys() == {"damaged"}


def test_it_is_there_already(tmp_path):
    """A sound copy is not made again; a damaged one is replaced."""
    copy = write(tmp_path / "a")
    made = fetch(tmp_path / "b", copy)
    path = path_of(tmp_path / "b", copy)
    before = os.stat(path)
    assert fetch(tmp_path / "b", copy._replace(holders=())) == made
    assert os.stat(path).st_ino == before.st_ino
    flip(path, MIB)
    [outcome] = fetch(tmp_path / "b", copy._replace(holders=()))
    assert facts(outcome) == {}
    assert outcome.reason() == "nobody can be asked for it"
    assert fetch(tmp_path / "b", copy) == made
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_the_store_is_gone(tmp_path):
    """A store that went away, or another one in its place, is told apart from copies that fail."""
    copy = write(tmp_path / "a")
    ref = ref_of(Store.create(str(tmp_path / "b")))
    os.rename(tmp_path / "b", tmp_path / "c")
    with pytest.raises(GoneError, match=ref.id):
        copying.fetch(ref, RUN, [copy], False)
    Store.create(str(tmp_path / "b"))
    with pytest.raises(GoneError, match=ref.id):
        copying.fetch(ref, RUN, [copy], False)


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk(tmp_path):
    """A store without room refuses; nothing of the copy stays; smaller ones may still fit."""
    large, small = write(tmp_path / "a", 0, 30 * MIB), write(tmp_path / "a", 1, MIB)
    refused, taken = fetch(tmp_path / "small", large, small)
    assert facts(refused) == {"refused": refused.reason()}
    assert "no room" in refused.refused
    assert facts(taken) == {"record": taken.record}
    assert contents(tmp_path / "small").keys() == {os.path.basename(path_of("", small))}


# ----------------------------------------------------------------------------------------------------- between workers
def apart(client, tmp_path):
    """Give the addresses of two workers, after one of them alone was told of a store."""
    Store.create(str(tmp_path / "a"))
    install(client)
    source, destination = sorted(client.nthreads())
    hosts = connect(client)
    hosts.at(copying.sites, [(source, ((str(tmp_path / "a"),), []))])
    return hosts, source, destination


def unseen(copy, *peers):
    """Name the holders as where the other worker does not see them."""
    return copy._replace(
        holders=tuple(Holder(dataclasses.replace(h.ref, root="/nowhere"), peers) for h in copy.holders)
    )


def test_from_a_peer(client, tmp_path):
    """What this worker does not see comes from a peer that does, sound or not at all."""
    hosts, source, destination = apart(client, tmp_path)
    copies = [write(tmp_path / "a", n, 9 * MIB) for n in range(4)]
    flip(path_of(tmp_path / "a", copies[1]), MIB)
    os.unlink(path_of(tmp_path / "a", copies[2]))
    ref = ref_of(Store.create(str(tmp_path / "b")))
    call = (destination, (ref, RUN, [unseen(c, source) for c in copies], True))
    [[first, flipped, missing, last]] = hosts.at(copying.fetch, [call])
    assert (first.record.partition, last.record.partition) == (0, 3)
    [why] = flipped.damaged.values()
    assert f"partition 1 in store {copies[1].holders[0].ref.id} at {source}: buffer 0, block 0" in why
    [why] = missing.missing.values()
    assert "No such file" in why
    expected = contents(tmp_path / "a")
    assert contents(tmp_path / "b") == {
        os.path.basename(p): expected[os.path.basename(p)] for p in (path_of("", copies[0]), path_of("", copies[3]))
    }


@contextlib.contextmanager
def patience(client, seconds):
    """Let workers wait so long for a peer."""

    def change(seconds):
        before, remote._PATIENCE = remote._PATIENCE, seconds
        return before

    [before] = set(client.run(change, seconds).values())
    try:
        yield
    finally:
        client.run(change, before)


def test_a_peer_is_silent(client, tmp_path):
    """A peer that does not answer is named, and asked once; its store's other workers are asked then."""
    hosts, source, destination = apart(client, tmp_path)
    copies = [write(tmp_path / "a", n) for n in range(3)]
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # where nobody listens
        nobody = f"tcp://127.0.0.1:{reserved.getsockname()[1]}"
        ref = ref_of(Store.create(str(tmp_path / "b")))
        silent = [unseen(c, nobody) for c in copies[:2]]
        call = (destination, (ref, RUN, [*silent, unseen(copies[2], nobody, source)], True))
        with patience(client, 3):
            [[*failed, last]] = hosts.at(copying.fetch, [call])
    assert [facts(outcome) for outcome in failed] == [{"silent": {nobody: failed[0].reason()}}] * 2
    assert facts(last) == {"record": last.record, "silent": failed[0].silent}


@pytest.mark.parametrize("ever", [True, False])
def test_a_peer_that_does_not_see_the_store(client, tmp_path, ever):
    """A peer that does not see the store, or does no longer, cannot say what is in it: no copy counts as missing."""
    hosts, source, destination = apart(client, tmp_path)
    copy = unseen(write(tmp_path / "a"), source)
    if ever:
        os.rename(tmp_path / "a", tmp_path / "unmounted")
    else:
        copy = copy._replace(holders=(Holder(StoreRef("0" * 32, "/nowhere", "elsewhere"), (source,)),))
    ref = ref_of(Store.create(str(tmp_path / "b")))
    [[outcome]] = hosts.at(copying.fetch, [(destination, (ref, RUN, [copy], True))])
    [holder] = copy.holders
    assert facts(outcome) == {"silent": {source: f"worker {source} does not see store {holder.ref.id}"}}


def reset_peak(root):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return memory("VmRSS")


def memory(what):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{what}:"))


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="peaks of memory cannot be measured here")
def test_it_streams(client, tmp_path):
    """A partition of 300 MB is in the memory of neither worker as a whole."""
    hosts, source, destination = apart(client, tmp_path)
    small, large = write(tmp_path / "a", 0), write(tmp_path / "a", 1, 300 * MIB)
    ref = ref_of(Store.create(str(tmp_path / "b")))
    hosts.at(copying.fetch, [(destination, (ref, RUN, [unseen(small, source)], True))])  # what a first time takes
    before = client.run(reset_peak, None)
    [[outcome]] = hosts.at(copying.fetch, [(destination, (ref, RUN, [unseen(large, source)], True))])
    assert outcome.record
    peaks = client.run(memory, "VmHWM")
    assert {worker: peaks[worker] - before[worker] < 64 * MIB for worker in peaks} == dict.fromkeys(peaks, True)


# -------------------------------------------------------------------------------------------------------------- threads
def test_errands_and_peers_do_not_wait_in_a_circle():
    """Errands that wait for what a peer reads do not take the threads that it reads in, and know their worker."""
    worker = SimpleNamespace(address="here")

    async def ask():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(2))
        started = threading.Barrier(8)

        def errand():
            started.wait(5)
            return asyncio.run_coroutine_threadsafe(asyncio.to_thread(str, "read"), loop).result(5), this_worker()

        return await asyncio.gather(*(_answer(errand, [()], dask_worker=worker) for _ in range(8)))

    assert asyncio.run(ask()) == [[("read", worker)]] * 8


# ---------------------------------------------------------------------------------------------------------------- sites
def test_sites(client, tmp_path):
    """Stores are made where they are asked for, and are the same when they are asked for again."""
    hosts = connect(client)
    roots = str(tmp_path / "a"), str(tmp_path / "b")
    answers = hosts.each(copying.sites, roots, [])
    stores = {root: Store.open(root) for root in roots}
    for sites in answers.values():
        assert [site.ref for site in sites] == [ref_of(stores[root]) for root in roots]
        assert {site.domain for site in sites} == {socket.gethostname()}
        assert all(site.free > 0 for site in sites)


def test_sites_that_a_manifest_names(tmp_path):
    """Who has a store that a manifest names has copies there; others where they are configured, or it says."""
    named = [StoreRef("0" * 32, str(tmp_path / "a"), "elsewhere")]
    [site] = copying.sites(None, named)
    assert site.ref.root == str(tmp_path / "default-root")
    with dask.config.set({"ckpt-spill.root": None}):
        [site] = copying.sites(None, named)
    assert site.ref.root == str(tmp_path / "a")
    [again] = copying.sites(None, [*named, site.ref])
    assert again.ref == site.ref
    with dask.config.set({"ckpt-spill.domain": "rack-7"}):
        [site] = copying.sites((str(tmp_path / "b"),), [*named, site.ref])
    assert (site.ref.root, site.domain) == (str(tmp_path / "a"), "rack-7")


def test_what_is_kept_free(tmp_path):
    """Room that the configuration wants to be left is no room."""
    with dask.config.set({"ckpt-spill.min-free": "1000 PiB"}):
        [site] = copying.sites((str(tmp_path / "a"),), [])
    assert site.free == 0


def test_no_site(tmp_path):
    """A worker whose root cannot be used has no place for copies, and says why."""
    (tmp_path / "file").touch()
    with captured_logger("ckpt_spill") as log:
        assert copying.sites((str(tmp_path / "file"),), []) == []
    assert f"cannot have copies in {tmp_path}/file: it is not a directory" in log.getvalue()
