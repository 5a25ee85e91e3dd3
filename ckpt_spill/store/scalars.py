"""Single values in JSON, types included: divisions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from ckpt_spill.store.inline import embed, extract


def dump_scalar(value: Any) -> Any:
    """Describe a scalar in JSON. What JSON has no word for is embedded, in the last resort as a pickle."""
    if value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is str and value.isprintable():
        return value
    if type(value).__module__ == "numpy" and value.dtype.kind in "biufcmMSU" and value.dtype.itemsize:
        return {"numpy": value.dtype.str, "hex": value.tobytes().hex()}
    if type(value) is pd.Timestamp and value.tz is None:
        return {"timestamp": int(value.asm8.view("int64")), "unit": value.unit}
    return {"embedded": embed([value])}


def load_scalar(description: Any) -> Any:
    """Give the scalar back."""
    if not isinstance(description, dict):
        return description
    if "numpy" in description:
        return np.frombuffer(bytes.fromhex(description["hex"]), np.dtype(description["numpy"]))[0]
    if "timestamp" in description:
        return pd.Timestamp(np.datetime64(description["timestamp"], description["unit"]))
    return extract(description["embedded"])[0]
