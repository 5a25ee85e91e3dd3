"""A short report in Markdown of a run of tests."""

from __future__ import annotations

import importlib
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import rapids

OTHERS = ("dask", "distributed", "pandas", "numpy", "pyarrow")
LINES = 60  # of one failure
SLOWEST = 10


def facts() -> dict[str, str]:
    """Say what is tested on what. Needs a GPU."""
    runtime = importlib.import_module("cupy").cuda.runtime
    properties = runtime.getDeviceProperties(0)
    versions = {name: importlib.import_module(name).__version__ for name in (*rapids.PACKAGES, *OTHERS)}
    git = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return {
        "GPU": f"{properties['name'].decode()}, {properties['totalGlobalMem'] / 2**30:.0f} GiB",
        "CUDA": f"driver {runtime.driverGetVersion()}, runtime {runtime.runtimeGetVersion()}",
        "commit": git.stdout.strip() or "unknown",
        **versions,
    }


class Report:
    """A plugin of pytest's that writes the report: anew after each test, so that it is there whatever ends the run.

    Parameters
    ----------
    path : Path
    facts : dict
        What stands above the results.
    """

    def __init__(self, path: Path, facts: dict[str, str]) -> None:
        self.path, self.facts = path, facts
        self.start = time.monotonic()
        self.outcomes: dict[str, str] = {}
        self.seconds: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}
        self.figures: dict[str, str] = {}
        self.running: str | None = None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.running = nodeid
        self.write()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.note(report.nodeid, report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        self.figures |= {name: str(figure) for name, figure in report.user_properties}
        if not report.passed:
            self.note(report.nodeid, report)
        elif report.when == "call":
            self.outcomes.setdefault(report.nodeid, "passed")

    def note(self, name: str, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Note what is not as it should be, the first time."""
        if self.outcomes.get(name) != "failed":
            self.outcomes[name] = report.outcome
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self.reasons[name] = "\n".join(str(reason).splitlines()[-LINES:])

    def pytest_sessionfinish(self) -> None:
        self.running = None
        self.write()

    def write(self) -> None:
        self.path.write_text("\n".join(self.lines()) + "\n")

    def lines(self) -> Iterator[str]:
        """Give the lines of the report."""
        yield from ("# Tests on a GPU", "", "| | |", "|---|---|")
        yield from (f"| {name} | {fact} |" for name, fact in self.facts.items())
        counts = Counter(self.outcomes.values())
        numbers = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
        yield from ("", f"**{numbers}, in {time.monotonic() - self.start:.0f} s.**")
        if self.running:
            yield from ("", f"Not at its end: {self.running} is running, or has ended the run.")
        for outcome in ("failed", "skipped"):
            for name in (name for name, found in self.outcomes.items() if found == outcome):
                yield from ("", f"## {outcome}: {name}", "", "```", self.reasons[name], "```")
        if self.figures:
            yield from ("", "## Figures, one run each", "", "| | |", "|---|---|")
            yield from (f"| {name} | {figure} |" for name, figure in self.figures.items())
        files: Counter[str] = Counter()
        for name, seconds in self.seconds.items():
            files[name.partition("::")[0]] += seconds
        yield from ("", "## Durations", "", "| | seconds |", "|---|---|")
        yield from (f"| {name} | {seconds:.1f} |" for name, seconds in files.most_common())
        yield from (f"| {name} | {seconds:.1f} |" for name, seconds in self.seconds.most_common(SLOWEST))
