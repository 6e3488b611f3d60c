"""Reading and writing records as JSON, validated both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from airflow_s3commit.exceptions import InvalidRecord

__all__ = ["Count", "Text", "Versioned", "decode", "encode", "from_plain"]

#: Text that is not empty.
Text = Annotated[str, Meta(min_length=1)]

#: A number of things.
Count = Annotated[int, Meta(ge=0)]

R = TypeVar("R", bound=Struct)


def encode(record: Struct) -> bytes:
    """Return a record as JSON, after checking that it would be read back.

    Raises:
        InvalidRecord: It would not.

    """
    try:
        body = msgspec.json.encode(record)
        msgspec.json.decode(body, type=type(record))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise InvalidRecord(f"a {type(record).__name__} cannot be saved: {error}") from error
    return body


def decode(kind: type[R], body: bytes, where: str) -> R:
    """Read a record.

    Args:
        kind: Its type.
        body: Its JSON.
        where: The URI it came from, for the message.

    Raises:
        InvalidRecord: It is empty, cut short, or not of this type and version.

    """
    if not body:
        raise InvalidRecord(f"{where} is empty; a {kind.__name__} was expected")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InvalidRecord(f"{where} is not a valid {kind.__name__}: {error}") from error


def from_plain(kind: type[R], mapping: Mapping[str, Any], name: str) -> R:
    """Read a record from plain values, as XCom and Spark hand them on; other entries are ignored.

    Args:
        kind: Its type.
        mapping: Its fields.
        name: What it is, with its article, for the message.

    Raises:
        InvalidRecord: An entry is missing or of another type.

    """
    try:
        return msgspec.convert(dict(mapping), type=kind)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise InvalidRecord(f"{mapping!r} is not {name}: {error}") from error


class Versioned(Struct, frozen=True, kw_only=True):
    """A record that says which version of its format it has."""

    version: int = 1

    def __post_init__(self) -> None:
        """Refuse another version."""
        if self.version != 1:
            raise ValueError(f"version {self.version} of {type(self).__name__} is not known, only 1 is")
