"""Copies of partitions: how the client has them made."""

from __future__ import annotations

import os
import threading
from collections import Counter

import dask
import pytest

import ckpt_spill as cs
from ckpt_spill import copying
from ckpt_spill.copying import Copy, Outcome, Site
from ckpt_spill.hosts import HostLostError
from ckpt_spill.jobs import Record
from ckpt_spill.replicas import Replication
from ckpt_spill.store.store import Store
from tests.test_copying import RUN, flip, path_of, ref_of, write


class Machines:
    """Hosts that are directories: each address sees one, or several do. What they are asked runs here.

    Attributes
    ----------
    dead : set of str
        Addresses that do not answer.
    """

    alone = False

    def __init__(self, directory, domains):
        self.roots = {}
        self.domains = {}
        for address, domain in domains.items():
            name = address.partition(":")[0]
            self.roots[address] = directory / name
            self.domains[address] = domain
            Store.create(str(directory / name))
        self.dead = set()
        self.free = 1 << 40
        self.fetches = []

    def each(self, function, roots, named):
        assert function is copying.sites
        found = {}
        for address, root in self.roots.items():
            store = Store.open(str(root))
            if address not in self.dead and store:
                found[address] = [Site(ref_of(store), self.domains[address], self.free)]
        return found

    def at(self, function, calls):
        assert function is copying.fetch
        [(address, args)] = calls
        self.fetches.append((address, [c.partition for c in args[2]]))
        if address in self.dead:
            raise HostLostError(f"{address} was lost", address=address)
        return [function(*args)]

    def write(self, address, partition, nbytes=1000):
        """Write a partition as a task there would; give its record."""
        copy = write(self.roots[address], partition, nbytes)
        return self.record(address, copy)

    def record(self, address, copy):
        store = Store.open(str(self.roots[address]))
        return Record(RUN.run, copy.partition, store.id, store.root, "host", 1, copy.stored_nbytes, copy.digest)

    def holders(self, records):
        """Addresses, without what distinguishes workers of one host, by partition."""
        names = {Store.open(str(root)).id: a.partition(":")[0] for a, root in self.roots.items() if root.exists()}
        found = {}
        for r in records:
            path = Store(r.root, r.store).partition_path(RUN, r.partition, r.digest)
            assert os.path.getsize(path) == r.stored_nbytes
            found.setdefault(r.partition, []).append(names[r.store])
        return found


@pytest.fixture
def machines(tmp_path):
    """A factory: names of hosts, or a mapping of addresses ``host:number`` to domains."""
    return lambda domains: Machines(tmp_path, domains if isinstance(domains, dict) else {d: d for d in domains})


@pytest.fixture(autouse=True)
def little_patience():
    with dask.config.set({"ckpt-spill.patience": "0s"}):
        yield


def replicating(hosts, *there, replicas=2, npartitions=50):
    return Replication(hosts, RUN, replicas, npartitions, there)


def test_two_copies(machines):
    """Partitions come one after the other, each gets its second copy, and the stores fill evenly."""
    hosts = machines("abcd")
    with replicating(hosts) as replication:
        for n in range(40):
            replication.add(hosts.write("abcd"[n % 4], n))
        records = replication.finish()
    holders = hosts.holders(records)
    assert sorted(holders) == list(range(40))
    assert all(len(of) == len(set(of)) == 2 for of in holders.values())
    counts = Counter(name for of in holders.values() for name in of)
    assert set(counts.values()) <= {19, 20, 21}


def test_copying_goes_on_meanwhile(machines):
    """Copies are fetched while partitions come; finishing does not begin them. One batch at a time for each store."""
    hosts = machines("ab")
    busy, overlap, fetched = Counter(), [], threading.Semaphore(0)
    at = hosts.at

    def watching(function, calls):
        busy[calls[0][0]] += 1
        overlap.append(busy[calls[0][0]])
        result = at(function, calls)
        busy[calls[0][0]] -= 1
        fetched.release()
        return result

    hosts.at = watching
    with replicating(hosts) as replication:
        for n in range(10):
            replication.add(hosts.write("a", n))
            assert n > 2 or fetched.acquire(timeout=60)
        replication.finish()
    assert set(overlap) == {1}


def test_nothing_lacks(machines):
    """Copies that are there already are taken as they are."""
    hosts = machines("abc")
    there = [r for n in range(5) for r in (hosts.write("a", n), hosts.write("b", n))]
    with replicating(hosts, *there) as replication:
        records = replication.finish()
    assert hosts.fetches == []
    assert hosts.holders(records) == {n: ["a", "b"] for n in range(5)}


def test_labels_count(machines):
    """Copies go to another domain, whatever the hosts; copies in one domain count once."""
    hosts = machines({"a": "rack-1", "b": "rack-1", "c": "rack-2"})
    there = [hosts.write("a", 0), hosts.write("b", 0), hosts.write("b", 1), hosts.write("c", 2)]
    with replicating(hosts, *there) as replication:
        holders = hosts.holders(replication.finish())
    assert holders[0] == ["a", "b", "c"]
    assert holders[1] == ["b", "c"]
    assert holders[2][0] == "c"
    assert holders[2][1] in "ab"


def test_too_few_domains(machines):
    """Copies that can never be are refused at once."""
    with pytest.raises(cs.RefusedError, match=r"replicas=3 .* have 2: rack-1, rack-2"):
        replicating(machines({"a": "rack-1", "b": "rack-1", "c": "rack-2"}), replicas=3)


def test_shared_storage(tmp_path):
    """A store that workers of two hosts see is in neither's domain."""
    hosts = Machines(tmp_path, {"shared:0": "a", "shared:1": "b", "c": "a"})
    with replicating(hosts) as replication:
        replication.add(hosts.write("c", 0))
        assert hosts.holders(replication.finish()) == {0: ["c", "shared"]}


def test_another_worker_of_the_node(machines):
    """When the worker that was asked is lost, another one that sees the store is."""
    hosts = machines({"a:0": "a", "b:0": "b", "b:1": "b"})
    with replicating(hosts) as replication:
        hosts.dead = {"b:0"}
        for n in range(3):
            replication.add(hosts.write("a:0", n))
        assert hosts.holders(replication.finish()) == {n: ["a", "b"] for n in range(3)}
    assert [address for address, _ in hosts.fetches][:2] == ["b:0", "b:1"]
    assert {address for address, _ in hosts.fetches[1:]} == {"b:1"}


def test_a_destination_is_lost(machines):
    """What a lost store was to have goes to others, and what it had is made again."""
    hosts = machines("abc")
    with replicating(hosts) as replication:
        for n in range(6):
            replication.add(hosts.write("a", n))
        replication.finish()
        hosts.dead = {"b"}
        for n in range(6, 12):
            replication.add(hosts.write("a", n))
        records = replication.finish()
    assert hosts.holders(records) == {n: ["a", "c"] for n in range(12)}


def test_the_source_is_lost(machines):
    """A partition that only a lost store had is no copy's source: it has to be made again, and then gets its copies."""
    hosts = machines("abc")
    with replicating(hosts) as replication:
        first = [hosts.write("a", n) for n in range(3)]
        for record in first:
            replication.add(record)
        replication.finish()
        late = [hosts.write("a", 3), hosts.write("b", 4)]
        os.rename(hosts.roots["a"], str(hosts.roots["a"]) + "-lost")
        for record in late:
            replication.add(record)
        records = replication.finish()
        assert hosts.holders(records).keys() == {0, 1, 2, 4}
        replication.add(hosts.write("c", 3))
        records = replication.finish()
    holders = hosts.holders(records)
    assert {n: sorted(of) for n, of in holders.items()} == {n: ["b", "c"] for n in range(5)}


def test_a_store_comes_back(machines):
    """A store that comes back in time is waited for, and its partitions are not copied again."""
    hosts = machines("ab")
    looks, there = [], [hosts.write("a", 0), hosts.write("b", 0)]

    def each(*args):
        looks.append(args)
        hosts.dead = {"b"} if len(looks) in (2, 3) else set()
        return Machines.each(hosts, *args)

    with dask.config.set({"ckpt-spill.patience": "60s"}), replicating(hosts, *there) as replication:
        hosts.each = each
        looks.append(None)
        assert hosts.holders(replication.finish()) == {0: ["a", "b"]}
    assert len(looks) == 4
    assert hosts.fetches == []


def test_no_domain_is_left(machines):
    """When there are too few domains in the end, the error names partitions and domains."""
    hosts = machines("ab")
    with replicating(hosts) as replication:
        hosts.dead = {"b"}
        for n in (0, 1, 2, 7):
            replication.add(hosts.write("a", n))
        with pytest.raises(cs.WriteError, match=r"partitions 0-2, 7 of .* 2 copies.* reach: a\. ") as e:
            replication.finish()
    assert e.value.partitions == [0, 1, 2, 7]


def test_a_full_store(machines):
    """A store that refuses gets nothing more; when none is left the error says why."""
    hosts = machines("abc")
    full = {"b"}

    def at(function, calls):
        [(address, args)] = calls
        if address in full:
            return [[Outcome(None, f"no room on {address}", {}, {}, {}) for copy in args[2]]]
        return Machines.at(hosts, function, calls)

    hosts.at = at
    with replicating(hosts) as replication:
        for n in range(6):
            replication.add(hosts.write("a", n))
        assert hosts.holders(replication.finish()) == {n: ["a", "c"] for n in range(6)}
        full.add("c")
        replication.add(hosts.write("a", 6))
        with pytest.raises(cs.WriteError, match=r"partitions 6 .*no room on b; no room on c"):
            replication.finish()


def test_room_for_what_is_to_come(machines):
    """Stores keep room for partitions that are still to be written; the copies that this leaves are made in the end."""
    hosts = machines("ab")
    record = hosts.write("a", 0)
    hosts.free = 3 * record.stored_nbytes
    with replicating(hosts, npartitions=10) as replication:
        for n in range(10):
            replication.add(hosts.write("a", n))
            assert n > 3 or not hosts.fetches
        hosts.free = 1 << 40
        assert hosts.holders(replication.finish()) == {n: ["a", "b"] for n in range(10)}


def test_no_room(machines):
    """Stores that say that they have no room are not asked."""
    hosts = machines("ab")
    hosts.free = 100
    with replicating(hosts) as replication:
        replication.add(hosts.write("a", 0))
        with pytest.raises(cs.WriteError, match="partitions 0"):
            replication.finish()
    assert hosts.fetches == []


def test_a_damaged_source(machines):
    """A copy that turns out to be damaged is made again. Where it was the only one, the partition is no more."""
    hosts = machines("abc")
    both = [hosts.write("a", 0), hosts.write("b", 0)]
    one = hosts.write("a", 1)
    for record in (both[0], one):
        flip(path_of(record.root, Copy(record.partition, record.digest, 0, ())), 500)
    with replicating(hosts, *both, one, replicas=3) as replication:
        assert {n: sorted(of) for n, of in hosts.holders(replication.finish()).items()} == {0: ["a", "b", "c"]}
    [copy] = copying.fetch(ref_of(Store.create(str(hosts.roots["a"]))), RUN, [Copy(0, both[0].digest, 0, ())], False)
    assert copy.record == both[0]._replace(host=copy.record.host, nbytes=copy.record.nbytes)


def test_attempts_differ(machines):
    """Of two attempts at a partition, that with more copies counts, and only its copies are made."""
    hosts = machines("abc")
    other = write(hosts.roots["a"], 0, 500)
    there = [hosts.record("a", other), hosts.write("b", 0), hosts.write("c", 0)]
    with replicating(hosts, *there) as replication:
        records = replication.finish()
    assert hosts.holders(records) == {0: ["b", "c"]}
    assert len({r.digest for r in records}) == 1
    assert hosts.fetches == []


def test_a_store_nobody_knew(machines, tmp_path):
    """A worker that joined meanwhile has written; its store takes copies from then on."""
    hosts = machines("ab")
    with replicating(hosts) as replication:
        hosts.roots["c"], hosts.domains["c"] = tmp_path / "c", "c"
        replication.add(hosts.write("c", 0))
        [[*holders]] = hosts.holders(replication.finish()).values()
    assert holders[0] == "c"
    assert len(holders) == 2


def test_a_store_is_gone(machines):
    """A store whose disk was wiped under its worker counts as lost."""
    hosts = machines("abc")
    with replicating(hosts) as replication:
        os.rename(hosts.roots["b"], str(hosts.roots["b"]) + "-lost")
        for n in range(4):
            replication.add(hosts.write("a", n))
        assert hosts.holders(replication.finish()) == {n: ["a", "c"] for n in range(4)}


@pytest.mark.parametrize("when", ["add", "finish"])
def test_an_error_in_a_thread(machines, when):
    """What goes wrong in a thread is raised by the next call; no thread stays."""
    hosts = machines("ab")
    failed = threading.Event()

    def at(function, calls):
        try:
            raise cs.CkptSpillError("worker b failed")
        finally:
            failed.set()

    hosts.at = at
    with pytest.raises(cs.CkptSpillError, match="worker b failed"), replicating(hosts) as replication:
        replication.add(hosts.write("a", 0))
        assert failed.wait(60)
        if when == "finish":
            replication.finish()
        for n in range(1000):
            threading.Event().wait(0.01)
            replication.add(hosts.write("a", n))


def test_leaving_ends_it(machines):
    """An error in between, or an interrupt: what is on its way is waited for, what is planned is not begun."""
    hosts = machines("ab")
    begun, go_on = threading.Event(), threading.Event()

    def at(function, calls):
        begun.set()
        assert go_on.wait(60)
        return Machines.at(hosts, function, calls)

    hosts.at = at
    with pytest.raises(KeyboardInterrupt), replicating(hosts) as replication:
        replication.add(hosts.write("a", 0))
        assert begun.wait(60)
        for n in range(1, 5):
            replication.add(hosts.write("a", n))
        threading.Timer(0.1, go_on.set).start()
        raise KeyboardInterrupt
    assert hosts.fetches == [("b", [0])]
