"""Options that are checked when they are made, so that a wrong one never reaches a record or a store."""

from __future__ import annotations

from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from airflow_s3commit.exceptions import InvalidOption

__all__ = ["Checked"]

#: Characters of a wrong value that an error repeats.
_LONGEST_VALUE = 80

_NAMES = {str: "text", bool: "True or False", type(None): "None"}


class Checked(Struct, frozen=True, kw_only=True):
    """A struct whose fields have the types they are declared with, however it was made.

    Raises:
        InvalidOption: A field has another type, or `check` refuses it.

    """

    def __post_init__(self) -> None:
        """Check each field's type, then what the fields say together."""
        for name, kind in _kinds(type(self)).items():
            value = getattr(self, name)
            if not _is_of(value, kind):
                shown = repr(value)[:_LONGEST_VALUE]
                raise InvalidOption(f"{name}={shown} is not {' or '.join(_choices(kind))}")
        self.check()

    def check(self) -> None:
        """Refuse values that are of the right types and still wrong.

        Raises:
            InvalidOption: There is one.

        """


def _is_of(value: object, kind: Any) -> bool:
    try:
        # Of a dict it would make a struct.
        return isinstance(value, type(msgspec.convert(value, kind)))
    except msgspec.ValidationError:
        return False


@lru_cache
def _kinds(kind: type[Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _choices(kind: Any) -> list[str]:
    """Return what a field of this type may be, in words."""
    if get_origin(kind) in (Union, UnionType):
        return [choice for one in get_args(kind) for choice in _choices(one)]
    if get_origin(kind) is Annotated:
        return _choices(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return [repr(value) for value in get_args(kind)]
    if get_origin(kind) is dict:
        return ["a dict of text by text"]
    return [_NAMES.get(kind) or f"{kind.__name__}(…)"]
