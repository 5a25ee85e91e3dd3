"""What a worker is asked when partitions are to have copies: which stores it has for them, and to fetch some.

A copy is the same file, byte for byte. It is checked as a whole, as it lies on the disk, before it gets its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from ckpt_spill.cluster.remote import RANGE, FileId, PeerLostError, RemoteFile
from ckpt_spill.cluster.worker import sharing
from ckpt_spill.config import configured_roots, domain
from ckpt_spill.errands import GoneError
from ckpt_spill.errors import ReadError, RootError, WriteError
from ckpt_spill.here import process_name, scratch_here, settings_here, this_worker
from ckpt_spill.jobs import Record, StoreRef
from ckpt_spill.store import partition as partition_files
from ckpt_spill.store.codecs import Bytes
from ckpt_spill.store.descriptors import OpenFile, Source, Writer, open_regular
from ckpt_spill.store.files import free_bytes, sync_file
from ckpt_spill.store.partition import Identity, Written
from ckpt_spill.store.preflight import check_root
from ckpt_spill.store.runs import Run
from ckpt_spill.store.store import Store, find_store
from ckpt_spill.tasks import record_of

_PATIENCE = 20.0  # seconds for the event loop of this worker to let its plugin look for stores

logger = logging.getLogger("ckpt_spill")


class Site(NamedTuple):
    """A store of a worker that may take copies: its failure domain, and the bytes that it has room for."""

    ref: StoreRef
    domain: str
    free: int


class Holder(NamedTuple):
    """A store that has a partition, and the addresses of workers that see it."""

    ref: StoreRef
    peers: tuple[str, ...]


class Copy(NamedTuple):
    """A copy to be made: of which file, and who has it."""

    partition: int
    digest: bytes
    stored_nbytes: int
    holders: tuple[Holder, ...]


class Outcome(NamedTuple):
    """What became of a copy to be made.

    Attributes
    ----------
    record : Record or None
        Of the copy, if it was made.
    refused : str
        Why this store cannot take it; empty where that was not the reason.
    damaged : dict of str to str
        Stores whose copy is not what it should be, and how that was found.
    missing : dict of str to str
        Stores that do not have it, as a worker found that sees them.
    silent : dict of str to str
        Workers that could not say, as they did not answer or did not see the store.
    """

    record: Record | None
    refused: str
    damaged: dict[str, str]
    missing: dict[str, str]
    silent: dict[str, str]

    def reason(self) -> str:
        """Say why it was not made."""
        reasons = self.refused, *self.damaged.values(), *self.missing.values(), *self.silent.values()
        return "; ".join(filter(None, reasons)) or "nobody can be asked for it"


# ---------------------------------------------------------------------------------------------------------------- sites
def sites(roots: tuple[str, ...] | None, named: Sequence[StoreRef]) -> list[Site]:
    """Give the stores of this worker that may take copies, and let peers read them.

    Parameters
    ----------
    roots : tuple of str or None
        Where stores are, and are made if none is there yet. Default: where this worker is configured to have them,
        else where the first of ``named`` is.
    named : sequence of StoreRef
        Stores that a manifest names. A worker that sees some of these has no others for copies.
    """
    settings = settings_here(roots or configured_roots() or tuple(ref.root for ref in named[:1]))
    found = [s for ref in named if (s := find_store(ref.id, (ref.root, *settings.roots)))]
    if not found:
        found = [s for root in settings.roots if (s := Store.open(root) or _made(root))]
    _serve([store.root for store in found])
    refs = [StoreRef(store.id, store.root, socket.gethostname()) for store in found]
    return [Site(ref, domain(), max(free_bytes(ref.root) - settings.min_free, 0)) for ref in refs]


def _made(root: str) -> Store | None:
    store, problems, _ = check_root(root, scratch=scratch_here())
    if store is None:
        logger.warning("%s cannot have copies in %s: %s", process_name(), root, "; ".join(problems))
    return store


def _serve(roots: Sequence[str]) -> None:
    """Let the plugin of this worker know of stores that may be new, as peers are going to ask for what is in them."""
    worker = this_worker()
    if plugin := sharing(worker):
        asyncio.run_coroutine_threadsafe(plugin.look(roots), worker.loop.asyncio_loop).result(_PATIENCE)


# ------------------------------------------------------------------------------------------------------------- copying
def fetch(ref: StoreRef, run: Run, copies: Sequence[Copy], durable: bool) -> list[Outcome]:  # noqa: FBT001
    """Copy partition files into a store of this worker, each from the first holder that has it sound.

    Raises
    ------
    GoneError
        The store is not there any more.
    """
    if (store := find_store(ref.id, [ref.root])) is None:
        raise GoneError(f"store {ref.id} is not in {ref.root} on host {ref.host} any more")
    silent: dict[str, str] = {}
    return [_fetch(store, run, copy, silent, durable=durable) for copy in copies]


def _fetch(store: Store, run: Run, copy: Copy, silent: dict[str, str], *, durable: bool) -> Outcome:
    """Make one copy; a peer that once could not say is not asked again, as waiting for an answer takes long."""
    outcome = Outcome(None, "", {}, {}, {})
    written = _left_before(store, run, copy, durable=durable)
    for holder, peer, opening in () if written else _candidates(run, copy):
        if peer in silent:
            outcome.silent[peer] = silent[peer]
            continue
        if holder in outcome.damaged or holder in outcome.missing:
            continue
        try:
            with opening as source:
                take = functools.partial(_take, source=source, run=run, copy=copy, durable=durable)
                written = store.publish(run, copy.partition, take, needed=copy.stored_nbytes)
            break
        except PeerLostError as e:
            outcome.silent[e.peer] = silent[e.peer] = str(e)
        except (WriteError, RootError) as e:
            return outcome._replace(refused=str(e))
        except FileNotFoundError as e:
            outcome.missing[holder] = str(e)
        except (ReadError, OSError, ValueError) as e:
            outcome.damaged[holder] = str(e)
    return outcome._replace(record=record_of(run, copy.partition, store, written)) if written else outcome


def _left_before(store: Store, run: Run, copy: Copy, *, durable: bool) -> Written | None:
    """Take a sound copy that is there already: a worker that was lost may have made it."""
    path = store.partition_path(run, copy.partition, copy.digest)
    with contextlib.suppress(ReadError, OSError):
        written = _verified(path, run, copy)
        if durable:
            sync_file(path)
        return written
    return None


def _candidates(run: Run, copy: Copy) -> Iterator[tuple[str, str, AbstractContextManager[Source]]]:
    """Give each holder, where it is to be asked, and its file there, not yet opened: here if it is seen from here."""
    roots, worker = settings_here(None).roots, this_worker()
    for ref, peers in copy.holders:
        if store := find_store(ref.id, (ref.root, *roots)):
            yield ref.id, "", open_regular(store.partition_path(run, copy.partition, copy.digest))
        else:
            for peer in peers if worker else ():
                yield ref.id, peer, _open_at(worker, peer, FileId(ref.id, run, copy.partition, copy.digest))


@contextlib.contextmanager
def _open_at(worker: Any, peer: str, file: FileId) -> Iterator[RemoteFile]:
    yield RemoteFile(worker, peer, file)


def _take(fd: int, source: Source, run: Run, copy: Copy, *, durable: bool) -> Written:
    """Fill a new file, a range at a time, then read it again and check every byte."""
    if source.size != copy.stored_nbytes:
        raise ReadError(f"{source.name} has {source.size:,} bytes, not {copy.stored_nbytes:,}")
    out = Writer(fd, durable=durable)
    for offset in range(0, copy.stored_nbytes, RANGE):
        part = np.empty(min(RANGE, copy.stored_nbytes - offset), np.uint8)
        if not _read_into(source, part, offset):
            raise ReadError(f"{source.name} became shorter while it was read")
        out.write(part.data)
    out.finish()
    return _verified(OpenFile(f"copy of {source.name}", fd, out.written), run, copy)


def _read_into(source: Source, part: Bytes, offset: int) -> bool:
    """Read a range. Trouble with that is no trouble of the disk that is written to."""
    try:
        return source.read_into(part, offset)
    except OSError as e:
        raise ReadError(f"{source.name}: {e.strerror or e}") from e


def _verified(file: str | Source, run: Run, copy: Copy) -> Written:
    identity = Identity(run.checkpoint, run.generation, copy.partition)
    return partition_files.verify(file, identity, copy.digest, threads=settings_here(None).threads)
