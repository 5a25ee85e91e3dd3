"""How checkpoints, generations and runs are named on disk; names tell what a directory is without opening anything."""

from __future__ import annotations

import dataclasses
import re

from blake3 import blake3

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_RUN = re.compile(r"g(\d{8,})-([0-9a-f]{16})-([0-9a-f]{8})")
_MANIFEST = re.compile(r"g(\d{8,})\.json")
_PARTITION = re.compile(r"(\d{8,})-([0-9a-f]{16})\.part")


def slug(checkpoint: str) -> str:
    """Directory name of a checkpoint id: readable where it can be, unique always, safe on any file system."""
    digest: str = blake3(checkpoint.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{_UNSAFE.sub('_', checkpoint)[:48].lstrip('.-')}-{digest[:12]}".lstrip("-")


@dataclasses.dataclass(frozen=True)
class Run:
    """One attempt at writing one generation of one checkpoint; its directory belongs to it alone.

    Parameters
    ----------
    checkpoint : str
        Checkpoint id.
    generation : int
        Rises from commit to commit: microseconds since 1970, or one more than the last where clocks disagree.
    identity : str
        16 hex digits: which content. Runs of one identity may take over each other's partitions.
    run : str
        8 random hex digits.
    """

    checkpoint: str
    generation: int
    identity: str
    run: str

    @property
    def slug(self) -> str:
        """Directory of the checkpoint, below ``checkpoints``."""
        return slug(self.checkpoint)

    @property
    def directory(self) -> str:
        """Directory of the run, below the checkpoint's."""
        return f"g{self.generation:08d}-{self.identity}-{self.run}"

    @classmethod
    def parse(cls, checkpoint: str, directory: str) -> Run | None:
        """Read a directory's name; None for one that is not ours."""
        found = _RUN.fullmatch(directory)
        return found and cls(checkpoint, int(found[1]), found[2], found[3])


def manifest_file(generation: int) -> str:
    """File name of a generation's manifest: the same for all runs, so that only one can have it."""
    return f"g{generation:08d}.json"


def parse_manifest_file(name: str) -> int | None:
    """Read the generation of a manifest; None for a file that is not ours."""
    found = _MANIFEST.fullmatch(name)
    return int(found[1]) if found else None


def partition_file(partition: int, digest: bytes) -> str:
    """File name of a partition: its number and the start of its footer's hash, so that attempts never collide."""
    return f"{partition:08d}-{digest[:8].hex()}.part"


def parse_partition_file(name: str) -> int | None:
    """Partition number of a file; None for a file that is not ours."""
    found = _PARTITION.fullmatch(name)
    return int(found[1]) if found else None
