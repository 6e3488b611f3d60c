"""Versions of a Delta table: what other engines read of a table, from values to bytes.

A version says which files an entry of the log added and removed. It is JSON lines in the format of Delta's
protocol, made without a library. A feature that only this package writes keeps other writers away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec import Raw, Struct

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.protocol.model.codec import Generation, Line, Text, decode
from airflow_s3commit.protocol.model.destination import Destination, hive_values
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics, Value, WrittenColumns
from airflow_s3commit.protocol.model.table import Entry

#: The table feature that this package alone writes. Delta's writers refuse tables with features that they do
#: not know; its readers need not know a feature of writers.
GUARD = "airflowS3commit"

#: The feature of timestamps without a time zone, which readers must know too.
_NTZ = "timestampNtz"

#: Bytes at the start of a version that have its first line, unless another program wrote it.
START_BYTES = 64 * 1024

#: The directory of Hive and Spark for a null.
_NULL = "__HIVE_DEFAULT_PARTITION__"

_TEXTS = {"string", "binary"}
_NUMBERS = {"byte", "short", "integer", "long", "float", "double"}
_TIMES = {"date", "timestamp", "timestamp_ntz"}
_PLAIN = {*_TEXTS, *_NUMBERS, *_TIMES, "boolean"}
_DECIMAL = re.compile(r"decimal\(\d+,-?\d+\)")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_NOT_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")

#: Spark's name of an unknown type: that of partition columns of files that no writer described.
_UNKNOWN = "void"


class DeltaColumns(Struct, frozen=True):
    """The columns of a table as Delta has them.

    Attributes:
        fields: The columns of the files, then the partition columns: Spark's JSON.
        partitions: Types of the partition columns, outermost first.
        plain: Types of the columns of the files that are not nested.
    """

    fields: list[dict[str, Any]]
    partitions: dict[str, str]
    plain: dict[str, str]

    @property
    def text(self) -> str:
        """The columns as text: the same for the same columns."""
        return msgspec.json.encode({"type": "struct", "fields": self.fields}).decode()


def columns_of(written: Mapping[str, str]) -> DeltaColumns:
    """Merge the columns of the files of a table, by who wrote files with each schema first, oldest first.

    Raises `InvalidOption` if Delta does not have a type or name, the files are no Parquet, or two writers
    disagree; `InvalidRecord` if a schema's text is damaged.
    """
    names: dict[str, tuple[str, str]] = {}
    files: dict[str, Any] = {}
    partitions: dict[str, str] | None = None
    for text, owner in written.items():
        one = WrittenColumns.of(text, owner)
        if one.format != "parquet":
            raise InvalidOption(f"{owner} writes {one.format} files, and Delta reads Parquet alone")
        partitions = dict.fromkeys(one.partitions, _UNKNOWN) if partitions is None else partitions
        if list(partitions) != one.partitions:
            raise InvalidOption(
                f"{owner} has the partition columns {one.partitions}, and files before it"
                f" {[*partitions]}: replace those of one kind"
            )
        _refuse_alike([field.name for field in one.spark.fields], owner)
        for field in one.spark.fields:
            known = partitions if field.name in partitions else files
            is_unknown = known is partitions and field.type == _UNKNOWN
            kind = _UNKNOWN if is_unknown else _delta_type(field.name, field.type, owner)
            spelled, first = names.setdefault(field.name.lower(), (field.name, owner))
            if spelled != field.name:
                raise InvalidOption(
                    f"column {field.name!r} of {owner} is {spelled!r} in {first}, which is the same name to"
                    " readers: rename one of them"
                )
            if known.get(field.name, _UNKNOWN) == _UNKNOWN:
                known[field.name] = kind
                names[field.name.lower()] = field.name, owner
            elif not is_unknown and known[field.name] != kind:
                raise InvalidOption(
                    f"column {field.name!r} of {owner} has the type {_shown(kind)}, and"
                    f" {_shown(known[field.name])} in the files of {first}, which are in the table: readers"
                    " of Delta want one type. Cast it, or replace these files in the same commit"
                )
    partitions = {name: "string" if kind == _UNKNOWN else kind for name, kind in (partitions or {}).items()}
    return DeltaColumns(
        fields=[_field(name, kind) for name, kind in {**files, **partitions}.items()],
        partitions=partitions,
        plain={name: kind for name, kind in files.items() if isinstance(kind, str)},
    )


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else f"of a {kind['type']}"


def _delta_type(name: str, kind: Any, owner: str) -> Any:
    """Return a type of Spark's JSON as Delta has it: everything in it may be null.

    Refuses types, and names of columns or fields, that Delta does not have.
    """
    if _NOT_IN_NAMES.search(name):
        raise InvalidOption(
            f"column {name!r} of {owner} cannot be published: Delta has no names with ' ,;{{}}()=', tabs and"
            " line feeds; rename it"
        )
    match kind:
        case str() if kind in _PLAIN or _DECIMAL.fullmatch(kind):
            return kind
        case {"type": "array", "elementType": element}:
            inner = _delta_type(name, element, owner)
            return {"type": "array", "elementType": inner, "containsNull": True}
        case {"type": "map", "keyType": key, "valueType": value}:
            of_key, of_value = _delta_type(name, key, owner), _delta_type(name, value, owner)
            return {"type": "map", "keyType": of_key, "valueType": of_value, "valueContainsNull": True}
        case {"type": "struct", "fields": [*fields]}:
            known = [(str(one.get("name")), one.get("type")) for one in fields if isinstance(one, dict)]
            _refuse_alike([inner for inner, _ in known], owner)
            return {
                "type": "struct",
                "fields": [_field(inner, _delta_type(inner, one, owner)) for inner, one in known],
            }
    shown = kind if isinstance(kind, str) else "unknown"
    raise InvalidOption(
        f"column {name!r} of {owner} has the type {shown}, which Delta does not have: cast it to another"
    )


def _refuse_alike(names: list[str], owner: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) != name or names.count(name) > 1:
            raise InvalidOption(
                f"columns {other!r} and {name!r} of {owner} have the same name to readers of Delta: rename"
                " one of them"
            )


#: What reads the values of a partition column, by its type; any other type is read as text.
_READERS: Mapping[str, Any] = {
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamp_ntz": datetime.fromisoformat,
    "boolean": ("true", "false").index,
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
}


def partition_values(partition: str, columns: DeltaColumns) -> dict[str, str | None]:
    """Return the values of the partition columns in a directory, as Delta has them.

    Raises `InvalidOption` if the directories are not those of the columns, or a value is not of its column's
    type.
    """
    try:
        found = hive_values(partition) if partition else {}
        if list(found) != list(columns.partitions):
            raise ValueError(f"the partition columns are {[*columns.partitions]}")
        for name, value in found.items():
            kind = columns.partitions[name]
            if value != _NULL:
                _READERS.get(kind, Decimal if kind.startswith("decimal") else str)(value)
    except (ValueError, ArithmeticError) as error:
        raise InvalidOption(
            f"files in {partition or 'the root'!r} have no place in a Delta table ({error}): write them below"
            " directories such as dt=2013-01-01, one for each partition column, with values of its type"
        ) from error
    return {name: None if value == _NULL else value for name, value in found.items()}


#: What the context of a job says that changes no row, as a compaction: streaming readers skip its version.
SAME_ROWS = {"s3commit_rows": "unchanged"}


def version_lines(
    home: Destination,
    entry: Entry,
    before: DeltaColumns | None = None,
    after: DeltaColumns | None = None,
    *,
    removed: Iterable[FileEntry] = (),
    added: Iterable[FileEntry] = (),
    with_bounds: bool = True,
) -> Iterator[bytes]:
    """Yield the lines of the version of an entry, from the columns before and after it.

    There are none before the first version, and none after an entry that changes no files. A version with
    very many files does without statistics of columns: ``with_bounds``.
    """
    moment = entry.since
    differs = before is None or not SAME_ROWS.items() <= entry.context.items()
    mode = entry.commit.mode if entry.commit is not None else entry.kind
    made = {
        "timestamp": moment,
        "operation": "WRITE" if entry.commit is not None else entry.kind.upper(),
        "operationParameters": {"mode": mode},
        "engineInfo": "airflow-s3commit",
        "s3commit": Origin(entry.number, entry.nonce, entry.job_id or ""),
    }
    yield _line({"commitInfo": made})
    if after is not None and (before is None or before.text != after.text):
        if before is None or (_has_ntz(after) and not _has_ntz(before)):
            yield _line({"protocol": _protocol(after)})
        metadata = {
            "id": str(uuid5(NAMESPACE_URL, home.uri)),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": after.text,
            "partitionColumns": [*after.partitions],
            "configuration": {},
            "createdTime": moment,
        }
        yield _line({"metaData": metadata})
    yield _line({"txn": {"appId": f"airflow-s3commit:{home.uri}", "version": entry.number}})
    if after is None:
        return
    # The columns before say how the removed files are partitioned.
    had = cache(lambda partition: partition_values(partition, before or after))
    has = cache(lambda partition: partition_values(partition, after))
    for file in removed:
        yield _line(
            {
                "remove": {
                    "path": _path(home, file),
                    "deletionTimestamp": moment,
                    "dataChange": differs,
                    "extendedFileMetadata": True,
                    "partitionValues": had(file.partition),
                    "size": file.size,
                }
            }
        )
    for file in added:
        yield _line(
            {
                "add": {
                    "path": _path(home, file),
                    "partitionValues": has(file.partition),
                    "size": file.size,
                    "modificationTime": moment,
                    "dataChange": differs,
                    **_statistics(file, after if with_bounds else None),
                }
            }
        )


def _line(action: Any) -> bytes:
    return msgspec.json.encode(action) + b"\n"


def _has_ntz(columns: DeltaColumns) -> bool:
    return '"timestamp_ntz"' in columns.text


def _protocol(columns: DeltaColumns) -> dict[str, Any]:
    if not _has_ntz(columns):
        return {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [GUARD]}
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [_NTZ],
        "writerFeatures": [_NTZ, GUARD],
    }


def _path(home: Destination, file: FileEntry) -> str:
    """Return a file's path as an action has it: its key below the table, escaped once more."""
    return quote(file.key.removeprefix(home.prefix), safe="/=")


def _statistics(file: FileEntry, columns: DeltaColumns | None) -> dict[str, str]:
    """Return the statistics of a file, as the text that an ``add`` action has; nothing if none are known."""
    found: dict[str, Any] = {} if file.rows is None else {"numRecords": file.rows}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    plain = columns.plain if columns is not None else {}
    for name, known in (file.statistics or {}).items():
        if (kind := plain.get(name)) is None:
            continue
        if known.nulls is not None:
            nulls[name] = known.nulls
        for bounds, value in ((least, known.least), (greatest, known.greatest)):
            if (bound := _bound(kind, known, value)) is not None:
                bounds[name] = bound
    if least or nulls:
        found |= {"minValues": least, "maxValues": greatest, "nullCount": nulls}
    return {"stats": msgspec.json.encode(found).decode()} if found else {}


def _bound(kind: str, known: ColumnStatistics, value: Value) -> Any:
    """Return a least or greatest value of a column as Delta has it; None if it has none for the type."""
    if isinstance(value, str):
        if known.decimal:
            # Exactly these digits: a binary number would be another bound.
            is_number = kind.startswith("decimal") and _NUMBER.fullmatch(value)
            return Raw(value.encode()) if is_number else None
        value = value.replace("+00:00", "Z")
        return value if kind == "string" or kind in _TIMES else None
    return value if kind in _NUMBERS and not isinstance(value, bool) else None


class Origin(Struct, frozen=True):
    """The entry that a version is of."""

    generation: Generation
    nonce: Text
    job: Line = ""


class _Info(Struct, frozen=True):
    s3commit: Origin


class VersionStart(Struct, frozen=True, rename="camel"):
    """The first line of a version."""

    commit_info: _Info


def origin_of(start: bytes, where: str) -> Origin:
    """Return the entry that a version is of, from the bytes at its start. Another program's is invalid."""
    return decode(VersionStart, start.partition(b"\n")[0], where).commit_info.s3commit
