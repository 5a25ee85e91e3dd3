"""The marker: a file that makes a directory a store, has the store's id, and is locked so that the store can go."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import stat
from collections.abc import Iterator

from ckpt_spill.errors import ConflictError
from ckpt_spill.store.files import locked, make_directory, write_once
from ckpt_spill.store.layout import CHECKPOINTS, MARKER

logger = logging.getLogger("ckpt_spill")


def read(root: str) -> str | None:
    """Give the id of the store in ``root``; None where there is none, or one that others could have put there."""
    try:
        fd = os.open(os.path.join(root, MARKER), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            owners = {os.fstat(file.fileno()).st_uid}
            marker = json.loads(file.read(4096))
        if marker["format"] != 1:
            logger.warning("passed over %s: a store of format %r; install a newer release", root, marker["format"])
            return None
        directory = os.stat(root)
        owners.add(directory.st_uid)
        with contextlib.suppress(FileNotFoundError):
            owners.add(os.lstat(os.path.join(root, CHECKPOINTS)).st_uid)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # Pickles are in there: whoever could have written them could run code here.
    if not owners <= {os.geteuid(), 0} or directory.st_mode & stat.S_IWOTH:
        logger.warning("passed over the store in %s: others than user %d may write there", root, os.geteuid())
        return None
    return str(marker["store"])


def make(root: str) -> str:
    """Give the id of the store in ``root``, made if there is none; of several who do so at once, one makes it."""
    make_directory(root)
    path = os.path.join(root, MARKER)
    while (store := read(root)) is None:
        content = json.dumps({"format": 1, "store": secrets.token_hex(16)}).encode()
        if not write_once(path, content, durable=True) and read(root) is None:
            raise ConflictError(f"{path} is not a marker of ours; give another root", path=root)
    return store


@contextlib.contextmanager
def kept(root: str) -> Iterator[None]:
    """Keep a store from being removed as empty while something is put into it."""
    with locked(os.path.join(root, MARKER), exclusive=False) as ours:
        if not ours:
            raise ConflictError(f"the store in {root} was removed just now; call again", path=root)
        yield


def remove_empty(root: str) -> None:
    """Remove a store without checkpoints; what is not ours stays. OSError if there are some.

    The lock keeps out runs that begin: they would write into a store that has lost its identity.
    """
    path = os.path.join(root, MARKER)
    with locked(path, exclusive=True) as ours:
        if ours:
            os.rmdir(os.path.join(root, CHECKPOINTS))
            os.unlink(path)
