"""Says at the end of a run how many stops and schedules were really tried."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Add up what the tests of this folder recorded, under xdist too."""
    tried: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, value in report.user_properties:
            if name in ("stops", "schedules"):
                tried[name] += value
    if tried:
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(tried.items()))
        terminalreporter.write_line(f"crash suite: {counts} tried")
