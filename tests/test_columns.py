"""Columns are declared once beside the fields of a report, and drawn everywhere alike."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, NamedTuple

from airflow_s3commit import protocol
from airflow_s3commit._columns import Column, facts, shown, some, text_table
from airflow_s3commit._format import number
from airflow_s3commit.present import LOG_COLUMNS, MANIFEST_COLUMNS
from airflow_s3commit.protocol.model.manifest import Manifest
from tests.cases import each


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
