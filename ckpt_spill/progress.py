"""A progress bar: one line on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from dask.utils import format_bytes, format_time

_WIDTH = 30
_INTERVAL = 0.1


class Progress:
    """Counts partitions; draws where somebody is looking.

    Parameters
    ----------
    total : int
        Partitions to write.
    show : bool or None
        None: when standard error is a terminal.
    """

    def __init__(self, total: int, show: bool | None) -> None:  # noqa: FBT001
        self._total, self._done, self._nbytes = total, 0, 0
        self._show = sys.stderr.isatty() if show is None else show
        self._start = time.monotonic()
        self._drawn = -_INTERVAL

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._show:
            self._draw()
            sys.stderr.write("\n")

    def advance(self, nbytes: int) -> None:
        """Count one more partition of so many raw bytes."""
        self._done += 1
        self._nbytes += nbytes
        now = time.monotonic()
        if self._show and now - self._drawn >= _INTERVAL:
            self._drawn = now
            self._draw()

    def _draw(self) -> None:
        filled = _WIDTH * self._done // max(self._total, 1)
        elapsed = time.monotonic() - self._start
        sys.stderr.write(
            f"\rpersist [{'#' * filled}{' ' * (_WIDTH - filled)}] {self._done}/{self._total} partitions, "
            f"{format_bytes(self._nbytes)}, {format_time(elapsed)}"
        )
        sys.stderr.flush()
