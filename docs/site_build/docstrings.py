"""What a docstring says: its text, and its words on each attribute."""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(r"^(Attributes|Args|Raises|Returns|Yields):$")
_ENTRY = re.compile(r"^ {4}(\w+): (.*)$")


def first_line(owner: type) -> str:
    """Return the first line of a class's docstring."""
    return inspect.cleandoc(owner.__doc__ or "").partition("\n")[0]


def prose(owner: type) -> str:
    """Return a class's docstring up to its first section."""
    lines = []
    for line in inspect.cleandoc(owner.__doc__ or "").splitlines():
        if _SECTION.match(line):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def attributes(owner: type) -> dict[str, str]:
    """Return what a class's docstring says under ``Attributes``, and its bases' before it."""
    found: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        found |= _own_attributes(base)
    return found


def _own_attributes(owner: type) -> dict[str, str]:
    found: dict[str, str] = {}
    section, name = "", ""
    for line in inspect.cleandoc(owner.__dict__.get("__doc__") or "").splitlines():
        if heading := _SECTION.match(line):
            section = heading[1]
        elif section == "Attributes" and (entry := _ENTRY.match(line)):
            name = entry[1]
            found[name] = entry[2]
        elif section == "Attributes" and name and line.strip():
            found[name] += " " + line.strip()
    return found
