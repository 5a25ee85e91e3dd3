"""Where copies go."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import ckpt_spill as cs
from ckpt_spill.placement import Placement, domains, require_domains

ROOM = 1 << 60
stores = st.dictionaries(st.text("0123456789abcdef", min_size=1, max_size=3), st.sampled_from("ABCDEF"), min_size=1)
sizes = st.lists(st.integers(0, 1000), max_size=40)


def placement(domain_of, free=ROOM):
    made = Placement()
    made.update(domain_of, free if isinstance(free, dict) else dict.fromkeys(domain_of, free))
    return made


def replicate(made, domain_of, partitions, replicas):
    """Place all copies of partitions, each given as the store that it was written in and its size."""
    holders = []
    for first, nbytes in partitions:
        made.add(first, nbytes)
        chosen = made.choose({domain_of[first]}, nbytes, replicas - 1)
        for store in chosen:
            made.take(store, nbytes)
        holders.append([first, *chosen])
    return holders


@given(stores, st.data(), st.integers(1, 6))
def test_domains_are_apart(domain_of, data, replicas):
    """Each partition gets as many copies as were asked for, or there are domains, all in different ones."""
    partitions = data.draw(st.lists(st.tuples(st.sampled_from(sorted(domain_of)), st.integers(0, 1000)), max_size=30))
    for holders in replicate(placement(domain_of), domain_of, partitions, replicas):
        assert len(holders) == min(replicas, len(set(domain_of.values())))
        assert len({domain_of[store] for store in holders}) == len(holders)


@given(stores, st.data())
def test_the_least_filled(domain_of, data):
    """No store in a domain that might have been used has less than one that was chosen."""
    held = data.draw(st.fixed_dictionaries({store: st.integers(0, 50) for store in domain_of}))
    used = data.draw(st.sets(st.sampled_from("ABCDEF")))
    without = data.draw(st.sets(st.sampled_from(sorted(domain_of))))
    copies = data.draw(st.integers(0, 6))
    made = placement(domain_of)
    for store, nbytes in held.items():
        made.add(store, nbytes)
    chosen = made.choose(used, 1, copies, without=without)
    assert chosen == made.choose(used, 1, copies, without=without)
    assert not without.intersection(chosen)
    taken = {domain_of[store] for store in chosen}
    assert not taken & used
    possible = {s for s in domain_of.keys() - without if domain_of[s] not in used}
    assert len(chosen) == len(taken) == min(copies, len({domain_of[s] for s in possible}))
    for store in chosen:
        rivals = [s for s in possible if domain_of[s] == domain_of[store] or domain_of[s] not in taken]
        assert held[store] == min(held[s] for s in rivals)


@pytest.mark.parametrize("nodes", range(2, 9))
def test_stores_fill_evenly(nodes):
    """One store on each node, partitions written in turn: no store is more than one or two copies ahead."""
    domain_of = {str(i): str(i) for i in range(nodes)}
    for replicas in range(2, nodes + 1):
        made, held = placement(domain_of), Counter()
        for n in range(100):
            [holders] = replicate(made, domain_of, [(str(n % nodes), 1)], replicas)
            held.update(holders)
            assert max(held.values()) <= min(held[store] for store in domain_of) + 2


def test_sizes_differ():
    """Partitions of very different sizes fill stores as evenly."""
    rng = np.random.default_rng(0)
    domain_of = {str(i): str(i) for i in range(4)}
    partitions = [(str(n % 4), int(size)) for n, size in enumerate(rng.lognormal(10, 1.5, 200))]
    held = Counter()
    for (_, nbytes), holders in zip(partitions, replicate(placement(domain_of), domain_of, partitions, 2), strict=True):
        held.update(dict.fromkeys(holders, nbytes))
    assert max(held.values()) <= 1.1 * sum(held.values()) / 4


def test_one_node_computes_most():
    """Where one node was faster, the others get the copies."""
    domain_of = {str(i): str(i) for i in range(4)}
    partitions = [("0" if n % 2 else str(n // 2 % 4), 10) for n in range(160)]
    held = Counter(s for holders in replicate(placement(domain_of), domain_of, partitions, 2) for s in holders)
    assert held["0"] == 100
    assert {held["1"], held["2"], held["3"]} <= {73, 74}


def test_drives_of_a_node_share():
    """Stores of one domain share what the domain gets."""
    domain_of = {"a0": "a", "a1": "a", "b0": "b"}
    copies = [s for _, s in replicate(placement(domain_of), domain_of, [("b0", 1)] * 10, 2)]
    assert Counter(copies) == {"a0": 5, "a1": 5}


@given(stores, st.data())
def test_room(domain_of, data):
    """A store that has no room for a copy gets none; what was promised to it counts."""
    free = data.draw(st.fixed_dictionaries({store: st.integers(0, 3000) for store in domain_of}))
    first = data.draw(st.sampled_from(sorted(domain_of)))
    made, taken = placement(domain_of, free), Counter()
    for nbytes in data.draw(sizes):
        chosen = made.choose({domain_of[first]}, nbytes, 2)
        for store in chosen:
            made.take(store, nbytes)
            taken[store] += nbytes
    assert all(taken[store] <= free[store] for store in domain_of)


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("AB"))))
def test_domains_of_stores(seen):
    """A store is in the domain of those who see it; one that several domains see is one of its own."""
    found = domains(seen)
    assert found.keys() == {store for store, _ in seen}
    shared = {store for store in "xyz" if {(store, "A"), (store, "B")} <= set(seen)}
    assert all((store, domain) in seen for store, domain in found.items() if store not in shared)
    own = [found[store] for store in shared]
    assert len(set(own) - {"A", "B"}) == len(own)


def test_too_few_domains():
    """The error names the domains there are, and what to do."""
    require_domains({"a", "b"}, 2)
    with pytest.raises(cs.RefusedError, match=r"replicas=3 .* have 2: rack-1, rack-2\. .*ckpt-spill\.domain") as e:
        require_domains(["rack-2", "rack-1", "rack-1"], 3)
    assert e.value.domains == ["rack-1", "rack-2"]
    with pytest.raises(cs.RefusedError, match="no store"):
        require_domains([], 1)


@given(stores, st.integers(1, 7))
def test_enough_domains_are_enough(domain_of, replicas):
    """What is not refused can be placed."""
    assume(len(set(domain_of.values())) >= replicas)
    require_domains(domain_of.values(), replicas)
    assert len(placement(domain_of).choose((), 1, replicas)) == replicas
