"""Collections that are hard to save and to give back unchanged, by kind; each module holds one kind."""

from tests.cases import arrays, bags, cells, delayed, dtypes, frames, labels, text
from tests.cases.building import CASES, Case

__all__ = ["CASES", "Case", "arrays", "bags", "cells", "delayed", "dtypes", "frames", "labels", "text"]
