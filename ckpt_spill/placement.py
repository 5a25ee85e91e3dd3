"""Where copies go: into different failure domains, and so that stores fill evenly. Nothing is asked or read in here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from ckpt_spill.errors import RefusedError


def domains(seen: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Give the failure domain of each store, from what workers say: a store, and the domain of the worker that sees it.

    What workers of several domains see is a domain of its own, as it does not die with any of them.
    """
    found: dict[str, set[str]] = {}
    for store, domain in seen:
        found.setdefault(store, set()).add(domain)
    return {store: min(of) if len(of) == 1 else f"shared store {store}" for store, of in found.items()}


def check_replicas(replicas: object) -> None:
    """Refuse what is no number of copies."""
    if type(replicas) is not int or replicas < 1:
        raise RefusedError(f"replicas has to be a whole number, 1 or more, not {replicas!r}")


def require_domains(found: Collection[str], replicas: int) -> None:
    """Refuse more copies than there are domains.

    Raises
    ------
    RefusedError
        There are too few; the message names them.
    """
    names = sorted(set(found))
    if len(names) < replicas:
        raise RefusedError(
            f"replicas={replicas} needs stores in {replicas} failure domains, and the workers have {len(names)}: "
            f"{', '.join(names) or 'no store can be written'}. Nothing was computed or copied. Ask for fewer, or start "
            "workers on more hosts; where disks of one host count as apart, give workers ckpt-spill.domain as they do",
            domains=names,
        )


class Placement:
    """Chooses stores for copies, and keeps account of what they have of the checkpoint at hand."""

    def __init__(self) -> None:
        self._domain_of: dict[str, str] = {}
        self._free: Counter[str] = Counter()
        self._held: Counter[str] = Counter()

    def update(self, domain_of: Mapping[str, str], free: Mapping[str, int]) -> None:
        """Take the stores that there are now: their domains, and the bytes that each has room for."""
        self._domain_of, self._free = dict(domain_of), Counter(free)

    def add(self, store: str, nbytes: int) -> None:
        """Count bytes that a store has."""
        self._held[store] += nbytes

    def take(self, store: str, nbytes: int) -> None:
        """Count bytes that a store is going to have."""
        self._held[store] += nbytes
        self._free[store] -= nbytes

    def choose(
        self, used: Collection[str], nbytes: int, copies: int, *, without: Collection[str] = (), reserve: int = 0
    ) -> list[str]:
        """Choose stores for copies of a partition: those that have least of the checkpoint.

        Parameters
        ----------
        used : collection of str
            Domains that have a copy already.
        nbytes : int
            Size of the partition file.
        copies : int
            How many there are to be.
        without : collection of str
            Stores that may not have one.
        reserve : int
            Bytes that each store has to have room for besides, for partitions that are still to be written.

        Returns
        -------
        list of str
            Stores in different domains; fewer than asked for where no more have room.
        """
        taken, chosen = set(used), list[str]()
        for store in sorted(self._domain_of.keys() - set(without), key=self._fullness):
            if len(chosen) < copies and self._free[store] >= nbytes + reserve and self._domain_of[store] not in taken:
                taken.add(self._domain_of[store])
                chosen.append(store)
        return chosen

    def _fullness(self, store: str) -> tuple[int, int, str]:
        return self._held[store], -self._free[store], store
