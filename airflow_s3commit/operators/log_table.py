"""Tables for a task's log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["log_table"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def log_table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, most: int = 50) -> str:
    """Return rows as text in aligned columns, numbers to the right.

    :param titles: What the columns are.
    :param rows: The rows, each as long as the titles. Text in them is made harmless: keys and reasons are
        other people's words.
    :param most: How many rows are shown; of the others, their number.
    """
    taken = [list(row) for row in rows]
    lines = [list(titles), *([_text(value) for value in row] for row in taken[:most])]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    right = [
        bool(taken) and all(isinstance(row[column], int | float) or row[column] is None for row in taken)
        for column in range(len(titles))
    ]
    lines.insert(1, ["-" * width for width in widths])
    aligned = (
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )
    rest = [f"… and {len(taken) - most:,} more"] if len(taken) > most else []
    return "\n".join([*aligned, *rest])


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", str(value))
