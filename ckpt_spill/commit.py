"""What makes files a checkpoint: the manifest in every store, written or replaced; and the sweep after that."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from ckpt_spill import errands
from ckpt_spill.errands import GoneError
from ckpt_spill.errors import CkptSpillError, ConflictError
from ckpt_spill.hosts import Hosts
from ckpt_spill.manifest import ManifestData
from ckpt_spill.reach import Place, ask
from ckpt_spill.store.runs import Run

logger = logging.getLogger("ckpt_spill")

Useless = list[tuple[Place, list[Run]]]
"""Runs that may be swept, by store."""


class Commit:
    """A manifest and the stores it goes into.

    A store that has gone away is a ``GoneError``: what was written then does not count yet or does no harm, and is to
    be written again, as a later revision, into the stores that are left.

    Parameters
    ----------
    hosts : Hosts
    manifest : ManifestData
    places : mapping
        The stores by id.
    durable : bool
        Whether it has to survive a power cut.
    lost : collection of int
        Partitions whose files need not be there.
    """

    def __init__(
        self,
        hosts: Hosts,
        manifest: ManifestData,
        places: Mapping[str, Place],
        *,
        durable: bool,
        lost: Collection[int] = (),
    ) -> None:
        self._hosts, self._manifest, self._places, self._durable = hosts, manifest, places, durable
        self._lost = lost
        self._expected = {
            ref.id: dict(file for n, file in manifest.files(h).items() if n not in lost)
            for h, ref in enumerate(manifest.stores)
        }

    def first(self) -> Useless:
        """Commit a run that has no manifest; give what that makes useless.

        Raises
        ------
        ConflictError
            Another run has been faster. Nothing of this one stays.
        """
        run, revision = self._manifest.run, self._manifest.revision
        missing = self._seal(tidy=True)
        try:
            # All runs that use these roots come to the same store first, whether they have partitions there or not.
            useless = None if missing else self._write(min(self._places))
        except BaseException:  # in a later store: the previous checkpoint has to stay the one that counts
            with contextlib.suppress(CkptSpillError, OSError):
                ask(self._hosts, errands.uncommit, self._places, lambda _, place: (place.store.root, run, revision))
            raise
        if useless is None:
            ask(self._hosts, errands.remove, self._places, lambda _, place: (place.store.root, run))
            raise self._conflict("another run had committed this generation", missing)
        return useless

    def again(self, known: Collection[str]) -> Useless:
        """Replace the manifest of a run that was committed before; give what that makes useless.

        Parameters
        ----------
        known : collection of str
            Ids of the stores that may have an earlier revision. All who mend a run come to the first that has it first.

        Raises
        ------
        ConflictError
            Somebody else has been faster. The files that were written stay, unseen; the next one may take them over,
            or, where the run was deleted, ``remove_deleted`` removes them.
        """
        before = {s: place for s, place in self._places.items() if s in known}
        if not self._places or (self._lost and not before):
            raise GoneError("its stores are out of reach")
        missing = self._seal(tidy=False)
        having = {s: before[s] for s, there in _committed(self._hosts, self._manifest.run, before).items() if there}
        useless = None
        if (having or not before) and not missing:
            first = min(having or self._places)
            useless = self._write(first, amend=bool(having))
            # Who deletes it comes to every store twice. Either we see that, or what we have written is removed.
            if having and False in _committed(self._hosts, self._manifest.run, {first: having[first]}).values():
                useless = None
        if useless is None:
            raise self._conflict("somebody else had mended, replaced or deleted it", missing)
        return useless

    def _write(self, first: str, *, amend: bool = False) -> Useless | None:
        """Write the manifest into one store, where it may have to amend one, then into the others; None if refused."""
        manifest, content = self._manifest, self._manifest.to_json()
        useless: Useless = []
        for places in ([self._places[first]], [p for s, p in self._places.items() if s != first]):
            calls = []
            for address, ref in places:
                must = amend and ref.id == first
                calls.append((address, (ref, manifest.run, content, self._expected[ref.id], self._durable, must)))
            for place, runs in zip(places, self._hosts.at(errands.commit, calls), strict=True):
                if runs is None:
                    return None
                useless.append((place, runs))
        return useless

    def _seal(self, *, tidy: bool) -> list[str]:
        """Make the names of the run's files durable in every store; give those that are missing."""
        calls = []
        for address, ref in self._places.values():
            calls.append((address, (ref, self._manifest.run, self._expected[ref.id], self._durable, tidy)))
        return [name for names in self._hosts.at(errands.seal, calls) for name in names]

    def _conflict(self, reason: str, missing: Sequence[str] = ()) -> ConflictError:
        if missing:
            reason = f"{len(missing)} of its files are gone"
        return ConflictError(
            f"checkpoint {self._manifest.id!r} was not committed: when it was complete {reason}. Call again"
        )


def _committed(hosts: Hosts, run: Run, places: Mapping[str, Place]) -> dict[str, bool]:
    """Tell which of some stores have the manifest of a run."""
    return ask(hosts, errands.committed, places, lambda _, place: (place.store.root, run))


def is_committed(hosts: Hosts, run: Run, places: Mapping[str, Place]) -> bool:
    """Tell whether some store has the manifest of a run."""
    return any(_committed(hosts, run, places).values())


def remove_deleted(hosts: Hosts, run: Run, places: Mapping[str, Place], known: Collection[str] = ()) -> bool:
    """After a run could not be mended, see whether it is still committed; if not, remove what was written for it since.

    Parameters
    ----------
    hosts : Hosts
    run : Run
        One that was committed before.
    places : mapping
        The stores in reach, by id.
    known : collection of str
        Ids of stores of which one has to answer, if there are any: what was written can be of use when they come back.

    Returns
    -------
    bool
        Whether none of the stores has its manifest any more.
    """
    answers = _committed(hosts, run, places)
    if any(answers.values()) or (known and answers.keys().isdisjoint(known)):
        return False
    ask(hosts, errands.remove, {s: places[s] for s in answers}, lambda _, place: (place.store.root, run))
    return True


def superseded(hosts: Hosts, run: Run, places: Iterable[Place]) -> Useless:
    """Find what a committed run makes useless in some stores."""
    by_number = dict(enumerate(places))
    found = ask(hosts, errands.superseded, by_number, lambda _, place: (place.store.root, run))
    return [(by_number[n], runs) for n, runs in found.items()]


def sweep(hosts: Hosts, run: Run, useless: Useless) -> None:
    """Remove what a committed run makes useless. It is committed: trouble here is no failure."""
    try:
        places = dict(enumerate(place for place, _ in useless))
        ask(hosts, errands.sweep, places, lambda n, place: (place.store.root, run, useless[n][1]))
    except (CkptSpillError, OSError) as e:
        logger.warning("files that checkpoint %r no longer needs were left: %s", run.checkpoint, e)
