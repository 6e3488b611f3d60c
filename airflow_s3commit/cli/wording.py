"""Numbers, times and names as people read them. Scripts get the exact values."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from rich.text import Text

from airflow_s3commit.protocol.records import Counts
from airflow_s3commit.protocol.sweep_plan import monthly_cost

__all__ = [
    "age",
    "amount",
    "cell",
    "cost",
    "dollars",
    "moment",
    "number",
    "plain",
    "seconds_of",
    "several",
    "size",
    "state_cell",
]

_KIB = 1024
_CENT = 0.01
_UNITS = (("w", 604_800.0), ("d", 86_400.0), ("h", 3_600.0), ("m", 60.0), ("s", 1.0))
_AGE_UNITS = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([wdhms])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_STYLES = {
    "open": "cyan",
    "sealed": "cyan",
    "committing": "yellow",
    "aborting": "yellow",
    "committed": "green",
    "aborted": "dim",
}


def plain(value: object) -> str:
    """Return a value as text that cannot steer a terminal: keys and contexts are other people's words."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", str(value))


def cell(value: object, style: str = "") -> Text:
    """Return a value as a cell of a table; nothing for None."""
    return Text("" if value is None else plain(value), style=style, overflow="fold")


def state_cell(state: str | None) -> Text:
    """Return a job's state, in its colour."""
    return Text(state or "none", style=_STYLES.get(state or "", "red"))


def number(count: int | None) -> str:
    """Return a count with separators; a question mark if it is not known."""
    return "?" if count is None else f"{count:,}"


def several(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 file``, ``2,000 files``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size(count: int | None) -> str:
    """Return bytes as ``1.5 GiB``."""
    if count is None:
        return "?"
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < _KIB:
            break
        value, unit = value / _KIB, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def amount(counts: Counts) -> str:
    """Return counts as ``3 files, 1.5 GiB, 1,000 rows``."""
    rows = f", {counts.rows:,} rows" if counts.rows is not None and counts.files else ""
    return f"{several(counts.files, 'file')}, {size(counts.bytes)}{rows}"


def age(seconds: float | None) -> str:
    """Return a length of time by its two greatest units, as ``2 d 3 h``."""
    if seconds is None:
        return "?"
    rest = max(seconds, 0.0)
    said: list[str] = []
    for unit, length in _AGE_UNITS:
        count, rest = divmod(rest, length)
        if count or said:
            said.append(f"{count:.0f} {unit}" if count else "")
        if len(said) == 2:  # noqa: PLR2004
            break
    return " ".join(filter(None, said)) or "0 s"


def moment(milliseconds: int | None) -> str:
    """Return a time as ``2026-01-31 12:00:00 UTC``."""
    if milliseconds is None:
        return "?"
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def cost(stored: int) -> tuple[float, str]:
    """Return what keeping bytes costs a month in US dollars, exactly and in words."""
    exact = monthly_cost(stored)
    return exact, dollars(exact)


def dollars(amount: float) -> str:
    """Return US dollars as ``$1,000.00``."""
    return "<$0.01" if 0 < amount < _CENT else f"${amount:,.2f}"


def seconds_of(text: str) -> float:
    """Read a length of time such as ``7d``, ``12h``, ``1d12h`` or ``30m``.

    Raises:
        ValueError: It is none.

    """
    units = dict(_UNITS)
    found = _DURATION.findall(text)
    if not found or _DURATION.sub("", text).strip():
        raise ValueError(f"{text!r} is no length of time; write 7d, 12h, 90m, 30s, or 1d12h")
    return sum(float(count) * units[unit] for count, unit in found)
