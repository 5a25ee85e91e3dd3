"""The manifest: what was saved, and where. Frozen data with a JSON form that carries its own hash."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Hashable, Mapping
from typing import Any, Self

import fsspec
from blake3 import blake3
from dask.utils import format_bytes
from fsspec.implementations.local import LocalFileSystem

from ckpt_spill.errors import CheckpointNotFoundError, ManifestError
from ckpt_spill.jobs import ReadJob, Record, StoreRef
from ckpt_spill.store.files import write_atomic
from ckpt_spill.store.partition import Library
from ckpt_spill.store.runs import Run, partition_file
from ckpt_spill.table import PartitionTable

VERSION = 1


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ManifestData:
    """The contents of a manifest, without what can be done with it.

    Parameters
    ----------
    id : str
        Durable checkpoint id: the name given by the user, else one made of the token.
    token : str
        Identity of the content.
    run : Run
        Generation and directory.
    kind : str
        Of collection.
    collection : dict
        Its description: meta, divisions, chunks.
    created : str
        UTC, ISO 8601.
    durable : bool
        Whether it was flushed to disk.
    stores : tuple of StoreRef
    partitions : PartitionTable
    replicas : int
        Copies of each partition that were asked for.
    revision : int
        Rises each time the manifest of the run is replaced, because partitions were made again or copied.
    """

    id: str
    token: str
    run: Run
    kind: str
    collection: dict[str, Any]
    created: str
    durable: bool
    stores: tuple[StoreRef, ...]
    partitions: PartitionTable
    replicas: int = 1
    revision: int = 0

    # --------------------------------------------------------------------------------------------------- JSON
    def to_json(self) -> bytes:
        """Write as JSON: the body, and the body's BLAKE3."""
        body = {
            "id": self.id,
            "token": self.token,
            "generation": self.run.generation,
            "identity": self.run.identity,
            "run": self.run.run,
            "kind": self.kind,
            "collection": self.collection,
            "created": self.created,
            "durable": self.durable,
            "replicas": self.replicas,
            "revision": self.revision,
            "stores": [dataclasses.asdict(s) for s in self.stores],
            "partitions": self.partitions.to_columns(),
        }
        text = _canonical(body)
        return b'{"ckpt-spill-manifest":%d,"blake3":"%s","body":%s}\n' % (VERSION, _hash(text), text)

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Self:
        """Read what ``to_json`` wrote; ``where`` is for the error."""
        try:
            document = json.loads(content)
            version = document["ckpt-spill-manifest"]
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise ManifestError(
                f"{where} is not a manifest of ckpt_spill ({type(e).__name__}: {str(e)[:80]})"
            ) from None
        if version != VERSION:
            raise ManifestError(
                f"{where} is a manifest of version {version!r}; this release knows version {VERSION}: install a newer "
                "release of ckpt_spill"
            )
        try:
            if _hash(_canonical(document["body"])).decode() != document["blake3"]:
                raise ManifestError(f"{where} is damaged: its content does not match its hash")
            return cls._from_body(**document["body"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as e:
            if isinstance(e, ManifestError):
                raise
            raise ManifestError(f"{where} is not a whole manifest ({type(e).__name__}: {str(e)[:80]})") from None

    @classmethod
    def _from_body(cls, *, partitions: dict[str, Any], stores: list[Any], **body: Any) -> Self:
        texts = [body[name] for name in ("id", "token", "identity", "run", "kind", "created")]
        if not all(isinstance(t, str) for t in texts) or type(body["generation"]) is not int:
            raise ValueError("a member of another type")
        counts = {"replicas": 1, "revision": 0}  # which manifests did not always say
        if any(type(n := body.get(name, least)) is not int or n < least for name, least in counts.items()):
            raise ValueError("a count that is none")
        run = Run(body["id"], body.pop("generation"), body.pop("identity"), body.pop("run"))
        refs = tuple(StoreRef(**s) for s in stores)
        table = PartitionTable.from_columns(partitions, len(refs))
        return cls(run=run, stores=refs, partitions=table, **body)

    @functools.cached_property
    def digest(self) -> str:
        """BLAKE3, in hex, of everything but where the stores were last seen: names this content and no other."""
        anywhere = dataclasses.replace(self, stores=tuple(StoreRef(s.id, "", "") for s in self.stores))
        return str(blake3(anywhere.to_json()).hexdigest())

    def located(self, found: Mapping[str, StoreRef]) -> Self:
        """Give the same manifest with its stores where they are now, as far as they were found."""
        return dataclasses.replace(self, stores=tuple(found.get(s.id, s) for s in self.stores))

    def __dask_tokenize__(self) -> str:
        return self.digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ManifestData) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    # ----------------------------------------------------------------------------------------------- the file
    def save(self, url: str | os.PathLike[str]) -> None:
        """Save the manifest as a JSON file; a local one is replaced atomically and readable only by its owner.

        Parameters
        ----------
        url : str or path
            A path, or an address for fsspec.
        """
        if path := local_path(url):
            write_atomic(path, self.to_json(), durable=True)
        else:
            with fsspec.open(os.fspath(url), "wb") as file:
                file.write(self.to_json())

    @classmethod
    def load(cls, url: str | os.PathLike[str]) -> Self:
        """Read a manifest from a JSON file. Executes nothing of what is in it.

        Parameters
        ----------
        url : str or path
            A path, or an address for fsspec.

        Raises
        ------
        CheckpointNotFoundError
            No such file.
        ManifestError
            Not a manifest, a damaged one or one of a newer version.
        """
        url = os.fspath(url)
        try:
            with fsspec.open(url, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            raise CheckpointNotFoundError(f"there is no manifest at {url}") from None
        except IsADirectoryError:
            raise ManifestError(f"{url} is a directory, not a manifest") from None
        return cls.from_json(content, url)

    # ---------------------------------------------------------------------------------------------------- sums
    @property
    def name(self) -> str:
        """Name of the checkpoint, to find it by; its id."""
        return self.id

    @property
    def npartitions(self) -> int:
        """Number of partitions."""
        return len(self.partitions)

    @property
    def nbytes(self) -> int:
        """Raw bytes of all partitions."""
        return int(self.partitions.nbytes.sum())

    @property
    def stored_nbytes(self) -> int:
        """Bytes of all partition files, each counted once."""
        return int(self.partitions.stored_nbytes.sum())

    @property
    def direct_nbytes(self) -> int:
        """Raw bytes that went from GPUs to files without the host; what a resume took over does not count."""
        return int(self.partitions.direct_nbytes.sum())

    @property
    def library(self) -> str | None:
        """What the partitions were saved from, as far as the meta tells: pandas, numpy, cudf, cupy; else None."""
        meta = self.collection.get("meta", {"value": {}})["value"]
        usual = "numpy" if self.kind == "array" else "pandas"
        return meta.get("library", usual) if "kind" in meta else None

    def read_job(self, columns: tuple[Hashable, ...] | None, backend: Library | None) -> ReadJob:
        """Give what all reads of this checkpoint, or of some of its columns, share."""
        return ReadJob(self.run, self.stores, columns, self.stored_nbytes // max(self.npartitions, 1), backend)

    def unlike(self, kind: str, npartitions: int) -> str:
        """Say how a collection differs from this by more than its token; empty where it does not."""
        if (kind, npartitions) == (self.kind, self.npartitions):
            return ""
        return f" ({self.kind} of {self.npartitions} partitions, not {kind} of {npartitions})"

    def record(self, partition: int, store: StoreRef) -> Record:
        """Give the record of a copy."""
        p = self.partitions[partition]
        place = store.id, store.root, store.host
        return Record(self.run.run, partition, *place, p.nbytes, p.stored_nbytes, p.digest, p.direct_nbytes)

    def files(self, store: int) -> dict[int, tuple[str, int]]:
        """For each partition in one of ``stores``, the name of its file and the file's size in bytes."""
        return {
            n: (partition_file(n, p.digest), p.stored_nbytes)
            for n, p in enumerate(self.partitions)
            if store in p.holders
        }

    def __repr__(self) -> str:
        ratio = self.nbytes / self.stored_nbytes if self.stored_nbytes else 1.0
        places = ", ".join(sorted({f"{s.host}:{s.root}" for s in self.stores})[:4])
        more = f" and {len(self.stores) - 4} more" if len(self.stores) > 4 else ""
        origin = f" of {self.library}" if self.library in ("cudf", "cupy") else ""
        direct = f", {format_bytes(self.direct_nbytes)} written directly from GPUs" if self.direct_nbytes else ""
        return (
            f"<Manifest {self.name!r}: {self.kind}{origin}, {self.npartitions} partitions, {format_bytes(self.nbytes)} "
            f"stored in {format_bytes(self.stored_nbytes)} ({ratio:.1f}x){direct}, "
            f"generation {self.run.generation}, in {places}{more}>"
        )


def local_path(url: str | os.PathLike[str]) -> str | None:
    """Give the absolute path of a local file, with or without ``file://``; None for other addresses."""
    file_system, path = fsspec.core.url_to_fs(os.fspath(url))
    return os.path.abspath(path) if isinstance(file_system, LocalFileSystem) else None


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _hash(text: bytes) -> bytes:
    return str(blake3(text).hexdigest()).encode()
