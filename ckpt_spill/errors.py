"""Everything that ``ckpt_spill`` raises on purpose, grouped by what the one who catches it does next.

::

    CkptSpillError
    |-- RefusedError                  nothing was computed or changed: mend the call, the configuration or the disk
    |   |-- UnsupportedCollectionError    (TypeError)
    |   |-- RootError                     (OSError)
    |   |-- CheckpointExistsError         (FileExistsError)
    |   |-- CheckpointNotFoundError       (FileNotFoundError)
    |   `-- ManifestError                 (ValueError)
    |-- WriteError                    not saved; what was there before still is: mend the cause, call again to resume
    |   |-- DiskFullError                 (OSError)
    |   |-- UnserializableError           (TypeError)
    |   `-- ConflictError
    `-- ReadError                     saved, but not readable from here: try another copy, or make the data again
        |-- CorruptPartitionError         (ValueError)
        `-- MissingPartitionError         (FileNotFoundError)

The second base in parentheses keeps an ``except`` for the built-in exception working. All of them cross from a worker
to the client by pickle, so an exception is its message and keyword details, nothing else; the details are attributes.
"""

from __future__ import annotations

from typing import Any


class CkptSpillError(Exception):
    """Base of all errors raised on purpose.

    Parameters
    ----------
    message : str
        What is wrong, where, and the way out.
    **details
        The same facts for programs; each becomes an attribute. They have to be picklable.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        for name, value in details.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        # OSError would format its own two arguments.
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.details)


def _rebuild(cls: type[CkptSpillError], message: str, details: dict[str, Any]) -> CkptSpillError:
    return cls(message, **details)


class RefusedError(CkptSpillError):
    """Refused before anything was computed or changed."""


class UnsupportedCollectionError(RefusedError, TypeError):
    """The object is not a collection this library can save."""


class RootError(RefusedError, OSError):
    """A root directory cannot be used; ``problems`` lists every one found, on every worker."""


class CheckpointExistsError(RefusedError, FileExistsError):
    """Another checkpoint of that name exists and ``overwrite`` was not asked for."""


class CheckpointNotFoundError(RefusedError, FileNotFoundError):
    """No checkpoint of that name, or no manifest at that address."""


class ManifestError(RefusedError, ValueError):
    """Not a manifest, a damaged one, or one of a version this release does not know."""


class WriteError(CkptSpillError):
    """A partition was not saved. The checkpoint was not committed; an earlier one is untouched."""


class DiskFullError(WriteError, OSError):
    """No room (or no quota) left; ``path``, ``needed`` and ``free`` (bytes) and ``worker`` say where."""


class UnserializableError(WriteError, TypeError):
    """A value cannot be pickled, or cannot be read again after it was pickled."""


class ConflictError(WriteError):
    """Another run committed or removed the same checkpoint meanwhile."""


class ReadError(CkptSpillError):
    """A saved partition cannot be had from here."""


class CorruptPartitionError(ReadError, ValueError):
    """Stored bytes differ from what was written; ``path`` and, where known, ``buffer`` and ``block`` say which."""


class MissingPartitionError(ReadError, FileNotFoundError):
    """Partition files are gone or out of reach; ``partitions`` has their numbers."""
