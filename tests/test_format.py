"""Numbers and times read well, and text of others is harmless."""

from __future__ import annotations

from functools import partial

import pytest

from airflow_s3commit._format import age, moment, number, plain, seconds_of, several, size


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
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (5 * 1024**3, "5.0 GiB"),
        (3 * 1024**5, "3,072.0 TiB"),
    ],
)
def test_sizes_are_binary(count: int | None, words: str) -> None:
    """Sizes are in powers of 1,024, with binary units."""
    assert size(count) == words


def test_moments_are_in_utc() -> None:
    """The machine's time zone does not change what is shown."""
    assert moment(1_700_000_000_000) == "2023-11-14 22:13:20 UTC"
    assert moment(None) == "?"


def test_control_characters_are_shown_as_text() -> None:
    """Nothing that others wrote can steer a terminal."""
    assert plain("a\x1b[31m\nb\x9b") == "a\\x1b[31m\\x0ab\\x9b"
    assert plain("a\u2028b\u202ec\u2066d\ud800") == "a\\u2028b\\u202ec\\u2066d\\ud800"
    assert plain("äé\u200c\U0001f600") == "äé\u200c\U0001f600"


@pytest.mark.parametrize(
    "absurd", [10**400, -(10**400), 10**5000, float("inf"), float("nan"), 1 << 63], ids=type
)
def test_no_number_is_too_absurd_to_be_shown(absurd: int) -> None:
    """What a record or a store made up is shown in some way, and never an error."""
    for words_of in (age, moment, number, size, partial(several, noun="file")):
        assert words_of(absurd)


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
