"""Numbers, times and columns read well and everywhere alike, and text of others is harmless."""

from __future__ import annotations

import importlib
import pkgutil
import time
from functools import partial
from typing import Any, NamedTuple

import pytest

from airflow_s3commit import protocol
from airflow_s3commit._format import (
    Column,
    age,
    facts,
    length,
    moment,
    number,
    plain,
    seconds_of,
    several,
    shortened,
    shown,
    size,
    some,
    text_table,
)
from airflow_s3commit.present import LOG_COLUMNS, MANIFEST_COLUMNS
from airflow_s3commit.protocol.model.manifest import Manifest
from tests.cases import each


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


def test_moments_are_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's time zone does not change what is shown."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert moment(1_700_000_000_000) == "2023-11-14 22:13:20 UTC"
    time.tzset()
    assert moment(None) == "?"


def test_control_characters_are_shown_as_text() -> None:
    """Nothing that others wrote can steer a terminal."""
    assert plain("a\x1b[31m\nb\x9b") == "a\\x1b[31m\\x0ab\\x9b"
    assert plain("a\u2028b\u202ec\u2066d\ufeffe\ud800") == "a\\u2028b\\u202ec\\u2066d\\ufeffe\\ud800"
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
        (" 1d 12h ", 129_600.0),
        ("0.5h", 1_800.0),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """Weeks to seconds are read, alone or together."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "7 days", "-1d", "7d!", "1y", "9" * 400 + "d"])
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    """A number without a unit is ambiguous, and one of too many digits is no number of seconds."""
    with pytest.raises(ValueError, match="not a duration"):
        seconds_of(text)


class Row(NamedTuple):
    """A file."""

    key: str
    size: int | None = None
    inner: Any = None


COLUMNS = (Column("key", "key"), Column("bytes", "size", number), Column("inner size", "inner.size", some))


def test_a_table_of_a_log_is_aligned_and_bounded() -> None:
    """Numbers are right-aligned, control characters are shown, and long tables are cut."""
    text = text_table(COLUMNS[:2], [Row("a\nb", 5), Row("c\u202e", 12_000)])
    lines = ["key       bytes", "-------  ------", "a\\x0ab        5", "c\\u202e  12,000"]
    assert text.splitlines() == lines
    assert text_table(COLUMNS[:1], [Row("x")] * 60).endswith("… and 10 more")
    assert text_table(COLUMNS[:1], []) == "key\n---"


def test_facts_are_those_that_are_known() -> None:
    """A field of a field that is not there has no value, and an empty value is left out."""
    assert facts(COLUMNS, Row("k", 1)) == [("key", "k"), ("bytes", "1")]
    assert facts(COLUMNS, Row("", 0, Row("x", 1_000))) == [("bytes", "0"), ("inner size", "1,000")]


@each(
    ("value", "text"),
    [(None, ""), (True, "yes"), (1234, "1,234"), ({"a": "b", "c": 1}, "a b, c 1"), ("x", "x")],
)
def test_values_are_shown_by_their_kind(value: object, text: str) -> None:
    """Without a formatter a value is text, a count, yes or no, or names with values."""
    assert shown(value) == text


def test_a_list_is_counted_and_its_first_names_are_shown() -> None:
    """None of three names is left out, and of four the last is counted; an empty list is no unknown one."""
    assert shortened(["a", "b", "c"]) == "a, b, c"
    assert shortened(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert [length(values) for values in ({}, {"a": 1}, None)] == ["0", "1", ""]


def test_every_column_has_a_field() -> None:
    """No report declares a column of a field that it does not have."""
    found = {Manifest: (*LOG_COLUMNS, *MANIFEST_COLUMNS)}
    for module in pkgutil.walk_packages(protocol.__path__, f"{protocol.__name__}."):
        for kind in vars(importlib.import_module(module.name)).values():
            if isinstance(kind, type) and isinstance(columns := getattr(kind, "columns", None), tuple):
                found[kind] = columns
    found.pop(Column, None)
    for kind, columns in found.items():
        for column in columns:
            first = column.field.partition(".")[0]
            # A plan's columns are of its items.
            assert kind.__name__ == "SweepPlan" or hasattr(kind, first), f"{kind.__name__}.{column.field}"
    assert len(found) > 8
