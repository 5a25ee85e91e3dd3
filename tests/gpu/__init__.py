"""Tests that need a GPU: ``make test-gpu`` runs them where there is one; elsewhere they are skipped, and say why."""

import functools


@functools.cache
def missing():
    """Say why nothing of RAPIDS can run here; None where it can."""
    try:
        import cudf

        cudf.Series([1])
    except Exception as error:
        return f"needs a GPU and cuDF: {type(error).__name__}: {error}"
    return None


def marks(seconds):
    """Give the marks of a module whose tests take no more than so many seconds each."""
    import pytest  # which the check for a GPU does without

    without = pytest.mark.skipif(missing() is not None, reason=str(missing()))
    return [pytest.mark.gpu, without, pytest.mark.timeout(seconds)]
