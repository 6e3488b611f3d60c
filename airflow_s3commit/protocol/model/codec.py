"""Encode and decode records as JSON, validated both ways and within limits, and make digests.

Anyone who may write to the prefix may write a record. Its size is checked before the read, its values when it
is decoded; a record beyond a limit raises `InvalidRecord`. The limits keep a damaged or hostile record from
exhausting the memory or time of its reader. They are no quota: each admits the largest jobs.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from airflow_s3commit.exceptions import InvalidRecord, TooLarge

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

#: Characters of a name, id, ETag, key or URI. Keys have at most 1,024 bytes, three times as many when they
#: are escaped in a URI; upload ids of some stores have more than a thousand characters.
_LINE = 8 * KIB

#: Characters of what was written for people: reasons, and the values of a job's context.
PROSE: Final = 64 * KIB

#: Counts and sizes fit into 64 bits with a sign: a million files of 5 TiB are 5.5 * 10^18 bytes.
_LONG = 2**63 - 1

#: The last millisecond before the year 9999: every time zone's calendar can show it.
MILLISECONDS: Final = 253_370_764_799_999

#: Columns with statistics. Our own writers keep those of the first 32.
MAX_COLUMNS: Final = 4_096

Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=_LINE)]
Line: TypeAlias = Annotated[str, Meta(max_length=_LINE)]
Prose: TypeAlias = Annotated[str, Meta(max_length=PROSE)]
#: A schema as text, once as Spark's JSON and once in Arrow's encoding: about 500 columns.
SCHEMA: Final = 128 * KIB
Schema: TypeAlias = Annotated[str, Meta(max_length=SCHEMA)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=_LONG)]
Integer: TypeAlias = Annotated[int, Meta(ge=-_LONG - 1, le=_LONG)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=MILLISECONDS)]
#: Schemas of a job's files to record, each as text; there is almost always one. With more, none is recorded.
MAX_SCHEMAS: Final = 8
Schemas: TypeAlias = Annotated[list[Schema], Meta(max_length=MAX_SCHEMAS)]
Generation: TypeAlias = Annotated[int, Meta(ge=0, le=_LONG)]

#: A line of a manifest's list of files: 5 KiB with statistics of 32 columns.
LINE_BYTES: Final = 16 * MIB

#: Maximum bytes of each kind of record, by the name of its type.
#:
#: The figures follow from what an item takes as JSON: a file in a pendingset 1 KiB without statistics and
#: 5 KiB with those of 32 columns; a part of an upload 40 bytes, 200 with a checksum beside its ETag; a
#: partition 120 bytes, 1.1 KiB if its name is as long as a key can be; a partition's statistics of 32
#: columns 4 KiB, kept for at most 1,000 partitions.
LARGEST: Final[Mapping[str, int]] = {
    # Ids, options, and the orchestrator's context.
    "JobRecord": MIB,
    # A hundred file names, counters, and the context once more; Hadoop's have some 10 KiB.
    "SuccessData": 4 * MIB,
    "RegisteredDestination": 64 * KIB,
    # 10,000 parts with checksums are 2 MiB.
    "PendingUpload": 16 * MIB,
    # A million files without statistics, or 200,000 with all of them.
    "PendingSet": GIB,
    # 100,000 partitions with the longest names are 110 MiB; a million tasks 280 MiB.
    "StageSealRecord": 512 * MIB,
    # The tasks of one write, without partitions.
    "DriverSealRecord": 512 * MIB,
    # A stage's seal without the tasks.
    "SealRecord": 128 * MIB,
    # A commit's partitions, and a million objects that it takes.
    "Entry": 256 * MIB,
    # Lines of lists. The first one of a checkpoint has all schemas.
    "CheckpointStart": 4 * MIB,
    "SourceLine": 64 * KIB,
    # A partition of some fifty thousand commits.
    "PartitionLine": 4 * MIB,
    "UnownedLine": 16 * KIB,
    "FileEntry": LINE_BYTES,
    "WrittenColumns": SCHEMA,
    # What is handed from one process to another.
    "CommittedTask": 64 * KIB,
    "JobReference": 64 * KIB,
    "SealReference": 128 * MIB,
    "AbortReport": 64 * KIB,
}

#: Bytes of a whole list: a million files with statistics of 32 columns are 5 GiB. On disk, not in memory.
LIST_BYTES: Final = 64 * GIB

#: A compressed checkpoint of the log: a million commits are 100 MiB.
CHECKPOINT_BYTES: Final = 256 * MIB

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
    """Return a record as JSON that `decode` accepts; `InvalidRecord` if it would not."""
    name = type(record).__name__
    try:
        body = msgspec.json.encode(record)
        _decoder(type(record)).decode(body)
    except _UNREADABLE as error:
        raise _invalid(f"{name} cannot be saved", error) from error
    if len(body) > largest(type(record)):
        raise TooLarge.of(f"a {name} that is to be saved", len(body), largest(type(record)))
    return body


def decode(kind: type[R], body: bytes, where: str) -> R:
    """Decode a record; ``where`` is its URI, for the message.

    Raises `InvalidRecord` if it is empty, truncated, of another type or version, or beyond a limit.
    """
    if not body:
        raise InvalidRecord(f"{where} is empty, and no {kind.__name__}")
    try:
        return _decoder(kind).decode(body)
    except _UNREADABLE as error:
        raise _invalid(f"{where} is not a valid {kind.__name__}", error) from error


def decode_lines(kind: type[R], lines: Iterable[bytes], where: str) -> Iterator[R]:
    """Decode records in JSON lines, lazily. Raises as `decode`; ``where`` is their URI, for the message."""
    decoder = _decoder(kind)
    for number, line in enumerate(lines, start=1):
        try:
            record = decoder.decode(line)
        except _UNREADABLE as error:
            raise _invalid(f"line {number} of {where} is not a valid {kind.__name__}", error) from error
        yield record


def from_plain(kind: type[R], mapping: Mapping[str, Any], name: str) -> R:
    """Read a record from plain values, as XCom and Spark pass them; ignores other entries.

    ``name``, such as ``a job reference``, is for the message. Raises `InvalidRecord` if an entry is missing,
    of another type, or beyond a limit.
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

    A copy of a dataset contains copies of its records. They name the original place, so they are ignored.
    """

    job_id: Text
    destination: Text
    staging: Text


def bytes_digest(content: bytes) -> bytes:
    """Return the short digest of some bytes."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def text_digest(text: str) -> bytes:
    """Return the short digest of a text, such as a key."""
    return bytes_digest(text.encode())


def upload_digest(key: str, upload_id: str) -> bytes:
    """Return the short digest of an upload."""
    return text_digest(f"{key}\0{upload_id}")


def sha256(content: bytes) -> str:
    """Return the SHA-256 of some bytes in hexadecimal, as records state it."""
    return hashlib.sha256(content).hexdigest()
