"""``ckpt_spill.yaml`` and dask's configuration, read at the edge into one frozen ``Settings``."""

from __future__ import annotations

import dataclasses
import os
import socket
import tempfile
from collections.abc import Sequence
from importlib import resources

import dask
import yaml
from dask.utils import parse_bytes, parse_timedelta

from ckpt_spill.errors import RefusedError, RootError

_defaults = yaml.safe_load((resources.files("ckpt_spill") / "ckpt_spill.yaml").read_text())
dask.config.update_defaults(_defaults)

Roots = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What one process needs to know, taken from its own configuration.

    Parameters
    ----------
    roots : tuple of str
        Absolute directories, one per drive, as this process sees them.
    min_free : int
        Bytes that have to be free in a root before writing starts.
    threads : int
        Threads that compress, check and decompress blocks in this process.
    gds, nvcomp : bool or None
        Ways between files and a GPU that are wanted, as for `store.device.paths.Paths`.
    """

    roots: tuple[str, ...]
    min_free: int
    threads: int
    gds: bool | None
    nvcomp: bool | None

    @classmethod
    def here(cls, roots: tuple[str, ...] | None = None, nthreads: int | None = None) -> Settings:
        """Read this process' configuration.

        Parameters
        ----------
        roots : tuple of str, optional
            Roots asked for in a call; they go before the configured ones.
        nthreads : int, optional
            Task threads of the dask worker this process is, if it is one.
        """
        given = roots or configured_roots()
        expanded = tuple(dict.fromkeys(map(_expand, given or (default_root(),))))
        min_free = parse_bytes(dask.config.get("ckpt-spill.min-free"))
        return cls(expanded, min_free, _threads(nthreads), _choice("gds"), _choice("nvcomp"))


def configured_roots() -> tuple[str, ...] | None:
    """Give the roots named by this process' configuration, unexpanded; None when there are none."""
    configured = dask.config.get("ckpt-spill.root")
    return None if configured is None else _as_tuple(configured)


def default_root() -> str:
    """Give the per-user directory that is used where nothing else is configured."""
    parent = dask.config.get("temporary-directory") or tempfile.gettempdir()
    return os.path.join(os.path.abspath(parent), f"ckpt-spill-{os.getuid()}")


def domain() -> str:
    """Give the failure domain of this process' disks: what is configured, else the host."""
    return str(dask.config.get("ckpt-spill.domain") or socket.gethostname())


def patience() -> float:
    """Give the seconds to wait for a store that went away before its partitions count as lost."""
    return float(parse_timedelta(dask.config.get("ckpt-spill.patience"), default="s"))


def requested_roots(root: Roots | None) -> tuple[str, ...] | None:
    """Give the roots that a call asks for, else those this process configures; None leaves it to each worker."""
    if root is None:
        return configured_roots()
    return _as_tuple(root)


def _as_tuple(root: Roots) -> tuple[str, ...]:
    roots = tuple(root) if isinstance(root, list | tuple) else (root,)
    if not roots:
        raise RootError("root is an empty list; leave it out for the default", problems=[])
    paths = [os.fspath(r) if isinstance(r, str | os.PathLike) else r for r in roots]
    for path in paths:
        if not isinstance(path, str) or "\0" in path:
            raise RootError(f"root has to be a path or a list of paths, not {path!r}", problems=[repr(path)])
    return tuple(paths)


def _expand(root: str) -> str:
    """Expand variables as this process has them; a relative or unexpanded root is refused by name."""
    expanded = os.path.expanduser(os.path.expandvars(root))
    if not os.path.isabs(expanded):
        hint = "a variable in it is not set here" if "$" in expanded else "workers run in directories of their own"
        raise RootError(f"root {root!r} is not an absolute path ({hint}); give one that starts with /", problems=[root])
    if "$" in expanded:
        raise RootError(f"root {root!r} has a variable that is not set here: {expanded!r}", problems=[root])
    return os.path.normpath(expanded)


def _choice(name: str) -> bool | None:
    chosen = dask.config.get(f"ckpt-spill.{name}")
    if chosen is None or isinstance(chosen, bool):
        return chosen
    raise RefusedError(f"ckpt-spill.{name} has to be true, false or null, not {chosen!r}")


def _threads(nthreads: int | None) -> int:
    configured = dask.config.get("ckpt-spill.threads")
    if configured is not None:
        try:
            return max(1, int(configured))
        except (TypeError, ValueError):
            raise RefusedError(f"ckpt-spill.threads has to be a whole number, not {configured!r}") from None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, max(4, nthreads or cores)))
