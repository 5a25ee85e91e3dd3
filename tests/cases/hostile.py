"""Objects that are against being saved, and harm that is done to saved files without knowing how they are laid out."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from pathlib import Path

# ---------------------------------------------------------------------------------------------------------- objects


class Unpicklable:
    """Cannot be pickled."""

    def __reduce__(self):
        raise TypeError("deliberately not picklable")


class PicklesOnce:
    """Can be pickled the first time only, in each process."""

    pickled = 0

    def __reduce__(self):
        type(self).pickled += 1
        if type(self).pickled > 1:
            raise RuntimeError("second pickle refused")
        return PicklesOnce, ()


class LoadsNever:
    """Can be pickled, but not unpickled."""

    def __reduce__(self):
        return _explode, ()


class Marker:
    """Stands for a pickle that does harm: loading it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return _touch, (self.path,)


def _explode():
    raise RuntimeError("this pickle cannot be loaded")


def _touch(path):
    Path(path).write_text("code ran")
    return "loaded"


# ------------------------------------------------------------------------------------------------------------- harm


def data_files(root) -> list[Path]:
    """The files below a directory that are no manifests, biggest first."""
    files = [path for path in Path(root).rglob("*") if path.is_file() and path.suffix != ".json"]
    return sorted(files, key=lambda path: (-path.stat().st_size, path))


def manifest_files(root) -> list[Path]:
    """The files below a directory that are manifests."""
    return [path for path in Path(root).rglob("*.json") if path.read_bytes().startswith(b'{"ckpt-spill-manifest"')]


def truncate(root) -> list[Path]:
    """Half of the biggest file is gone."""
    path = data_files(root)[0]
    os.truncate(path, path.stat().st_size // 2)
    return [path]


def empty(root) -> list[Path]:
    """All of the biggest file is gone but its name."""
    path = data_files(root)[0]
    os.truncate(path, 0)
    return [path]


def flip_one_bit(root) -> list[Path]:
    """One bit in the middle of the biggest file is another."""
    path = data_files(root)[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)
    return [path]


def zero(root) -> list[Path]:
    """The right length, but only zeros: what a crash leaves of a file that was not flushed."""
    path = data_files(root)[0]
    path.write_bytes(bytes(path.stat().st_size))
    return [path]


def swap(root) -> list[Path]:
    """The two biggest files change places; each is whole."""
    first, second = data_files(root)[:2]
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    return [first, second]


def wipe(root) -> None:
    """The directory is gone."""
    shutil.rmtree(root)


def add_foreign_files(root) -> list[Path]:
    """Files of somebody else, or left by an editor, lie beside the real ones."""
    real = data_files(root)[0]
    names = ["part.99.bin", f"{real.name}.tmp", ".nfs0000000000a1b2c3", "Thumbs.db"]
    return [Path(shutil.copy(real, real.with_name(name))) for name in names]


def limit_file_size(nbytes: int) -> None:
    """Let this process write no file beyond a size, as on a full disk; a negative number lifts the limit."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))
