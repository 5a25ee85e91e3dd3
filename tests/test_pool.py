"""The pool of threads: order, bounds, errors, forks, exits."""

import os
import subprocess
import sys
import threading

import pytest

from ckpt_spill.store.pool import GRAIN, ordered


def heavy(_item):
    return GRAIN


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("weight", [0, GRAIN // 10, GRAIN])
def test_results_in_order(threads, weight):
    """Results come in the order of the items, however many threads and however light the items."""
    results = ordered(lambda item: item * item, range(100), weight=lambda _: weight, threads=threads)
    assert list(results) == [n * n for n in range(100)]


def test_runs_in_other_threads():
    """Heavy items are computed in the pool, light ones of a whole stream together."""
    names = set(ordered(lambda _: threading.current_thread().name, range(20), weight=heavy, threads=2))
    assert all(name.startswith("ckpt-spill") for name in names)


def test_bounded_ahead():
    """No more than a few items are taken before their results are used."""
    taken = []
    items = (taken.append(n) or n for n in range(1000))
    results = ordered(lambda item: item, items, weight=heavy, threads=2)
    for _ in range(5):
        next(results)
    assert len(taken) < 20
    results.close()


def test_error_reaches_the_caller_when_nothing_runs_any_more():
    """An error in one item comes out, and by then no other item is being computed."""
    running, lock = set(), threading.Lock()

    def work(item):
        with lock:
            running.add(item)
        try:
            if item == 3:
                raise OSError("no more")
            sum(range(100_000))
        finally:
            with lock:
                running.discard(item)

    with pytest.raises(OSError, match="no more"):
        list(ordered(work, range(100), weight=heavy, threads=4))
    assert running == set()


def test_leaving_early_waits():
    """A caller that leaves can free what the items used at once."""
    started, release, done = threading.Event(), threading.Event(), []

    def work(item):
        if item:
            started.set()
            release.wait(10)
            done.append(item)
        return item

    results = ordered(work, range(2), weight=heavy, threads=2)
    assert next(results) == 0
    started.wait(10)
    threading.Timer(0.05, release.set).start()
    results.close()
    assert done == [1]


def test_error_of_the_items_themselves():
    """An error while the next item is made is the caller's, and nothing is left running."""

    def items():
        yield 1
        raise KeyError("items")

    with pytest.raises(KeyError, match="items"):
        list(ordered(lambda item: item, items(), weight=heavy, threads=2))


SCRIPT = """
import os, sys
from ckpt_spill.store.pool import GRAIN, ordered

def total():
    return sum(ordered(lambda n: n, range(100), weight=lambda _: GRAIN, threads=3))

assert total() == 4950
child = os.fork()
if child == 0:
    os._exit(0 if total() == 4950 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_survives_a_fork_and_lets_the_process_end():
    """A forked child makes threads of its own, and neither process hangs at its end."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], check=True, timeout=60)
