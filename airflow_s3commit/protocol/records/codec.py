"""Reading and writing records as JSON, validated both ways."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from airflow_s3commit.exceptions import InvalidRecord, TooLarge
from airflow_s3commit.protocol.limits import LARGEST, Line, Text

__all__ = ["JobOwned", "Versioned", "decode", "decode_lines", "encode", "from_plain", "largest"]

#: What msgspec and Python raise for values that are not what a record has, or are nested too deep.
_UNREADABLE = (msgspec.MsgspecError, TypeError, ValueError, RecursionError, ArithmeticError)

#: Characters of an explanation, or of a value that is shown in one.
_SHOWN = 500

R = TypeVar("R", bound=Struct)

#: Decoders by type, and the lock that each is made under. msgspec notes what it knows of a struct while it
#: makes the first decoder; a thread that decodes one at that moment reads half a note, and the process dies.
_decoders: dict[type[Struct], msgspec.json.Decoder[Any]] = {}
_making = threading.Lock()


def _decoder(kind: type[R]) -> msgspec.json.Decoder[R]:
    """Return the decoder of a type, made once, and by one thread at a time."""
    if kind not in _decoders:
        with _making:
            _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return _decoders[kind]


def largest(kind: type[Struct]) -> int:
    """Return how many bytes a record of a type has at most: nothing longer is read, or written."""
    return LARGEST[kind.__name__]


def encode(record: Struct) -> bytes:
    """Return a record as JSON, after checking that it would be read back.

    Raises:
        InvalidRecord: It would not.

    """
    name = type(record).__name__
    try:
        body = msgspec.json.encode(record)
        _decoder(type(record)).decode(body)
    except _UNREADABLE as error:
        raise _invalid(f"a {name} cannot be saved", error) from error
    if len(body) > largest(type(record)):
        raise TooLarge.of(f"a {name} that is to be saved", len(body), largest(type(record)))
    return body


def decode(kind: type[R], body: bytes, where: str) -> R:
    """Read a record.

    Args:
        kind: Its type.
        body: Its JSON.
        where: The URI it came from, for the message.

    Raises:
        InvalidRecord: It is empty, cut short, not of this type and version, or beyond a limit.

    """
    if not body:
        raise InvalidRecord(f"{where} is empty; a {kind.__name__} was expected")
    try:
        return _decoder(kind).decode(body)
    except _UNREADABLE as error:
        raise _invalid(f"{where} is not a valid {kind.__name__}", error) from error


def decode_lines(kind: type[R], lines: Iterable[bytes], where: str) -> Iterator[R]:
    """Read records that stand one on a line, as they are asked for.

    Args:
        kind: Their type.
        lines: The lines.
        where: The URI they came from, for the message.

    Raises:
        InvalidRecord: A line is not of this type, or beyond a limit.

    """
    decoder = _decoder(kind)
    for number, line in enumerate(lines, start=1):
        try:
            record = decoder.decode(line)
        except _UNREADABLE as error:
            raise _invalid(f"line {number} of {where} is not a valid {kind.__name__}", error) from error
        yield record


def from_plain(kind: type[R], mapping: Mapping[str, Any], name: str) -> R:
    """Read a record from plain values, as XCom and Spark hand them on; other entries are ignored.

    Args:
        kind: Its type.
        mapping: Its fields.
        name: What it is, with its article, for the message.

    Raises:
        InvalidRecord: An entry is missing, of another type, or beyond a limit.

    """
    try:
        _decoder(kind)
        record = msgspec.convert(dict(mapping), type=kind)
        # Python's text may hold what JSON, and a key, cannot.
        msgspec.json.encode(record)
    except _UNREADABLE as error:
        raise _invalid(f"{_shown(mapping)} is not {name}", error) from error
    return record


class Versioned(Struct, frozen=True, kw_only=True):
    """A record that says which version of its format it has."""

    version: int = 1

    def __post_init__(self) -> None:
        """Refuse another version."""
        if self.version != 1:
            raise ValueError(f"version {self.version} of {type(self).__name__} is not known, only 1 is")


def _invalid(failure: str, error: Exception) -> InvalidRecord:
    # An explanation may hold the value, whose length nothing limits.
    return InvalidRecord(f"{failure}: {str(error)[:_SHOWN]}")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except _UNREADABLE:
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class JobOwned(Versioned, frozen=True, kw_only=True):
    """A record of one job, which says for which place it was written.

    A dataset that is copied takes its records along. There they name the original, by which a copy is known:
    it is no record of the place where it lies, and nobody acts on it.

    Attributes:
        version: Always 1.
        job_id: The job.
        destination: URI of the job's destination; None in records of older versions.
        staging: URI of the job's staging; None likewise.

    """

    job_id: Text
    destination: Line | None = None
    staging: Line | None = None
