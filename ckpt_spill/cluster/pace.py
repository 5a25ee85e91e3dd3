"""How fast things go, as measured, for the one question whether a worker should help with another's backlog."""

from __future__ import annotations

import dataclasses

_WEIGHT = 0.3  # of a new measurement in a moving average
_STALL = 1.0  # seconds
_MARGIN = 2.5
"""Fetching also costs the peer that serves, and a partition loaded out of place costs memory elsewhere."""


@dataclasses.dataclass
class Average:
    """A moving average, exponentially weighted; None before the first measurement."""

    value: float | None = None

    def add(self, measured: float) -> None:
        """Take one measurement."""
        self.value = measured if self.value is None else self.value + _WEIGHT * (measured - self.value)


@dataclasses.dataclass
class Pace:
    """How often the workers of a store take up one of its reads.

    Parameters
    ----------
    since : float
        Time, in seconds, when reads began to wait for it.
    """

    since: float
    _interval: Average = dataclasses.field(default_factory=Average)

    def taken(self, now: float) -> None:
        """Note that a worker of the store took a read while others waited."""
        self._interval.add(now - self.since)
        self.since = now

    def goes_on(self, now: float) -> bool:
        """Tell whether reads are taken up about as often as they used to be."""
        return now - self.since < max(_STALL, 4 * (self._interval.value or 0.0))

    def interval(self, guess: float) -> float:
        """Give the seconds from one read to the next, or a guess for as long as none was measured."""
        return guess if self._interval.value is None else self._interval.value

    def wait(self, depth: int, now: float, guess: float) -> float:
        """Estimate the seconds until the store's own workers have taken up all of the reads that wait.

        Where nothing has been taken up for long, nothing will be for as long again, as far as anybody knows.

        Parameters
        ----------
        depth : int
            How many wait.
        now : float
        guess : float
            Seconds for each, for as long as none was measured.
        """
        return max(depth * self.interval(guess), now - self.since)


def help_pays(wait: float, fetch: float, work: float) -> bool:
    """Tell whether an idle thread would be done with a partition well before its own workers came to their last.

    Parameters
    ----------
    wait : float
        Seconds, from ``Pace.wait``.
    fetch : float
        Seconds to get the partition there.
    work : float
        Seconds for which a partition occupies a thread: the read, and what follows from it before the next read.
    """
    return wait > _MARGIN * (fetch + work)
