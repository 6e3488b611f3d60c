"""Spark's patterns of dates and times, as far as they can be honoured exactly."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "DatetimePattern", "parse_pattern"]

#: Letters with a meaning that is the same in every locale and era from year 1 to 9999.
_FIELDS = ("yyyy", "uuuu", "MM", "dd", "HH", "mm", "ss", "SSSSSS", "SSS", "XXX")
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DatetimePattern:
    """A pattern taken apart.

    Attributes:
        text: The pattern as it was given.
        pieces: What follows what: a field's letters and True, or a literal text and False.

    """

    text: str
    pieces: tuple[tuple[str, bool], ...]

    def __contains__(self, field: str) -> bool:
        """Tell whether a field is in the pattern."""
        return (field, True) in self.pieces


def parse_pattern(value: str) -> DatetimePattern:
    """Read a pattern of ``yyyy MM dd HH mm ss SSS SSSSSS XXX``, punctuation and ``'quoted text'``.

    Brackets, which make a section optional when it is read, are not written.

    Raises:
        ValueError: It has other letters, which only Spark can render.

    """
    pieces: list[tuple[str, bool]] = []
    for found in _TOKEN.finditer(value):
        piece = found[0]
        if piece.startswith("'") and len(piece) > 1:
            pieces.append(("'" if piece == "''" else found[1].replace("''", "'"), False))
        elif piece.isalpha():
            if piece not in _FIELDS:
                raise ValueError(f"{piece!r} is none of {', '.join(_FIELDS)}: only Spark can render it")
            pieces.append(("yyyy" if piece == "uuuu" else piece, True))
        elif piece in "{}#'":
            raise ValueError(f"{piece!r} has a meaning of its own in patterns: quote it")
        elif piece not in "[]":
            pieces.append((piece, False))
    return DatetimePattern(value, tuple(pieces))


#: What Spark writes where no pattern is given.
DATE = parse_pattern("yyyy-MM-dd")
TIMESTAMP = parse_pattern("yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]")
TIMESTAMP_NTZ = parse_pattern("yyyy-MM-dd'T'HH:mm:ss[.SSS]")
