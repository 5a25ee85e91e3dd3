"""Room for the files of one worker in a store, which is gone when the worker is.

::

    ROOT/spill/<name>/<n>.part

The directory is locked by the process whose area it is, for as long as that lives: after a crash the kernel releases
it. Whoever opens an area, or looks for stores, removes those that nobody has locked.
"""

from __future__ import annotations

import contextlib
import errno
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
from ckpt_spill.store.preflight import file_system
from ckpt_spill.store.store import Store

_SPILL = "spill"
_SHARED = frozenset(["afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "orangefs", "panfs", "smb3"])
"""File systems that several machines may see, where a lock need not hold for all of them; and ``fuse.*``."""

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
        The store cannot be written, or is on a file system that is shared between machines.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        if _is_shared(store.root):
            raise OSError(errno.ENOTSUP, "values cannot be spilled to a file system that is shared", store.root)
        parent = os.path.join(store.root, _SPILL)
        make_directory(parent)
        remove_dead_areas(store)
        self.directory, lock = _locked_directory(parent)
        self._serial = itertools.count()
        self._finalize = weakref.finalize(self, _remove, self.directory, lock, os.getpid())

    def new_path(self) -> str:
        """Give a path where no file has been before."""
        return os.path.join(self.directory, f"{next(self._serial)}.part")

    def close(self) -> None:
        """Remove all files. Twice is fine."""
        self._finalize()


def remove_dead_areas(store: Store) -> None:
    """Remove the areas of processes that have ended; those of others, and what is not ours, stay."""
    parent = os.path.join(store.root, _SPILL)
    names = list(filter(_NAME.fullmatch, names_in(parent)))
    if names and _is_shared(store.root):
        return  # it has been moved here, and its owners may be anywhere
    for name in names:
        directory = os.path.join(parent, name)
        with locked(directory, exclusive=True) as dead:
            if dead:
                logger.info("removing %s: the worker that spilled there is gone", directory)
                shutil.rmtree(directory, ignore_errors=True)


def _is_shared(path: str) -> bool:
    kind = file_system(path) or ""
    return kind in _SHARED or kind.startswith("fuse.")


def _locked_directory(parent: str) -> tuple[str, int]:
    """Make a directory; give it and the descriptor that holds its lock."""
    while True:
        directory = os.path.join(parent, secrets.token_hex(8))
        os.mkdir(directory, 0o700)
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # somebody took it for a dead one's before it was locked
        except OSError:
            os.rmdir(directory)
            raise
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(directory, fd):
                return directory, fd
        os.close(fd)  # as above


def _remove(directory: str, lock: int, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child, whose parent goes on
    shutil.rmtree(directory, ignore_errors=True)
    os.close(lock)
