"""Creating files and directories so that only we can read them and nobody sees them half-written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator

from ckpt_spill.errors import CkptSpillError, ConflictError, DiskFullError, WriteError

TEMPORARY = "tmp-"
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def make_directory(path: str) -> None:
    """Make a directory of mode 0700 whatever the umask, with its missing parents; a directory that is there stays."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        make_directory(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)


def sync_directory(path: str) -> None:
    """Make the names in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_ancestors(path: str, root: str) -> None:
    """Make the names in a directory and in all above it survive a power cut; above ``root``, those we may open."""
    above = False
    while True:
        with contextlib.suppress(OSError) if above else contextlib.nullcontext():
            sync_directory(path)
        above |= path == root
        parent = os.path.dirname(path)
        if parent == path:
            return
        path = parent


@contextlib.contextmanager
def temporary(directory: str) -> Iterator[tuple[int, str]]:
    """Give a descriptor and path of a new file of mode 0600, removed at the end unless it was renamed.

    A file that got its final name by a hard link loses just the temporary one.
    """
    path = os.path.join(directory, TEMPORARY + secrets.token_hex(8))
    fd = os.open(path, _CREATE, 0o600)
    try:
        try:
            os.fchmod(fd, 0o600)
            yield fd, path
        finally:
            os.close(fd)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def write_atomic(path: str, content: bytes, *, durable: bool) -> None:
    """Put a small file in place, whole or not at all; one that was there before is replaced."""
    directory = os.path.dirname(path)
    with write_errors(directory, len(content)), temporary(directory) as (fd, name):
        _fill(fd, content, durable=durable)
        os.rename(name, path)
    if durable:
        sync_directory(directory)


def write_once(path: str, content: bytes, *, durable: bool) -> bool:
    """Put a small file in place, whole or not at all, unless one is there; of several at once, one succeeds.

    Returns
    -------
    bool
        Whether it was this call.
    """
    directory = os.path.dirname(path)
    with write_errors(directory, len(content)), temporary(directory) as (fd, name):
        _fill(fd, content, durable=durable)
        try:
            os.link(name, path)  # which, unlike a rename, does not replace
        except FileExistsError:
            return False
    if durable:
        sync_directory(directory)
    return True


def _fill(fd: int, content: bytes, *, durable: bool) -> None:
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    if durable:
        os.fsync(fd)


@contextlib.contextmanager
def write_errors(directory: str, needed: int) -> Iterator[None]:
    """Turn what the system says while a file is written into an error that says what to do.

    Parameters
    ----------
    directory : str
        Where the file is made.
    needed : int
        Its size in bytes, as far as it is known.
    """
    try:
        yield
    except FileNotFoundError as e:
        raise ConflictError(
            f"{e.filename or directory} went away while it was being written: another run committed, or somebody "
            "deleted, the checkpoint, or the disk is gone. Call again",
            path=directory,
        ) from e
    except OSError as e:
        if isinstance(e, CkptSpillError):
            raise
        reason = e.strerror or str(e)
        if e.errno not in _FULL:
            path = e.filename2 or e.filename or directory
            raise WriteError(f"writing {path} failed: {reason}. Nothing was committed", path=path) from e
        free = free_bytes(directory)
        raise DiskFullError(
            f"no room in {directory}: writing {needed:,} bytes failed with {reason!r}; {free:,} bytes are free. "
            "Nothing was committed and what was there before is untouched: make room, or give another root, and call "
            "again (partitions that are already on disk are kept)",
            path=directory,
            needed=needed,
            free=free,
        ) from e


def sync_file(path: str) -> None:
    """Put the data of a file that is closed on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(path: str, *, exclusive: bool) -> Iterator[bool]:
    """Hold an advisory lock of a file; gives False at once where there is no such file or, if exclusive, it is held."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH)
        except OSError:
            yield False
        else:
            yield is_at(path, fd)
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough where a child was forked meanwhile
        os.close(fd)


@contextlib.contextmanager
def held(path: str) -> Iterator[bytes | None]:
    """Keep a small file from being replaced by others who hold it first; gives its content, None if there is none."""
    while (fd := _open_regular(path)) is not None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if is_at(path, fd):
                with os.fdopen(os.dup(fd), "rb") as file:
                    yield file.read()
                return
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough where a child was forked meanwhile
            os.close(fd)
    yield None


def is_at(path: str, fd: int) -> bool:
    """Tell whether a file still has its name: it may have been removed or replaced before its lock was ours."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _open_regular(path: str) -> int | None:
    """Open a file for a lock; None where there is none, or one that is not ours."""
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
            return None
        raise


def free_bytes(path: str) -> int:
    """Bytes that this user can still write to the file system that holds ``path``."""
    return shutil.disk_usage(path).free
