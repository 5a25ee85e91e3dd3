"""Notes that tasks leave on disk, in whatever process they run, of what was computed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A directory for them."""
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


def note(notes: Path, partition: int) -> None:
    """Note that a partition is computed."""
    (notes / f"{partition}-{os.urandom(8).hex()}").touch()


def made(notes: Path) -> list[int]:
    """Give the numbers of the partitions that were computed since this was asked the last time."""
    found = list(notes.iterdir())
    for path in found:
        path.unlink()
    return sorted(int(path.name.split("-")[0]) for path in found)
