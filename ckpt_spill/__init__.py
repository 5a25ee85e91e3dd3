"""Checkpoints of dask collections on node-local disk."""

from ckpt_spill.catalog import Manifest, list_checkpoints
from ckpt_spill.compat import DataFrameCheckpoint
from ckpt_spill.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CkptSpillError,
    ConflictError,
    CorruptPartitionError,
    DiskFullError,
    ManifestError,
    MissingPartitionError,
    ReadError,
    RefusedError,
    RootError,
    UnserializableError,
    UnsupportedCollectionError,
    WriteError,
)
from ckpt_spill.persist import persist_to_disk
from ckpt_spill.rehydrate import checkpoint, rehydrate
from ckpt_spill.spill.options import device_spill, host_spill

__all__ = [
    "CheckpointExistsError",
    "CheckpointNotFoundError",
    "CkptSpillError",
    "ConflictError",
    "CorruptPartitionError",
    "DataFrameCheckpoint",
    "DiskFullError",
    "Manifest",
    "ManifestError",
    "MissingPartitionError",
    "ReadError",
    "RefusedError",
    "RootError",
    "UnserializableError",
    "UnsupportedCollectionError",
    "WriteError",
    "checkpoint",
    "device_spill",
    "host_spill",
    "list_checkpoints",
    "persist_to_disk",
    "rehydrate",
]
