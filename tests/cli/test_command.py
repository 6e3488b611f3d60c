"""Durations on the command line are read exactly, or refused."""

from __future__ import annotations

import pytest

from airflow_s3commit.cli.command import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7d", 604_800.0),
        ("36h", 129_600.0),
        ("90m", 5_400.0),
        ("30s", 30.0),
        ("1w", 604_800.0),
        ("1d12h", 129_600.0),
        ("0.5h", 1_800.0),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """Weeks to seconds are read, alone or together."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "7 days", "-1d", "7d!", "1y"])
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    """A number without a unit is ambiguous."""
    with pytest.raises(ValueError, match="not a duration"):
        seconds_of(text)
