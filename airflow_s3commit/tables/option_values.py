"""Options of reads and writes: how one is declared, read from its text, and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from airflow_s3commit.exceptions import InvalidOption, Refused
from airflow_s3commit.store.credentials import without_userinfo

_SIZE = re.compile(r"(\d+)\s*([kmg]?)(i?b)?", re.IGNORECASE)

_KIB = 1024

_UNITS = {"": 1, "k": _KIB, "m": _KIB**2, "g": _KIB**3}

#: What a text may say for true and false, in lower case.
FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


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
        return FLAGS[value.strip().lower()]
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


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as users know it.

    Attributes:
        name: Its name; case does not matter.
        read: Reads its text; raises ValueError with what is wrong with it.
        meaning: What it does, in a sentence.
        unit: Unit of its value.
        formats: The formats that have it; empty for all.
        default: The default as the documentation shows it; derived from the field where it is empty.
        field: The dataclass field that it sets; filled in by `options_of`.

    """

    name: str
    read: Callable[[str], object]
    meaning: str
    unit: str = ""
    formats: tuple[str, ...] = ()
    default: str = ""
    field: str = ""


def set_by(*options: Option, default: Any) -> Any:
    """Declare a dataclass field that options set.

    Args:
        options: The options; several are other names of one value.
        default: The field's value if none of them is given.

    """
    return field(default=default, metadata={"options": options})


def options_of(declared: type) -> tuple[Option, ...]:
    """Return the options that a dataclass declares with `set_by`, in the order of its fields."""
    return tuple(
        replace(option, field=known.name, default=option.default or _shown(known.default, option.unit))
        for known in fields(declared)
        for option in known.metadata.get("options", ())
    )


def _shown(default: Any, unit: str) -> str:
    """Return a default as the text that a user would write for it, or as a word where there is none."""
    if isinstance(default, bool):
        return str(default).lower()
    if unit == "bytes":
        return f"{default // _UNITS['m']}m" if default else "no limit"
    if isinstance(default, DatetimePattern):
        return default.text
    if default in (None, ()):
        return "none"
    return str(default) or "nothing"


def read_fields(
    options: Mapping[str, str], known: Sequence[Option], purpose: str = ""
) -> tuple[dict[str, Any], tuple[Option, ...]]:
    """Read the texts of options into fields of any format; return which options were given too.

    Args:
        options: Texts by option name, in any case.
        known: The options there are, in the order in which an error names them.
        purpose: What the options are for, as an error says it.

    Raises:
        InvalidOption: One is unknown, malformed or given twice.

    """
    by_name = {option.name.lower(): option for option in known}
    found: dict[str, Any] = {}
    given: dict[str, Option] = {}
    for name, value in options.items():
        option = by_name.get(name.lower())
        if option is None:
            names = ", ".join(option.name for option in known)
            raise InvalidOption(f"s3commit has no option {name}{purpose}; its options are {names}")
        if option.field in found:
            raise InvalidOption(f"option {name} is given twice, as {given[option.field].name} too")
        given[option.field] = option
        try:
            found[option.field] = option.read(value)
        except (ValueError, Refused) as error:
            shown = without_userinfo(value)
            raise InvalidOption(f"option {option.name}={shown!r} of s3commit: {error}") from error
    return found, tuple(given.values())


def check_formats(given: Iterable[Option], chosen: str) -> None:
    """Refuse options that files of a format do not have.

    Raises:
        InvalidOption: There is one.

    """
    for option in given:
        if option.formats and chosen not in option.formats:
            raise InvalidOption(
                f"option {option.name} is one of {' and '.join(option.formats)}; the files' format is"
                f" {chosen}"
            )
