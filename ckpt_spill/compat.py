"""``DataFrameCheckpoint``, the spelling of the proposal."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ckpt_spill.catalog import Manifest
from ckpt_spill.persist import persist_to_disk
from ckpt_spill.rehydrate import rehydrate


@dataclass(frozen=True)
class DataFrameCheckpoint:
    """A checkpoint that is known by its path, as proposed in dask/distributed#8483.

    A thin spelling of ``persist_to_disk`` and ``rehydrate`` for code that was written for the proposal. Like there, a
    path has one checkpoint. Unlike there, it is not parquet, several workers may share a disk, and divisions and types
    come back as they were.

    Attributes
    ----------
    path : str
        The directory on each worker's own disk.
    manifest : Manifest
        What was saved, and where; ``rehydrate`` takes it as well.

    Examples
    --------
    >>> from ckpt_spill import DataFrameCheckpoint
    >>> checkpoint = DataFrameCheckpoint.create(df, "/nvme/ckpt")  # doctest: +SKIP
    >>> client.restart()  # doctest: +SKIP
    >>> df = checkpoint.load()  # doctest: +SKIP
    """

    path: str
    manifest: Manifest

    @classmethod
    def create(
        cls, df: Any, path: str | os.PathLike[str], *, overwrite: bool = True, **options: Any
    ) -> DataFrameCheckpoint:
        """Compute a collection and save it below a directory on each worker's own disk.

        Parameters
        ----------
        df : dask DataFrame
            Or anything else that ``persist_to_disk`` takes.
        path : path
            The root of the stores, and with it the name of the checkpoint. Absolute; environment variables are expanded
            on each worker.
        overwrite : bool, optional
            Whether a checkpoint of other content may be replaced that has this path already.
        **options
            Other options of ``persist_to_disk``. What the proposal has for parquet, as ``format``, is not among them.

        Returns
        -------
        DataFrameCheckpoint

        See Also
        --------
        persist_to_disk : What may be raised, and what is true then.
        """
        path = os.fspath(path)
        return cls(path, persist_to_disk(df, name=path, root=path, overwrite=overwrite, **options))

    def load(self, **options: Any) -> Any:
        """Give the collection back, lazily.

        Parameters
        ----------
        **options
            Options of ``rehydrate``.

        Returns
        -------
        dask DataFrame

        See Also
        --------
        rehydrate : What may be raised.
        """
        return rehydrate(self.manifest, **options)

    def clean(self) -> None:
        """Delete the checkpoint; what was loaded from it cannot be computed any more."""
        self.manifest.delete()
