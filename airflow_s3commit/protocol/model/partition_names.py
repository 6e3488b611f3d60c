"""Names of partitions, escaped or not: one form to compare them in, and a check of what users give."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")


def unescape(text: str) -> str:
    """Undo Spark's escaping of a column name or value in a path: ``%3A`` becomes ``:``."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def partition_form(name: str) -> str:
    """Return the form in which names of partitions are compared, whether a name is escaped or not.

    ``dt=2013-01-01T03:00:00`` and ``dt=2013-01-01T03%3A00%3A00/`` have the same form. A ``%`` with two
    hexadecimal digits in a name is always an escape.

    Args:
        name: A partition's path, as a user or a manifest names it; ``""`` for the root.
    """
    parts = (unescape(part) for part in name.strip("/").split("/"))
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)


def check_partition_names(names: Iterable[Any], what: str) -> list[str]:
    """Return names of partitions as a user gives them, without slashes around them.

    Args:
        names: The names, such as ``dt=2013-01-01``.
        what: Where they come from, for the message.

    Raises:
        ValueError: A name is not text, or it or a column's value is empty or ``None``, as templates and shell
            variables without a value leave it.
    """
    checked = []
    for name in names:
        if not isinstance(name, str):
            raise ValueError(  # noqa: TRY004 - as any other name that cannot be used
                f"{what} has {name!r}, which is not text: write names such as dt=2013-01-01; native rendering"
                " turns text such as 20130101 into a number"
            )
        values = [part.rpartition("=")[2].strip() for part in name.strip("/").split("/")]
        if not all(value and value != "None" for value in values):
            raise ValueError(
                f"{what} has {name!r}, which names no partition: a template or variable in it has no value"
            )
        checked.append(name.strip("/"))
    return checked


def check_directories(path: str, what: str) -> None:
    """Refuse a file's path with a directory such as ``dt=`` or ``dt=None``, whose value got lost.

    Args:
        path: A path below the destination, as a user gives it.
        what: Where it comes from, for the message.

    Raises:
        ValueError: The value of a column is empty or ``None``, as shell variables without a value leave it.
    """
    check_partition_names([part for part in path.split("/")[:-1] if "=" in part], what)


def hive_values(path: str) -> dict[str, str]:
    """Return the columns and unescaped values of a Hive path.

    Args:
        path: The path, such as ``dt=2013-01-01/region=eu``.

    Raises:
        ValueError: A part of the path is not ``column=value``.
    """
    values: dict[str, str] = {}
    for part in path.strip("/").split("/"):
        column, equals, value = part.partition("=")
        if not equals or not column:
            raise ValueError(f"{path!r} is not a Hive path: {part!r} is not column=value")
        values[unescape(column)] = unescape(value)
    return values
