"""What mypy cannot see: pyarrow and RAPIDS, whose types are packages of their own, and a part of pandas."""

from __future__ import annotations

import importlib
from typing import Any

from ckpt_spill.errors import ReadError

pa: Any = importlib.import_module("pyarrow")
create_dataframe_from_blocks: Any = importlib.import_module("pandas.api.internals").create_dataframe_from_blocks


def rapids(name: str) -> Any:
    """Import a library of RAPIDS.

    Raises
    ------
    ReadError
        It cannot be imported here.
    """
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise ReadError(
            f"this would be an object of {name}, which cannot be imported here ({e}): read it with backend='pandas'"
        ) from e
