"""The parts of the locality queue that need no cluster: the queue itself, who sees what, and when help pays."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ckpt_spill.cluster.pace import Pace, help_pays
from ckpt_spill.cluster.queue import LocalityQueue
from ckpt_spill.cluster.sight import Seen, Sight

STORES = ["a", "b", "c", "d"]
some_stores = st.lists(st.sampled_from(STORES), min_size=1, unique=True).map(tuple)
keys = st.integers(0, 20)


class QueueMachine(RuleBasedStateMachine):
    """The queue against a dict that is searched from end to end."""

    def __init__(self):
        super().__init__()
        self.queue = LocalityQueue()
        self.model = {}
        self.serial = 0

    @rule(key=keys, priority=st.tuples(st.integers(-2, 2), st.integers(0, 3)), stores=some_stores)
    def add(self, key, priority, stores):
        self.queue.add(key, priority, stores)
        self.serial += 1
        self.model[key] = priority, self.serial, stores

    @rule(key=keys)
    def discard(self, key):
        self.queue.discard(key)
        self.model.pop(key, None)

    @rule(stores=some_stores)
    def take(self, stores):
        best = self.best(stores)
        assert self.queue.best(stores) == best
        if best:
            self.discard(best[1])

    @rule(
        priority=st.tuples(st.integers(-2, 2), st.integers(0, 3)),
        store=st.sampled_from(STORES),
        limit=st.integers(0, 5),
    )
    def count(self, priority, store, limit):
        better = sum(p < priority and store in held for p, _, held in self.model.values())
        assert self.queue.before(priority, [store], limit) == min(better, limit)

    @rule()
    def clear(self):
        self.queue.clear()
        self.model.clear()

    def best(self, stores):
        fitting = [(p, s, k) for k, (p, s, held) in self.model.items() if set(held) & set(stores)]
        return (min(fitting)[0], min(fitting)[2]) if fitting else None

    @invariant()
    def agrees(self):
        assert len(self.queue) == len(self.model)
        assert set(self.queue) == self.model.keys()
        assert all(k in self.queue and self.queue.stores_of(k) == held for k, (_, _, held) in self.model.items())
        for store in STORES:
            held = {k for k, (_, _, stores) in self.model.items() if store in stores}
            assert self.queue.depth(store) == len(held)
            assert sorted(self.queue.keys_of(store)) == sorted(held)
            assert (store in self.queue.stores()) == bool(held)
            assert self.queue.best([store]) == self.best([store])


TestQueue = QueueMachine.TestCase


class SightMachine(RuleBasedStateMachine):
    """Both directions of the map against one of them."""

    def __init__(self):
        super().__init__()
        self.sight, self.model = Sight(), {}

    @rule(worker=keys, stores=st.lists(st.sampled_from(STORES), unique=True))
    def update(self, worker, stores):
        self.sight.update(worker, {s: Seen("/r", "h", "h") for s in stores})
        self.model[worker] = set(stores)

    @rule(worker=keys)
    def remove(self, worker):
        self.sight.remove(worker)
        self.model.pop(worker, None)

    @invariant()
    def agrees(self):
        for store in STORES:
            assert set(self.sight.workers(store)) == {w for w, stores in self.model.items() if store in stores}
        for worker in range(21):
            assert set(self.sight.stores(worker)) == self.model.get(worker, set())
        workers = list(self.model)
        for wanted in (["a"], ["a", "b"], STORES):
            assert self.sight.all_see(workers, wanted) == all(self.model[w] & set(wanted) for w in workers)


TestSight = SightMachine.TestCase


def test_pace_is_a_guess_then_measured_and_grows_while_nothing_happens():
    """The wait is depth times the interval between reads, or the time since the last one where that is longer."""
    pace = Pace(since=100.0)
    assert pace.wait(10, 100.0, guess=0.5) == 5.0
    for now in (102.0, 104.0, 106.0):
        pace.taken(now)
    assert pace.wait(3, 106.5, guess=0.5) == pytest.approx(6.0)
    assert pace.wait(3, 116.0, guess=0.5) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("wait", "fetch", "work", "pays"),
    [
        (10.0, 1.0, 0.5, True),
        (2.5, 1.0, 0.5, False),  # the store's own workers are there nearly as soon
        (10.0, 10.0, 0.5, False),  # the network is too slow
        (10.0, 0.0, 6.0, False),  # there are two left, and each takes longer than what is to be won
    ],
)
def test_help_pays_where_the_partition_is_done_long_before_its_turn(wait, fetch, work, pays):
    """Measured bandwidths and intervals decide, no constant number of partitions."""
    assert help_pays(wait, fetch, work) is pays
