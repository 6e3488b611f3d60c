"""Encode and decode records as JSON, validated both ways, and make digests of contents and texts."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import Struct

from airflow_s3commit.exceptions import InvalidRecord, TooLarge
from airflow_s3commit.protocol.model.limits import LARGEST, Line, Text

#: Errors of msgspec and Python for values that are invalid or nested too deep.
_UNREADABLE = (msgspec.MsgspecError, TypeError, ValueError, RecursionError, ArithmeticError)

#: Maximum characters of an explanation, or of a value in one.
_SHOWN = 500

R = TypeVar("R", bound=Struct)

#: Decoders by type, and the lock to create them under: msgspec fills a struct's type information while it
#: creates the first decoder, and a thread that decodes one at that moment crashes the process.
_decoders: dict[type[Struct], msgspec.json.Decoder[Any]] = {}
_making = threading.Lock()

#: Bytes of a short digest, enough to be unique within a job.
DIGEST_BYTES = 16


def _decoder(kind: type[R]) -> msgspec.json.Decoder[R]:
    """Return the cached decoder of a type."""
    if kind not in _decoders:
        with _making:
            _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return _decoders[kind]


def largest(kind: type[Struct]) -> int:
    """Return the maximum bytes of a record of a type, for reads and writes."""
    return LARGEST[kind.__name__]


def encode(record: Struct) -> bytes:
    """Return a record as JSON that `decode` accepts.

    Raises:
        InvalidRecord: `decode` would not accept it.

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
        where: Its URI, for the message.

    Raises:
        InvalidRecord: It is empty, truncated, of another type or version, or beyond a limit.

    """
    if not body:
        raise InvalidRecord(f"{where} is empty; a {kind.__name__} was expected")
    try:
        return _decoder(kind).decode(body)
    except _UNREADABLE as error:
        raise _invalid(f"{where} is not a valid {kind.__name__}", error) from error


def decode_lines(kind: type[R], lines: Iterable[bytes], where: str) -> Iterator[R]:
    """Read records in JSON lines, lazily.

    Args:
        kind: Their type.
        lines: The lines.
        where: Their URI, for the message.

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
    """Read a record from plain values, as XCom and Spark pass them; ignores other entries.

    Args:
        kind: Its type.
        mapping: Its fields.
        name: Name of the record with its article, for the message.

    Raises:
        InvalidRecord: An entry is missing, of another type, or beyond a limit.

    """
    try:
        _decoder(kind)
        record = msgspec.convert(dict(mapping), type=kind)
        # Python's text may contain characters that JSON and keys cannot.
        msgspec.json.encode(record)
    except _UNREADABLE as error:
        raise _invalid(f"{_shown(mapping)} is not {name}", error) from error
    return record


class Plain:
    """A struct that can be passed as JSON values, to XCom, Spark or a command's output.

    Attributes:
        derived: Names of the properties that `to_dict` adds to the fields.

    """

    __slots__ = ()
    __struct_fields__: ClassVar[tuple[str, ...]]

    derived: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the derived properties as JSON values."""
        names = (*self.__struct_fields__, *self.derived)
        return {name: _plain(getattr(self, name)) for name in names}


def _plain(value: object) -> Any:
    """Return a value as JSON values: by its own ``to_dict`` if it has one."""
    to_dict = getattr(value, "to_dict", None)
    return msgspec.to_builtins(value) if to_dict is None else to_dict()


class Versioned(Struct, frozen=True, kw_only=True):
    """A record with the version of its format."""

    version: int = 1

    def __post_init__(self) -> None:
        """Refuse another version."""
        if self.version != 1:
            raise ValueError(f"version {self.version} of {type(self).__name__} is not known, only 1 is")


def _invalid(failure: str, error: Exception) -> InvalidRecord:
    # An explanation may contain the value, whose length is unlimited.
    return InvalidRecord(f"{failure}: {str(error)[:_SHOWN]}")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except _UNREADABLE:
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class JobOwned(Versioned, frozen=True, kw_only=True):
    """A record of one job, with the place it was written for.

    A copy of a dataset contains copies of its records. They name the original place, which shows them to be
    copies, to be ignored.

    Attributes:
        version: Always 1.
        job_id: The job.
        destination: URI of the job's destination; None in records of older versions.
        staging: URI of the job's staging; None likewise.

    """

    job_id: Text
    destination: Line | None = None
    staging: Line | None = None


def bytes_digest(content: bytes) -> bytes:
    """Return the short digest of a content."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def text_digest(text: str) -> bytes:
    """Return the short digest of a text, such as a key."""
    return bytes_digest(text.encode())


def upload_digest(key: str, upload_id: str) -> bytes:
    """Return the short digest of an upload."""
    return text_digest(f"{key}\0{upload_id}")


def sha256(content: bytes) -> str:
    """Return the SHA-256 of a content in hexadecimal, as records name it."""
    return hashlib.sha256(content).hexdigest()
