"""Fails where there is no GPU, and says why: ``python -m tests.gpu.present``. Needs nothing but Python."""

from __future__ import annotations

import ctypes
import sys


def absent() -> str | None:
    """Say why CUDA has no GPU here; None where it has."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"there is no NVIDIA driver: {error}"
    if code := driver.cuInit(0):
        return f"the NVIDIA driver has no GPU for this process: cuInit returned {code}"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return None if count.value else "the NVIDIA driver has no GPU for this process"


if __name__ == "__main__":
    reason = absent()
    sys.exit(reason and f"These tests need a GPU, and there is none here: {reason}")
