"""Formats values for people: numbers, sizes, times, text that is safe for a terminal, columns of reports.

A report declares its columns once, beside its fields; the terminal, the task log and the page draw them.

Records and stores may hold any number, so no formatter raises: what it cannot format becomes a question mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from datetime import UTC, datetime
from functools import wraps
from itertools import islice
from typing import Any, NamedTuple

UNKNOWN = "?"

_KIB = 1024
_BYTE = 0xFF
_CENT = 0.01
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_AGE_UNITS = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))
_SECONDS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d+)?)\s*([wdhms])")
#: Characters that move the cursor, end a line or change the text's direction, or that cannot be encoded.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def or_unknown(formatter: Callable[[Any], str]) -> Callable[[Any], str]:
    """Make a formatter return a question mark for None, and for numbers that it cannot format."""

    @wraps(formatter)
    def format_or_unknown(value: Any) -> str:
        try:
            return UNKNOWN if value is None else formatter(value)
        except (ArithmeticError, OSError, ValueError):
            return UNKNOWN

    return format_or_unknown


def plain(value: object) -> str:
    """Return a value as text with control characters escaped, including those for the text's direction.

    Keys and contexts are untrusted: a control character could manipulate the terminal, or fake another line.
    """
    return _CONTROL.sub(_escaped, str(value))


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code <= _BYTE else f"\\u{code:04x}"


@or_unknown
def number(count: int) -> str:
    """Return a count as ``2,000``."""
    return f"{count:,}"


def several(count: int, noun: str) -> str:
    """Return a count with its noun, as ``1 file`` or ``2,000 files``."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def shortened(names: list[str]) -> str:
    """Return the first three names, and how many more there are."""
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown  # noqa: PLR2004


@or_unknown
def size(count: float) -> str:
    """Return a number of bytes as ``1.5 GiB``."""
    if count < _KIB:
        return f"{count:,.0f} B"
    value, unit = float(count), ""
    for unit in _SIZE_UNITS:
        if value < _KIB or unit == _SIZE_UNITS[-1]:
            break
        value /= _KIB
    return f"{value:,.1f} {unit}"


@or_unknown
def age(seconds: float) -> str:
    """Return a duration in seconds by its two largest units, as ``2 d 3 h``."""
    rest = max(float(seconds), 0.0)
    parts: list[str] = []
    for unit, length in _AGE_UNITS:
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{int(count)} {unit}" if count else "")
        if len(parts) == 2:  # noqa: PLR2004
            break
    return " ".join(filter(None, parts)) or "0 s"


@or_unknown
def moment(milliseconds: int) -> str:
    """Return milliseconds since the epoch as ``2026-01-31 12:00:00 UTC``."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def time_of(text: str) -> datetime:
    """Read a time in ISO 8601, in UTC if it has no zone; any other text is a `ValueError`."""
    known = datetime.fromisoformat(text)
    return known if known.tzinfo else known.replace(tzinfo=UTC)


def dollars(amount: float) -> str:
    """Return an amount in US dollars as ``$1,000.00``; below one cent ``<$0.01``."""
    return "<$0.01" if 0 < amount < _CENT else f"${amount:,.2f}"


def seconds_of(text: str) -> float:
    """Parse a duration such as ``7d``, ``12h``, ``1d12h`` or ``30m``, and return its seconds.

    Raises `ValueError` if the text is not a duration with units.
    """
    found = _DURATION.findall(text)
    if not found or _DURATION.sub("", text).strip():
        raise ValueError(f"{text!r} is not a duration; write 7d, 12h, 90m, 30s or 1d12h")
    return sum(float(count) * _SECONDS[unit] for count, unit in found)


def shown(value: object) -> str:
    """Return a value of a record as text; None becomes empty text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, int) else "" if value is None else str(value)


def length(values: Sized | None) -> str:
    """Return how many values there are; empty text if they are not known."""
    return "" if values is None else number(len(values))


class Column(NamedTuple):
    """A column of a table of reports, or a labelled fact about one report.

    Attributes:
        field: The report's field, which may be nested (``output.files``); empty for the report itself.
        room: Minimum width of a terminal, in characters, for a table to show the column.
        folds: Whether a table may fold its values.
        to_right: Whether to align its values to the right, even if ``show`` is not a function for numbers.
    """

    title: str
    field: str
    show: Callable[[Any], str] = shown
    room: int = 0
    folds: bool = False
    to_right: bool = False

    def text(self, report: object) -> str:
        """Return a report's value as text, without control characters: keys and reasons are untrusted."""
        for name in filter(None, self.field.split(".")):
            report = getattr(report, name) if report is not None else None
        return plain(self.show(report))

    @property
    def is_number(self) -> bool:
        """Whether its values are aligned to the right."""
        return self.to_right or self.show in (age, length, number, size, some)


class Named(NamedTuple):
    """A list in a report that may hold only some of the items found, while another field counts them all.

    Attributes:
        total: The field that counts all items; empty if the list has them all.
        harmless: Whether the items do no harm.
    """

    title: str
    field: str
    total: str = ""
    harmless: bool = False


def some(count: int | None) -> str:
    """Return a count as ``2,000``; 0 and None become empty text."""
    return number(count) if count else ""


def facts(columns: Iterable[Column], report: object) -> list[tuple[str, str]]:
    """Return a report's titles with their values, without those whose value is empty."""
    values = ((column.title, column.text(report)) for column in columns)
    return [(title, text) for title, text in values if text]


def text_table(columns: Sequence[Column], reports: Iterable[object], *, most: int = 50) -> str:
    """Return reports as text in aligned columns, for a log; reports beyond ``most`` are only counted."""
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
