"""The progress of completing uploads is a bar for people, and in the log for others."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from airflow_s3commit import Progress
from airflow_s3commit.cli.output import Output


def test_a_bar_on_a_terminal() -> None:
    """A bar has the files, bytes, files a second, concurrent requests and resent requests."""
    output, screen = Output(), io.StringIO()
    output.err = Console(file=screen, force_terminal=True, width=160)
    with output.completing("completing uploads") as tell:
        for done in range(1, 401):
            tell(Progress(done, 400, done << 20, done / 100, 96, 2))
    shown = screen.getvalue()
    assert "completing uploads" in shown
    for words in ("400/400", "400.0 MiB", "100 files/s", "96 requests at once", "2 sent again"):
        assert words in shown


def test_a_line_in_the_log_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    """Without a terminal, and for scripts, the same goes into the log."""
    output = Output(as_json=True)
    with caplog.at_level(logging.INFO), output.completing("completing uploads") as tell:
        tell(Progress(1, 2, 10, 1.0))
        tell(Progress(2, 2, 20, 2.0))
    assert [record.getMessage() for record in caplog.records] == [
        "Completed 2 of 2 files, 20 B, 1 files/s, 0 requests at once, 0 sent again"
    ]
