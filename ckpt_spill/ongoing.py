"""Which writes a process is at, so that a run that failed can be told to stop and waited for."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

from ckpt_spill.errors import WriteError

_changed = threading.Condition()
_ongoing: Counter[str] = Counter()
_abandoned: set[str] = set()


@contextlib.contextmanager
def writing(run: str) -> Iterator[None]:
    """Count a write of a run; a run that was abandoned begins none any more."""
    with _changed:
        if run in _abandoned:
            raise WriteError(f"run {run} was given up: another partition of it failed, or the call was interrupted")
        _ongoing[run] += 1
    try:
        yield
    finally:
        with _changed:
            _ongoing[run] -= 1
            _changed.notify_all()


def abandon(run: str, patience: float) -> bool:
    """Let a run begin no more writes here, and wait for those it is at; False if they take longer than the patience.

    Cancelling tasks does not stop those that run already, nor, for a moment, those that are about to.
    """
    with _changed:
        _abandoned.add(run)
        return _changed.wait_for(lambda: not _ongoing[run], patience)
