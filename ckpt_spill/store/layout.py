"""Where the things of a store lie, and what lies there. Nothing below the root of a store is a link.

::

    ROOT/ckpt-spill.json                                 the marker: the store's id
    ROOT/checkpoints/<checkpoint>/<generation>.json      the manifest: there is one, so the generation is committed
                                 /<run>/run.json         what is being written, for people and repair
                                       /<partition>.part

Other files in ROOT are somebody else's.
"""

from __future__ import annotations

import contextlib
import os

from ckpt_spill.errors import RootError
from ckpt_spill.store.runs import Run, manifest_file, slug

MARKER = "ckpt-spill.json"
CHECKPOINTS = "checkpoints"
INTENT = "run.json"


def checkpoint_path(root: str, checkpoint: str) -> str:
    """Path of a checkpoint's directory."""
    return os.path.join(root, CHECKPOINTS, slug(checkpoint))


def run_path(root: str, run: Run) -> str:
    """Path of a run's directory.

    Raises
    ------
    RootError
        It, or one that it is in, is a link.
    """
    path = root
    for name in (CHECKPOINTS, run.slug, run.directory):
        path = os.path.join(path, name)
        if os.path.islink(path):
            raise RootError(f"{path} is a link; nothing is read or written through links below {root}", path=path)
    return path


def manifest_path(root: str, run: Run) -> str:
    """Path of the manifest of a run's generation, which may be another run's. Refuses links as ``run_path`` does."""
    return os.path.join(os.path.dirname(run_path(root, run)), manifest_file(run.generation))


def names_in(directory: str) -> list[str]:
    """Names in a directory; none where there is no directory, or a link."""
    try:
        return [] if os.path.islink(directory) else os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def sizes_in(directory: str) -> dict[str, int]:
    """Regular files in a directory and their sizes in bytes; links do not count."""
    sizes = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # a temporary one, that was renamed
                if entry.is_file(follow_symlinks=False):
                    sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
    return sizes
