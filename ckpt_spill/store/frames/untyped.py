"""What mypy cannot see: pyarrow, whose types are a package of its own, and a part of pandas."""

from __future__ import annotations

import importlib
from typing import Any

pa: Any = importlib.import_module("pyarrow")
create_dataframe_from_blocks: Any = importlib.import_module("pandas.api.internals").create_dataframe_from_blocks
