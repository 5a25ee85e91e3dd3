"""Between memory of a device and an open file: past the host's memory where GPUDirect Storage (GDS) is set up.

kvikio does it, through cuFile, or in its compatibility mode by system calls and pinned memory. A range may lie anywhere
in a file; with GDS its whole 4 KiB pages are direct, unless it is smaller than kvikio's ``gds_threshold`` (16 KiB).
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckpt_spill.store.device.memory import Memory

_OPEN_FILES = "/proc/self/fd"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

# Order: kvikio waits for the default stream of the memory's context before it touches it (GDS), or copies on streams
# that run after that one (compatibility mode), and returns when all is done. The caller waits for other streams only.
#
# Coherence: what is direct, and what is written in compatibility mode, by O_DIRECT, is not in the page cache. Linux
# writes cached pages of a range back before the range is read or written directly, and drops them when it is written:
# others may use ordinary calls on the same file. Parts of pages are written by ordinary calls or, by cuFile, read,
# changed and written: nobody else may write to the first and last 4 KiB page of a range meanwhile. An fdatasync of any
# descriptor of the file covers all of it, as it is about the inode, and flushes the drive's cache.


def mode() -> Literal["gds", "compat", ""]:
    """Say how kvikio would read and write in this process; "" where it cannot.

    Even with "gds" it uses compatibility mode for files on a file system without GDS.
    """
    try:
        compatible = importlib.import_module("kvikio.defaults").is_compat_mode_preferred()
    except Exception:  # noqa: BLE001  # it is not here, lacks a library, or was given a setting that it does not know
        return ""
    if not os.path.isdir(_OPEN_FILES):
        return ""
    return "compat" if compatible or not _has_driver() else "gds"


def _has_driver() -> bool:
    try:
        present = importlib.import_module("cupy").cuda.is_available()  # without a device cuFile would print that
        return bool(present and importlib.import_module("kvikio.cufile_driver").get("is_gds_available"))
    except Exception:  # noqa: BLE001  # what it says where it has none depends on the version
        return False


def read(fd: int, offset: int, into: Memory) -> bool:
    """Fill memory from an open file, whatever is at its path by now; False where the file ends before."""
    if os.fstat(fd).st_size < offset + into.nbytes:
        return False
    try:
        with _system_errors(), _opened(fd, "r") as file:
            _move(file.read, offset, into)
    except RuntimeError as error:
        if str(error).endswith(": EOF"):  # it was cut meanwhile
            return False
        raise
    return True


def write(fd: int, offset: int, memory: Memory) -> None:
    """Write memory to an open file that this user may read and write.

    As by `read`, OSError is raised where the system fails, RuntimeError where the device or cuFile does.
    """
    try:
        # "w" would empty the file, and cuFile has to read the pages that it writes a part of.
        with _system_errors(), _opened(fd, "r+") as file:
            _move(file.write, offset, memory)
    except (OSError, RuntimeError) as error:
        if getattr(error, "errno", None) not in _FULL:
            _check_room(fd, offset, memory.nbytes)
        raise


def _opened(fd: int, flags: str) -> Any:
    """Open the file behind a descriptor anew: kvikio takes paths only, and at the file's own may be another one."""
    return importlib.import_module("kvikio").CuFile(f"{_OPEN_FILES}/{fd}", flags)


def _move(call: Callable[..., int], offset: int, memory: Memory) -> None:
    if not memory.nbytes or call(memory, file_offset=offset) == memory.nbytes:
        return
    # kvikio adds up what its tasks did, and any of them may have stopped early: again from the start, as one task.
    while memory.nbytes:
        count = call(memory, file_offset=offset, task_size=memory.nbytes)
        if not count:
            raise RuntimeError("kvikio moved nothing: EOF")
        offset, memory = offset + count, memory.part(count, memory.nbytes)


@contextlib.contextmanager
def _system_errors() -> Iterator[None]:
    """Turn errors that end with the system's words, which are all that kvikio leaves of its numbers, into OSErrors."""
    try:
        yield
    except RuntimeError as error:
        words = str(error).rpartition(": ")[2]
        for number in errno.errorcode:
            if words == os.strerror(number):
                raise OSError(number, words) from error
        raise


def _check_room(fd: int, offset: int, nbytes: int) -> None:
    """Raise the system's error if there is no room, as cuFile may have said something else."""
    try:
        os.posix_fallocate(fd, offset, nbytes)
    except OSError as error:
        if error.errno in _FULL:
            raise
