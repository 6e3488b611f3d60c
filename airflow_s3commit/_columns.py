"""Columns of reports, declared once beside their fields; terminal, task log and page draw them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, NamedTuple

from airflow_s3commit._format import age, number, or_unknown, plain, size


def shown(value: object) -> str:
    """Return a value of a record as text; nothing for None."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, int) else "" if value is None else str(value)


def length(values: Sized | None) -> str:
    """Return how many values there are; nothing if they are not known."""
    return "" if values is None else number(len(values))


class Column(NamedTuple):
    """A column of a table of reports, or a labelled fact about one report.

    Attributes:
        field: The field with its value; ``output.files`` is a field of a field, and nothing the report.
        room: Minimum width of a terminal, in characters, for a table to show it.
        folds: Whether a table may fold its values.
    """

    title: str
    field: str
    show: Callable[[Any], str] = shown
    room: int = 0
    folds: bool = False

    def text(self, report: object) -> str:
        """Return a report's value as text, without control characters: others choose keys and reasons."""
        for name in filter(None, self.field.split(".")):
            report = getattr(report, name) if report is not None else None
        return plain(self.show(report))

    @property
    def is_number(self) -> bool:
        """Whether its values are aligned to the right."""
        return self.show in (age, length, number, size, some)


class Named(NamedTuple):
    """A list of a report, of which some are named and all are counted.

    Attributes:
        total: The field with their number; empty if the list has all.
        harmless: Whether they do no harm.
    """

    title: str
    field: str
    total: str = ""
    harmless: bool = False


@or_unknown
def some(count: int) -> str:
    """Return a count as ``2,000``; nothing for 0."""
    return number(count) if count else ""


def facts(columns: Iterable[Column], report: object) -> list[tuple[str, str]]:
    """Return the titles and values of a report, without empty ones."""
    values = ((column.title, column.text(report)) for column in columns)
    return [(title, text) for title, text in values if text]


def text_table(columns: Sequence[Column], reports: Iterable[object], *, most: int = 50) -> str:
    """Return reports as text in aligned columns, for a log; more than ``most`` are only counted."""
    left = iter(reports)
    rows = [[column.text(one) for column in columns] for one in islice(left, most)]
    widths = [max(map(len, cells)) for cells in zip(*rows, [one.title for one in columns], strict=True)]
    lines = [[one.title for one in columns], ["-" * width for width in widths], *rows]
    aligned = (
        "  ".join(
            text.rjust(width) if column.is_number else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    )
    rest = sum(1 for _ in left)
    return "\n".join([*aligned, *([f"… and {rest:,} more"] if rest else [])])
