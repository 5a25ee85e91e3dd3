"""RAPIDS, which is not everywhere: imported when there is something to be done with it."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from ckpt_spill.errors import ReadError, WriteError

if TYPE_CHECKING:
    from collections.abc import Iterator


def rapids(name: str) -> Any:
    """Import a library of RAPIDS.

    Raises
    ------
    ReadError
        It cannot be imported here.
    """
    try:
        return importlib.import_module(name)
    except Exception as e:  # theirs fail in ways of their own where a library, a driver or a GPU is missing
        raise ReadError(
            f"this would be an object of {name}, which cannot be imported here ({e}): read it with backend='pandas'"
        ) from e


def has_device() -> bool:
    """Tell whether there is a device, and a library to tell it by."""
    try:
        return bool(importlib.import_module("cupy").cuda.is_available())
    except ImportError:
        return False


def check() -> None:
    """Make sure that there is a device.

    Raises
    ------
    ReadError
        There is none, or its libraries cannot be imported.
    """
    rapids("cupy")
    if not has_device():
        raise ReadError("this would be on a GPU, of which there is none here: read it with backend='pandas'")


@contextlib.contextmanager
def failing_to_read() -> Iterator[None]:
    """Say of what fails on the device that the file is not at fault."""
    try:
        yield
    except RuntimeError as e:
        raise ReadError(f"the device failed while a partition was read: {type(e).__name__}: {e}") from e


@contextlib.contextmanager
def failing_to_write() -> Iterator[None]:
    """Say of what fails on the device that it was not written, and what to do without."""
    try:
        yield
    except RuntimeError as e:
        raise WriteError(
            f"the device or kvikio failed while a partition was written: {type(e).__name__}: {e}. With ckpt-spill.gds "
            "set to false, bytes go by the host"
        ) from e
