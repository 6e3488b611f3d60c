"""Reading the texts of options: sizes, flags, columns, characters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from airflow_s3commit.exceptions import InvalidOption

__all__ = [
    "InvalidOption", "at_least", "one_character", "one_of", "parse_bytes", "parse_columns", "parse_flag",
    "parse_limit", "utf8_only",
]  # fmt: skip

_SIZE = re.compile(r"(\d+)\s*([kmg]?)(i?b)?", re.IGNORECASE)
_KIB = 1024
_UNITS = {"": 1, "k": _KIB, "m": _KIB**2, "g": _KIB**3}
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def parse_columns(value: str) -> tuple[str, ...]:
    """Read column names: separated by commas, or a JSON list for names that have commas.

    Raises:
        ValueError: A name is empty or given twice, or the JSON is no list of strings.

    """
    if value.lstrip().startswith("["):
        names = json.loads(value)
        if not all(isinstance(name, str) for name in names):
            raise ValueError("not a JSON list of strings")
    else:
        names = [name.strip() for name in value.split(",")] if value.strip() else []
    if "" in names:
        raise ValueError("a column name is empty")
    if len({name.lower() for name in names}) < len(names):
        raise ValueError("a column is named twice")
    return tuple(names)


def parse_bytes(value: str) -> int:
    """Read a positive number of bytes such as ``33554432``, ``32m`` or ``32MiB``.

    Raises:
        ValueError: It is no such number.

    """
    matched = _SIZE.fullmatch(value.strip())
    if matched is None or int(matched[1]) == 0:
        raise ValueError("not a size such as 33554432, 32m or 32MiB")
    return int(matched[1]) * _UNITS[matched[2].lower()]


def parse_flag(value: str) -> bool:
    """Read ``true`` or ``false``.

    Raises:
        ValueError: It is neither.

    """
    try:
        return _FLAGS[value.strip().lower()]
    except KeyError:
        raise ValueError("neither true nor false") from None


def parse_limit(value: str) -> int:
    """Read a number of which zero and less mean "no limit", as they do in Spark, and are returned as 0."""
    return max(int(value), 0)


def at_least(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers that are not smaller than one."""

    def read(value: str) -> int:
        number = int(value)
        if number < least:
            raise ValueError(f"less than {least}")
        return number

    return read


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a reader of words, whatever their case."""

    def read(value: str) -> str:
        if value.lower() not in choices:
            raise ValueError(f"not one of {', '.join(choices)}")
        return value.lower()

    return read


def one_character(value: str) -> str:
    """Read one ASCII character.

    Raises:
        ValueError: It is none, or more than one.

    """
    if len(value) != 1 or not value.isascii():
        raise ValueError("not one ASCII character")
    return value


def utf8_only(value: str) -> str:
    """Accept the one encoding there is.

    Raises:
        ValueError: Another one is named.

    """
    if value.lower().replace("_", "-") not in ("utf-8", "utf8"):
        raise ValueError("files are written in UTF-8 only")
    return "UTF-8"
