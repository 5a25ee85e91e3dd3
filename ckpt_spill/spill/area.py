"""Room for the files of one worker in a store, which is gone when the worker is.

::

    ROOT/spill/<name>.lease     locked by the process whose area it is, for as long as that lives
              /<name>/<n>.part

Whoever opens an area removes those whose lease nobody holds: after a crash the kernel has released it. A directory
without a lease is nobody's, as the lease is made first and removed last.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import re
import secrets
import shutil
import weakref

from ckpt_spill.store.files import is_at, locked, make_directory
from ckpt_spill.store.layout import names_in
from ckpt_spill.store.store import Store

_SPILL, _LEASE = "spill", ".lease"
_NAME = re.compile(r"[0-9a-f]{16}")

logger = logging.getLogger("ckpt_spill")


class SpillArea:
    """A directory of this process in a store. It is removed by ``close``, else when the process ends.

    Parameters
    ----------
    store : Store
        In which it is made. Areas of processes that died are removed from there.

    Raises
    ------
    OSError
        The store cannot be written.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        parent = os.path.join(store.root, _SPILL)
        make_directory(parent)
        _remove_dead(parent)
        self.directory, lease = _lease(parent)
        os.mkdir(self.directory, 0o700)
        self._serial = itertools.count()
        self._finalize = weakref.finalize(self, _remove, self.directory, lease, os.getpid())

    def new_path(self) -> str:
        """Give a path where no file has been before."""
        return os.path.join(self.directory, f"{next(self._serial)}.part")

    def close(self) -> None:
        """Remove all files. Twice is fine."""
        self._finalize()


def _lease(parent: str) -> tuple[str, int]:
    """Make a lease and hold it; give the directory that it is for, and the descriptor."""
    while True:
        directory = os.path.join(parent, secrets.token_hex(8))
        path = directory + _LEASE
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(path, fd):
                return directory, fd
        os.close(fd)  # somebody took it for a dead one's before it was locked


def _remove(directory: str, lease: int, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child, whose parent goes on
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(directory + _LEASE)
    os.close(lease)


def _remove_dead(parent: str) -> None:
    for name in {name.removesuffix(_LEASE) for name in names_in(parent)}:
        if not _NAME.fullmatch(name):
            continue  # not ours
        directory = os.path.join(parent, name)
        lease = directory + _LEASE
        with locked(lease, exclusive=True) as dead:
            if dead or not os.path.lexists(lease):
                logger.info("removing %s: the worker that spilled there is gone", directory)
                shutil.rmtree(directory, ignore_errors=True)
            if dead:
                os.unlink(lease)
