"""Tests that need a GPU: ``pytest -m gpu`` runs them where there is one, and says elsewhere why it does not."""

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
