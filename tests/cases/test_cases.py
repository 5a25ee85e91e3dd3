"""The cases themselves: each can be built, and is the same each time, so that what comes back can be compared."""

from __future__ import annotations

import pytest

from tests.cases import CASES
from tests.cases.comparison import diff_collections


@pytest.mark.parametrize("name", CASES)
def test_a_case_equals_itself(name):
    """Two makings of one case do not differ, and the comparison can look into every value of it."""
    assert diff_collections(CASES[name].build(), CASES[name].build()) == []
