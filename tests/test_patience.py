"""Stores that are out of reach have time to come back, and only these; what is said of them.

Everything is in this process, which passes for a cluster: a root that is renamed is the disk of a node that is away,
and the clock stands still but for the pauses between looks.
"""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace

import dask
import dask.array as da
import dask.bag as db
import pytest

import ckpt_spill as cs
from ckpt_spill import copying, reach
from ckpt_spill.hosts import LocalHost

N = 8
PATIENCE = 15


class Away:
    """The second of two roots, which goes and comes back.

    Attributes
    ----------
    looks : int or None
        After how many pauses it comes back.
    pauses : int
        How many there were.
    """

    def __init__(self, root):
        self.root, self.looks, self.pauses, self.now = root, None, 0, 0.0

    def go(self):
        self.root.rename(self.root.with_name("away"))

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.pauses += 1
        if self.pauses == self.looks:
            self.root.with_name("away").rename(self.root)


@pytest.fixture(autouse=True)
def settings(caplog):
    caplog.set_level(logging.INFO, "ckpt_spill")  # a cluster of other tests may have raised that of the handler
    with dask.config.set({"scheduler": "synchronous", "ckpt-spill.patience": PATIENCE}):
        yield


@pytest.fixture
def roots(tmp_path):
    return [tmp_path / "one", tmp_path / "two"]


@pytest.fixture
def away(roots, monkeypatch):
    monkeypatch.setattr(LocalHost, "alone", False)
    away = Away(roots[1])
    monkeypatch.setattr(reach, "time", SimpleNamespace(monotonic=away.monotonic, sleep=away.sleep))
    return away


def source():
    return db.from_sequence(range(N), npartitions=N)


def save(roots):
    m = cs.persist_to_disk(source(), name="x", root=roots)
    assert {h for of in m.partitions.holders for h in of} == {0, 1}
    return m


def second(m, roots):
    """The store that goes, and its partitions."""
    [number] = [h for h, ref in enumerate(m.stores) if ref.root == str(roots[1])]
    return m.stores[number], [n for n, of in enumerate(m.partitions.holders) if of == (number,)]


WAYS = {
    "manifest": lambda m, roots: cs.rehydrate(m),
    "name": lambda m, roots: cs.rehydrate("x", root=roots),
    "skip": lambda m, roots: cs.rehydrate(m, missing="skip"),
    "recompute": lambda m, roots: cs.rehydrate(m, root=roots[0], missing="recompute", source=source()),
}
UPKEEP = {"verify": lambda m: m.verify(), "replicate": lambda m: m.replicate(1), "repair": lambda m: m.repair()}


@pytest.mark.parametrize("way", WAYS)
def test_rehydrate_waits(roots, away, caplog, way):
    """A store that is back in time has lost nothing, in no mode; the log says what is waited for."""
    m = save(roots)
    ref, _ = second(m, roots)
    away.go()
    away.looks = 3
    back = WAYS[way](m, roots)
    assert away.pauses == 3
    assert back.compute() == list(range(N))
    assert cs.list_checkpoints(root=roots) == [m]
    place = f"store {ref.id} ({ref.root} on host {ref.host})"
    assert f"checkpoint 'x': waiting up to 15 seconds for what is out of reach: {place}" in caplog.text


@pytest.mark.parametrize("way", UPKEEP)
def test_upkeep_waits(roots, away, way):
    """So it is with what checks and copies; nothing is read or made twice."""
    m = save(roots)
    away.go()
    away.looks = 3
    assert UPKEEP[way](m) in (None, m)
    assert away.pauses == 3


def test_what_does_not_come_back(roots, away):
    """Then the wait is over after the patience; the warning of what is skipped names the stores."""
    m = save(roots)
    ref, partitions = second(m, roots)
    away.go()
    for way in ("manifest", "name"):
        with pytest.raises(cs.MissingPartitionError, match=r"^checkpoint 'x': ") as e:
            WAYS[way](m, roots)
        assert e.value.partitions == partitions
        assert PATIENCE <= away.now < PATIENCE + 1
        away.now = 0
    for call in UPKEEP.values():
        with pytest.raises(cs.MissingPartitionError, match=r"^checkpoint 'x': "):
            call(m)
        assert PATIENCE <= away.now < PATIENCE + 1
        away.now = 0
    with pytest.warns(UserWarning, match=rf"^checkpoint 'x': .* Out of reach: store {ref.id} \({ref.root} on host "):
        back = WAYS["skip"](m, roots)
    assert back.compute() == [n for n in range(N) if n not in partitions]


def test_recompute_says_what_is_lost(roots, away, caplog):
    """What is computed again is in the log, once, without advice to do what is being done."""
    m = save(roots)
    away.go()
    WAYS["recompute"](m, roots)
    assert PATIENCE <= away.now < PATIENCE + 1
    [said] = [r.getMessage() for r in caplog.records if "making these again" in r.getMessage()]
    assert said.startswith("checkpoint 'x': ")
    assert "missing=" not in said


@pytest.mark.parametrize("way", [*WAYS, *UPKEEP])
def test_nothing_to_wait_for(roots, away, way):
    """A file that is gone from a store in reach does not come back."""
    m = save(roots)
    os.unlink(next(roots[1].rglob("*.part")))
    if way == "skip":
        with pytest.warns(UserWarning, match=r"1 of 8 partitions are skipped, as they are missing or damaged: \d$"):
            WAYS[way](m, roots)
    elif way == "recompute":
        WAYS[way](m, roots)
    else:
        with pytest.raises(cs.MissingPartitionError):
            (WAYS[way](m, roots) if way in WAYS else UPKEEP[way](m))
    assert away.pauses == 0


def test_without_a_cluster(roots, away, monkeypatch):
    """Nothing comes back where nobody but this process looks; the error says that nobody else did."""
    monkeypatch.setattr(LocalHost, "alone", True)
    m = save(roots)
    away.go()
    for call in (lambda: cs.rehydrate(m), m.verify, m.repair, lambda: m.replicate(1)):
        with pytest.raises(cs.MissingPartitionError, match=r"No cluster was asked: client= was not given"):
            call()
    with pytest.raises(cs.CheckpointNotFoundError, match="No cluster was asked"):
        cs.rehydrate("y", root=roots)
    cs.persist_to_disk(source(), name="x", root=roots)
    assert away.pauses == 0


@pytest.fixture
def twice(roots, monkeypatch):
    """A checkpoint with two copies, as if the roots were on different hosts."""
    real = copying.sites
    monkeypatch.setattr(copying, "sites", lambda *args: [s._replace(domain=s.ref.root) for s in real(*args)])
    return cs.persist_to_disk(source(), name="x", root=roots, replicas=2)


def test_copies_that_are_not_used(roots, away, twice, caplog):
    """A copy that is gone from a store in reach is not said to be out of reach, one that is away is."""
    ref = next(ref for ref in twice.stores if ref.root == str(roots[1]))
    os.unlink(next(roots[1].rglob("00000003-*.part")))
    os.truncate(next(roots[1].rglob("00000005-*.part")), 100)
    cs.rehydrate(twice)
    place = f"store {ref.id} ({ref.root} on host {ref.host})"
    assert f"checkpoint 'x': partitions 3, 5 in {place} are missing or damaged; other copies are read" in caplog.text
    away.go()
    cs.rehydrate(twice)
    assert f"checkpoint 'x': partitions 0-7 in {place} are out of reach; other copies are read" in caplog.text
    assert away.pauses == 0


def test_a_repair_in_place(roots, away, twice, caplog):
    """What is made again where it was needs no new revision, and the log tells of it."""
    os.unlink(next(roots[1].rglob("00000003-*.part")))
    again = twice.repair()
    assert (again, again.revision) == (twice, 0)
    ref = next(ref for ref in twice.stores if ref.root == str(roots[1]))
    assert f"checkpoint 'x': copied partitions 3 to store {ref.id} ({ref.root} on host {ref.host})" in caplog.text
    twice.verify()
    caplog.clear()
    assert twice.repair() == twice
    assert "copied" not in caplog.text


def test_a_store_that_is_lost_while_saving(roots, away, caplog):
    """What was lost with it is computed again, and the log says how much that is."""
    made = []

    def part(numbers):
        made.extend(numbers)
        if len(made) == N:
            away.go()
        return numbers

    m = cs.persist_to_disk(source().map_partitions(part), name="x", token="x", root=roots)
    again = made[N:]
    assert again
    assert PATIENCE <= away.now < PATIENCE + 1
    [said] = [r.getMessage() for r in caplog.records if "computing" in r.getMessage()]
    assert said.startswith("checkpoint 'x': lost store ")
    assert f"({roots[1]} on host " in said
    assert said.endswith(f"; computing {len(again)} partitions again")
    m.verify()


def test_another_source(roots):
    """Where more than the token differs, the error says what, and does not advise to give the token."""
    m = save(roots)
    for other, differs in (
        (source().repartition(npartitions=3), r"\(bag of 8 partitions, not bag of 3\)"),
        (da.ones(8, chunks=1), r"\(bag of 8 partitions, not array of 8\)"),
    ):
        for call in (
            lambda other=other: cs.rehydrate(m, missing="recompute", source=other),
            lambda other=other: cs.persist_to_disk(other, name="x", root=roots),
        ):
            with pytest.raises(cs.RefusedError, match=f"another collection.*{differs}") as e:
                call()
            assert "token=" not in str(e.value)
    with pytest.raises(cs.RefusedError, match="token="):
        cs.persist_to_disk(db.from_sequence("abcdefgh", npartitions=N), name="x", root=roots)
