"""What a cluster is given as ``data=``: how each of its workers is to make its memory."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, get_args

from dask.utils import parse_bytes

from ckpt_spill.config import Roots, requested_roots
from ckpt_spill.errors import RefusedError
from ckpt_spill.spill.host import HostSpill, open_tier, target_of
from ckpt_spill.store.partition import CodecName

_LEAST = 1 << 20

Data = tuple[Callable[..., MutableMapping[Any, Any]], dict[str, Any]]


def host_spill(root: Roots | None = None, *, memory_limit: int | str | None = None, codec: CodecName = "auto") -> Data:
    """Let the memory of CPU workers overflow into a store: give this to a cluster as ``data=``.

    Parameters
    ----------
    root : path or list of paths, optional
        Where to spill, as for ``persist_to_disk``: absolute, one per drive. The default is what each worker configures.
    memory_limit : int or str, optional
        Bytes of one worker, as ``"4 GB"``, of which dask's fractions are taken. The default is the worker's own limit.
    codec : {"auto", "zstd", "lz4", "none"}
        How files are compressed.

    Returns
    -------
    tuple
        What ``data=`` of ``dask.distributed.LocalCluster``, ``Nanny`` and ``Worker`` takes.

    Raises
    ------
    RefusedError
        An argument is none that can be used.

    Notes
    -----
    All of dask's settings for spilling count: ``distributed.worker.memory.target``, ``spill``, ``max-spill``. A worker
    whose root cannot be used does not start.

    Examples
    --------
    >>> cluster = LocalCluster(data=host_spill("/nvme/ckpt"))  # doctest: +SKIP
    """
    return _open_host, _options(root, memory_limit, codec)


def device_spill(
    root: Roots | None = None,
    *,
    device_memory_limit: float | str | None = "default",
    memory_limit: int | str | None = None,
    codec: CodecName = "auto",
) -> Data:
    """Let the memory of GPU workers overflow to the host and from there into a store: give this as ``data=``.

    Parameters
    ----------
    root : path or list of paths, optional
        As for ``host_spill``.
    device_memory_limit : int, float, str or None
        As for ``dask_cuda.LocalCUDACluster``: bytes, a text as ``"20 GB"``, a fraction of the device's memory,
        ``"default"`` for four fifths; None for no limit.
    memory_limit : int or str, optional
        As for ``host_spill``: of the host's memory.
    codec : {"auto", "zstd", "lz4", "none"}
        As for ``host_spill``.

    Returns
    -------
    tuple
        What ``data=`` of ``dask_cuda.LocalCUDACluster`` takes.

    Raises
    ------
    RefusedError
        An argument is none that can be used.

    Examples
    --------
    >>> cluster = LocalCUDACluster(data=device_spill("/nvme/ckpt", device_memory_limit="20 GB"))  # doctest: +SKIP
    """
    return _open_device, {**_options(root, memory_limit, codec), "device_memory_limit": device_memory_limit}


def _options(root: Roots | None, memory_limit: int | str | None, codec: CodecName) -> dict[str, Any]:
    if codec not in get_args(CodecName):
        raise RefusedError(f"codec={codec!r} is not known; choose one of {', '.join(map(repr, get_args(CodecName)))}")
    return {"roots": requested_roots(root), "memory_limit": _limit(memory_limit), "codec": codec}


def _limit(memory_limit: int | str | None) -> int | None:
    if memory_limit is None:
        return None
    try:
        limit = int(memory_limit) if type(memory_limit) is int else parse_bytes(str(memory_limit))
    except ValueError:
        limit = 0
    if limit < _LEAST or isinstance(memory_limit, float):
        raise RefusedError(
            f"memory_limit={memory_limit!r} has to be bytes, a mebibyte or more, as a number or a text like '4 GB'. "
            "Leave it out to take the limit that the worker has"
        )
    return limit


# Called in the processes of the workers, which give their own directory.
def _open_host(
    worker_local_directory: str, *, roots: tuple[str, ...] | None, memory_limit: int | None, codec: CodecName
) -> MutableMapping[Any, Any]:
    return HostSpill(open_tier(worker_local_directory, roots, codec), _target(memory_limit))


def _open_device(
    worker_local_directory: str,
    *,
    roots: tuple[str, ...] | None,
    memory_limit: int | None,
    device_memory_limit: float | str | None,
    codec: CodecName,
) -> MutableMapping[Any, Any]:
    # dask-cuda is only where there are GPUs.
    try:
        from dask_cuda.utils import cuda_visible_devices, nvml_device_index, parse_device_memory_limit

        from ckpt_spill.spill.device import DeviceSpill
    except ImportError as e:
        raise RefusedError(
            f"device_spill is for workers with dask-cuda, which cannot be imported here ({e}): install it, or give "
            "host_spill as data="
        ) from e

    limit = device_memory_limit
    if limit is not None:  # the first device that is visible is the worker's own
        limit = parse_device_memory_limit(limit, device_index=nvml_device_index(0, cuda_visible_devices(0)))
    tier = open_tier(worker_local_directory, roots, codec)
    return DeviceSpill(worker_local_directory, tier=tier, device_memory_limit=limit, target=_target(memory_limit))


def _target(memory_limit: int | None) -> int | None:
    return None if memory_limit is None else target_of(memory_limit)
