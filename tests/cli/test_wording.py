"""Numbers and times read well, and what is typed is read back."""

from __future__ import annotations

import pytest

from airflow_s3commit.cli.wording import age, amount, cost, moment, plain, seconds_of, size
from airflow_s3commit.protocol.records import Counts


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "?"),
        (0, "0 s"),
        (0.4, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3_725, "1 h 2 min"),
        (86_400, "1 d"),
        (90_000, "1 d 1 h"),
        (86_460, "1 d"),
        (-5, "0 s"),
    ],
)
def test_ages_have_two_units_at_most(seconds: float | None, words: str) -> None:
    """The two greatest that follow each other; nothing below them."""
    assert age(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (None, "?"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 * 1024**3, "5.0 GiB"),
        (3 * 1024**5, "3072.0 TiB"),
    ],
)
def test_sizes_are_binary(count: int | None, words: str) -> None:
    """By 1,024, with the unit that says so."""
    assert size(count) == words


def test_amounts_say_what_is_known() -> None:
    """Rows only where they were counted, one file in the singular."""
    assert amount(Counts(files=1, bytes=2048, rows=1000)) == "1 file, 2.0 KiB, 1,000 rows"
    assert amount(Counts(files=2, bytes=1, rows=None)) == "2 files, 1 B"


@pytest.mark.parametrize(("stored", "words"), [(0, "$0.00"), (1024**2, "<$0.01"), (1024**4, "$23.55")])
def test_costs_are_rounded_for_people_only(stored: int, words: str) -> None:
    """The exact number comes with it."""
    exact, said = cost(stored)
    assert said == words
    assert exact == pytest.approx(stored / 1024**3 * 0.023)


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
def test_lengths_of_time_are_read(text: str, seconds: float) -> None:
    """Weeks to seconds, alone or together."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "7 days", "-1d", "7d!", "1y"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    """A number without a unit could be anything."""
    with pytest.raises(ValueError, match="no length of time"):
        seconds_of(text)


def test_moments_are_in_utc() -> None:
    """The machine's time zone does not change what is shown."""
    assert moment(1_700_000_000_000) == "2023-11-14 22:13:20 UTC"
    assert moment(None) == "?"


def test_control_characters_are_shown_as_text() -> None:
    """Nothing that others wrote can steer a terminal."""
    assert plain("a\x1b[31m\nb\x9b") == "a\\x1b[31m\\x0ab\\x9b"
