"""Numbers, sizes and times as people read them, and text made safe for a terminal.

Nothing here raises, whatever a record or a store made up: what cannot be written is a question mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import ParamSpec

__all__ = ["age", "dollars", "moment", "number", "or_unknown", "plain", "several", "size"]

P = ParamSpec("P")

UNKNOWN = "?"

_KIB = 1024
_CENT = 0.01
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_AGE_UNITS = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def or_unknown(words_of: Callable[P, str]) -> Callable[P, str]:
    """Have a function of numbers return a question mark for those that it cannot put into words."""

    @wraps(words_of)
    def words(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return words_of(*args, **kwargs)
        except (ArithmeticError, OSError, ValueError):
            return UNKNOWN

    return words


def plain(value: object) -> str:
    """Return a value as text that cannot steer a terminal: keys and contexts are other people's words."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", str(value))


@or_unknown
def number(count: int | None) -> str:
    """Return a count with separators."""
    return UNKNOWN if count is None else f"{count:,}"


def several(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 file``, ``2,000 files``."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


@or_unknown
def size(count: float | None) -> str:
    """Return bytes as ``1.5 GiB``."""
    if count is None:
        return UNKNOWN
    if count < _KIB:
        return f"{count:,.0f} B"
    value, unit = float(count), ""
    for unit in _SIZE_UNITS:
        if value < _KIB or unit == _SIZE_UNITS[-1]:
            break
        value /= _KIB
    return f"{value:,.1f} {unit}"


@or_unknown
def age(seconds: float | None) -> str:
    """Return a length of time in seconds by its two greatest units, as ``2 d 3 h``."""
    if seconds is None:
        return UNKNOWN
    rest = max(float(seconds), 0.0)
    said: list[str] = []
    for unit, length in _AGE_UNITS:
        count, rest = divmod(rest, length)
        if count or said:
            said.append(f"{int(count)} {unit}" if count else "")
        if len(said) == 2:  # noqa: PLR2004
            break
    return " ".join(filter(None, said)) or "0 s"


@or_unknown
def moment(milliseconds: int | None) -> str:
    """Return a time in milliseconds since the epoch as ``2026-01-31 12:00:00 UTC``."""
    if milliseconds is None:
        return UNKNOWN
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def dollars(amount: float) -> str:
    """Return US dollars as ``$1,000.00``."""
    return "<$0.01" if 0 < amount < _CENT else f"${amount:,.2f}"
