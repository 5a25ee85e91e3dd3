"""What the disk tier does with single files: it makes them, removes them, and counts what is read of them."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from ckpt_spill.store.codecs import Bytes
from ckpt_spill.store.descriptors import OpenFile

logger = logging.getLogger("ckpt_spill")


def unlink(path: str) -> None:
    """Remove a file, or leave it to the end of the process: that it is there harms nobody."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as e:
        logger.warning("%s stays until the worker ends: %s", path, e)


@contextlib.contextmanager
def created(path: str) -> Iterator[int]:
    """Give a descriptor of a new file, which is removed again where writing it fails."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    except BaseException:
        unlink(path)
        raise
    finally:
        os.close(fd)


class Counting:
    """A partition file of which the bytes that are read are counted."""

    def __init__(self, file: OpenFile) -> None:
        self.name, self.size = file.name, file.size
        self._file = file
        self._counts: list[int] = []  # appending is safe in several threads

    @property
    def count(self) -> int:
        """Bytes that were read so far."""
        return sum(self._counts)

    def read_into(self, out: Bytes, offset: int) -> bool:
        """Read from the file, and count it."""
        self._counts.append(len(out))
        return self._file.read_into(out, offset)
