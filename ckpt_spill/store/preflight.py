"""Can this directory be a root? Asked on every worker before anything is computed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from ckpt_spill.errors import CkptSpillError
from ckpt_spill.store.files import free_bytes, make_directory, temporary
from ckpt_spill.store.store import Store

_IN_MEMORY = {"tmpfs", "ramfs"}


def check_root(root: str, *, scratch: Iterable[str]) -> tuple[Store | None, list[str], list[str]]:
    """Make and check a root.

    Parameters
    ----------
    root : str
        Absolute path.
    scratch : iterable of str
        Directories that dask empties at a restart; a root may not lie inside one.

    Returns
    -------
    store : Store or None
        The store in the root; None when there are problems.
    problems : list of str
        Each says what is wrong and the way out.
    warnings : list of str
    """
    problems = [
        f"it is inside dask's scratch space {directory}, which is emptied when workers restart: give another directory"
        for directory in scratch
        if _is_inside(root, directory)
    ]
    if not problems:
        try:
            make_directory(root)
            problems += _ownership(root)
            if not problems:
                with temporary(root):
                    pass
        except OSError as e:
            problems.append(f"it cannot be written: {e.strerror or e}")
    store = None
    if not problems:
        try:
            store = Store.create(root)
        except (OSError, CkptSpillError) as e:
            problems.append(str(e))
    warnings = []
    if not problems and (kind := file_system(root)) in _IN_MEMORY:
        warnings.append(f"{root} is a {kind}: what is written there takes memory and is gone when the machine restarts")
    return store, problems, warnings


def too_full(root: str, min_free: int) -> list[str]:
    """Say that there is too little space in a root, if so."""
    free = free_bytes(root)
    if free >= min_free:
        return []
    return [f"{root}: only {free:,} bytes are free, ckpt-spill.min-free asks for {min_free:,}: make room"]


def _ownership(root: str) -> list[str]:
    """Whoever else could write here, or put another directory here, could make us read what they wrote."""
    status = os.stat(root)
    if not stat.S_ISDIR(status.st_mode):
        return ["it is not a directory"]
    if status.st_uid != os.geteuid():
        return [f"it belongs to user {status.st_uid}, not to us ({os.geteuid()}): give a directory of your own"]
    if status.st_mode & stat.S_IWOTH:
        way_out = f"chmod o-w it, or give {os.path.join(root, 'ckpt')}, which will be made with mode 0700"
        return [f"everybody may write in it (mode {stat.S_IMODE(status.st_mode):04o}): {way_out}"]
    parent = os.path.dirname(os.path.realpath(root))
    above = os.stat(parent).st_mode
    if above & stat.S_IWOTH and not above & stat.S_ISVTX:
        return [
            f"everybody may rename it, as {parent} is writable for all without the sticky bit: chmod o-w or +t that"
        ]
    return []


def _is_inside(path: str, directory: str) -> bool:
    real, top = os.path.realpath(path), os.path.realpath(directory)
    return os.path.commonpath([real, top]) == top


def file_system(path: str) -> str | None:
    """Type of the file system that holds a path, where the kernel tells (Linux)."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split(" ")[1:3] for line in file]
    except OSError:
        return None
    real = os.path.realpath(path)
    # The last mount on a mount point hides the earlier ones.
    holding = [(len(point), n, kind) for n, (point, kind) in enumerate(mounts) if _is_inside(real, _unescape(point))]
    return max(holding)[2] if holding else None


def _unescape(point: str) -> str:
    """Mount points have blanks and backslashes as octal escapes."""
    return point.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
