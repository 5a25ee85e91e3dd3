"""What tests on a GPU use of RAPIDS is there, and takes what it is given: checked where there is no GPU, too."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys

import pytest

from tests.gpu import parts, test_benchmarks, test_room

MISSING = importlib.util.find_spec("cudf") is None
pytestmark = [pytest.mark.rapids, pytest.mark.skipif(MISSING, reason="needs cuDF")]


def parameters(function):
    return set(inspect.signature(function).parameters)


def test_dask_cuda():
    from dask_cuda import LocalCUDACluster
    from dask_cuda.device_host_file import DeviceHostFile

    options = {"enable_cudf_spill", "rmm_pool_size", "rmm_maximum_pool_size", "kwargs", "n_workers", "local_directory"}
    assert options <= parameters(LocalCUDACluster)
    data = DeviceHostFile.__init__.__code__.co_names
    assert {"device_buffer", "host_buffer", "others"} <= set(data)


def test_cudf():
    import cudf
    from cudf.core.buffer.spill_manager import SpillManager, get_global_manager
    from cudf.core.buffer.spillable_buffer import SpillableBufferOwner

    assert cudf.get_option("spill") is False
    assert cudf.get_option("spill_stats") == 0
    assert parameters(cudf.set_option) == {"name", "val"}
    assert get_global_manager() is None
    assert parameters(SpillManager.buffers) == {"self", "order_by_access_time"}
    assert isinstance(SpillableBufferOwner.is_spilled, property)
    assert isinstance(SpillableBufferOwner.size, property)
    assert {"obj", "nan_as_null"} == parameters(cudf.from_pandas)
    assert {"data", "name"} <= parameters(cudf.Index.__init__)
    assert all(callable(kind.to_arrow) for kind in (cudf.Series, cudf.Index))
    assert callable(cudf.Index.equals)


def test_dask_cudf():
    """dask knows the size of what is cuDF's from dask_cudf."""
    import cudf
    from dask.sizeof import sizeof

    importlib.import_module("dask_cudf")
    kinds = (cudf.DataFrame, cudf.Series, cudf.Index)
    assert {sizeof.dispatch(kind).__module__ for kind in kinds} == {"dask_cudf.backends"}


@pytest.mark.parametrize("kind", test_room.RESOURCES)
def test_rmm(kind):
    """Resources that limit memory take these arguments; where there is no device, a pool has none."""
    from rmm import mr

    with contextlib.suppress(MemoryError):
        made = test_room.RESOURCES[kind](mr, 1 << 20)
        assert {"limit": "get_allocation_limit", "pool": "pool_size"}[kind] in dir(made)
        assert mr.StatisticsResourceAdaptor(made).allocation_counts.current_bytes == 0
    assert parameters(mr.set_current_device_resource) == {"mr"}
    assert parameters(mr.get_current_device_resource) == set()


def test_cupy():
    import cupy

    assert {"order", "blocking"} <= parameters(cupy.asarray)
    for name in ("getDeviceProperties", "driverGetVersion", "runtimeGetVersion"):
        assert callable(getattr(cupy.cuda.runtime, name))


def test_parts():
    """Parts have the size they are said to have, on the host, and nulls."""
    frame = parts.on_host(3)
    assert frame.memory_usage(index=False, deep=True).sum() == pytest.approx(parts.PART, rel=0.2)
    assert 0 < frame["d"].isna().sum() < len(frame) / 2
    assert not frame.drop(columns="d").isna().any(axis=None)
    assert not frame.equals(parts.on_host(4))
    assert parts.block_on_host(3).nbytes == parts.PART


@pytest.mark.parametrize("script", test_benchmarks.SIZES)
def test_command_lines(script, monkeypatch):
    """The benchmarks understand how they are called."""
    from dask_cuda.benchmarks.utils import parse_benchmark_args

    from benchmarks.local_checkpoint import OPTIONS

    line = test_benchmarks.command(script, "kept", "results")
    module = importlib.import_module(line[0])
    monkeypatch.setattr(sys, "argv", line)
    options = parse_benchmark_args("", [dict(option) for option in (*module.OPTIONS.values(), *OPTIONS)])
    assert options.type == "gpu"
    assert options.backend == test_benchmarks.BACKENDS[script]
    assert options.rmm_pool_size == 2 * 10**9
