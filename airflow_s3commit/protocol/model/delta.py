"""Versions of a Delta table: what other engines read of a table, from values to bytes.

A version says which files an entry of the log added and removed. It is JSON lines in the format of Delta's
protocol, made without a library. A table feature that only this package knows keeps other writers away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec import Raw, Struct

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.protocol.model.destination import NULL_DIRECTORY, Destination, hive_values
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics, Value, WrittenColumns
from airflow_s3commit.protocol.model.table import Entry, Pieces, Table

#: The table feature that this package alone writes. Delta's writers refuse tables with features that they do
#: not know; its readers need not know a feature of writers.
GUARD = "airflowS3commit"

#: The feature of timestamps without a time zone, which readers must know too; and their type in JSON.
_NTZ, _NTZ_TYPE = "timestampNtz", '"timestamp_ntz"'

_NUMBERS = {"byte", "short", "integer", "long", "float", "double"}
_TIMES = {"date", "timestamp", "timestamp_ntz"}
_PLAIN = {"string", "boolean", "binary", *_NUMBERS, *_TIMES}
_DECIMAL = re.compile(r"decimal\(([1-9]|[12]\d|3[0-8]),(\d+)\)")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_NOT_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")

#: What to do about files whose columns are unknown.
UNKNOWN_COLUMNS = (
    "write Parquet files of at most 1,000 columns with write_table, write_pending or df.write, and replace"
    " those of others"
)

#: Spark's name of an unknown type: that of partition columns of files that no writer described.
_UNKNOWN = "void"


class DeltaColumns(Struct, frozen=True):
    """The columns of a table as Delta has them.

    Attributes:
        fields: The columns of the files, then the partition columns: Spark's JSON.
        partitions: Types of the partition columns, outermost first.
    """

    fields: list[dict[str, Any]]
    partitions: dict[str, str]

    @property
    def text(self) -> str:
        """The columns as text: the same for the same columns."""
        return msgspec.json.encode({"type": "struct", "fields": self.fields}).decode()


def columns_of(written: Mapping[str, str]) -> DeltaColumns:
    """Merge the columns of a table's files, from each schema's text and its first writer, oldest first.

    Raises `InvalidOption` if Delta does not have a type or name, the files are not Parquet, or two writers
    disagree; `InvalidRecord` if a schema's text is damaged.
    """
    found: dict[str, tuple[str, Any, str]] = {}
    partitions: list[str] | None = None
    for text, owner in written.items():
        one = WrittenColumns.of(text, owner)
        if one.format != "parquet":
            raise InvalidOption(f"{owner} writes {one.format} files, and Delta reads Parquet alone")
        if partitions not in (None, one.partitions):
            raise InvalidOption(
                f"{owner} has the partition columns {one.partitions}, and files before it {partitions}:"
                " replace those of one kind"
            )
        partitions = one.partitions
        known = {field.name for field in one.spark.fields if field.type == _UNKNOWN} & {*partitions}
        told = ((field.name, field.type) for field in one.spark.fields if field.name not in known)
        for field in _fields(told, owner):
            name, kind, first = found.setdefault(field["name"].lower(), (field["name"], field["type"], owner))
            if name != field["name"]:
                raise InvalidOption(
                    f"column {field['name']!r} of {owner} is {name!r} in {first}, which is the same name to"
                    " readers: rename one of them"
                )
            if kind != field["type"]:
                raise InvalidOption(
                    f"column {name!r} of {owner} has the type {_shown(field['type'])}, and {_shown(kind)} in"
                    f" the files of {first}, which are in the table: readers of Delta want one type. Cast it,"
                    " or replace these files in the same commit"
                )
    kinds = {name: kind for name, kind, _ in found.values()}
    last = {name: kinds.pop(name, "string") for name in partitions or ()}
    return DeltaColumns(_fields({**kinds, **last}.items(), "the table"), last)


def _fields(columns: Iterable[tuple[str, Any]], owner: str) -> list[dict[str, Any]]:
    """Return columns, or the fields of a struct, as Delta has them; refuses two with the same name."""
    made: dict[str, dict[str, Any]] = {}
    for name, kind in columns:
        if other := made.get(name.lower()):
            raise InvalidOption(
                f"columns {other['name']!r} and {name!r} of {owner} have the same name to readers of Delta:"
                " rename one of them"
            )
        stored = _delta_type(name, kind, owner)
        made[name.lower()] = {"name": name, "type": stored, "nullable": True, "metadata": {}}
    return list(made.values())


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else f"of a {kind.get('type')}"


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
        case str() if kind in _PLAIN or ((one := _DECIMAL.fullmatch(kind)) and int(one[2]) <= int(one[1])):
            return kind
        case {"type": "array", "elementType": element}:
            inner = _delta_type(name, element, owner)
            return {"type": "array", "elementType": inner, "containsNull": True}
        case {"type": "map", "keyType": key, "valueType": value}:
            of_key, of_value = _delta_type(name, key, owner), _delta_type(name, value, owner)
            return {"type": "map", "keyType": of_key, "valueType": of_value, "valueContainsNull": True}
        case {"type": "struct", "fields": [*fields]}:
            known = ((str(one.get("name")), one.get("type")) for one in fields if isinstance(one, dict))
            return {"type": "struct", "fields": _fields(known, owner)}
    raise InvalidOption(
        f"column {name!r} of {owner} has the type {_shown(kind)}, which Delta does not have: cast it"
    )


_DAY, _TIME = "[0-9]{4}-[0-9]{2}-[0-9]{2}", r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"

#: Pattern and check for the values of a partition column, by its type. A value that readers of Delta cannot
#: parse makes the whole table unreadable, and Python parses more than they do.
_VALUES: dict[str, tuple[str, Callable[[str], object]]] = {
    "date": (_DAY, date.fromisoformat),
    "timestamp": (f"{_DAY}( {_TIME}|T{_TIME}Z)", datetime.fromisoformat),
    "timestamp_ntz": (f"{_DAY} {_TIME}", datetime.fromisoformat),
    "boolean": ("true|false", str),
    "byte": ("-?[0-9]+", lambda value: int(value).to_bytes(1, signed=True)),
    "short": ("-?[0-9]+", lambda value: int(value).to_bytes(2, signed=True)),
    "integer": ("-?[0-9]+", lambda value: int(value).to_bytes(4, signed=True)),
    "long": ("-?[0-9]+", lambda value: int(value).to_bytes(8, signed=True)),
    **dict.fromkeys(("float", "double"), (r"-?([0-9.]+([eE][+-]?[0-9]+)?|Infinity)|NaN", float)),
}


def _check_value(kind: str, value: str) -> None:
    if found := _DECIMAL.fullmatch(kind):
        digits, scale = map(int, found.groups())
        pattern = f"-?[0-9]{{1,{max(digits - scale, 1)}}}" + (rf"\.[0-9]{{{scale}}}" if scale > 0 else "")
        check: Callable[[str], object] = Decimal
    else:
        pattern, check = _VALUES.get(kind, (".*", str))
    if not re.fullmatch(pattern, value, re.DOTALL):
        raise ValueError(f"{value[:100]!r} is no {kind}")
    check(value)


def partition_values(partition: str, columns: DeltaColumns) -> dict[str, str | None]:
    """Return the values of the partition columns in a directory, as Delta has them.

    Raises `InvalidOption` if the directories are not the columns', or a value is not of its column's type.
    """
    try:
        found = hive_values(partition) if partition else {}
        if list(found) != list(columns.partitions):
            raise ValueError(f"the partition columns are {[*columns.partitions]}")
        for name, value in found.items():
            if value != NULL_DIRECTORY:
                _check_value(columns.partitions[name], value)
    except (ValueError, ArithmeticError) as error:
        raise InvalidOption(
            f"files in {partition or 'the root'!r} have no place in a Delta table ({error}): write them below"
            " directories such as dt=2013-01-01, one for each partition column, with values of its type"
        ) from error
    return {name: None if value == NULL_DIRECTORY else value for name, value in found.items()}


#: Most files that a version adds with column statistics: about 120 MB. With more it has row counts only.
MOST_WITH_BOUNDS = 200_000

#: In the context of a job that changes no row: streaming readers skip its version. No other job may have it.
SAME_ROWS = {"s3commit_rows": "unchanged"}

#: The name of a job that changes no row.
COMPACTION = "compaction"


class TableChange(NamedTuple):
    """What an entry changes.

    Attributes:
        entry: The entry.
        table: The table after the entry. The next change alters it: use up this one before you draw that.
        before: The columns before it; None for a first version, which has the whole table.
        after: The columns after it.
        gained: The commits whose files enter the table, by partition.
        removed: The files that leave the table, in any order.
        added: The files that enter it, in any order.
    """

    entry: Entry
    table: Table
    before: DeltaColumns | None
    after: DeltaColumns
    gained: Pieces
    removed: Iterable[FileEntry]
    added: Iterable[FileEntry]


def version_lines(home: Destination, entry: Entry, change: TableChange | None = None) -> Iterator[bytes]:
    """Yield the lines of the version of an entry; without ``change`` it changes no files."""
    kind = entry.commit.mode if entry.commit is not None else entry.kind
    yield _line(
        commitInfo={
            "timestamp": entry.since,
            "operation": "WRITE" if entry.commit is not None else kind.upper(),
            "operationParameters": {"mode": kind},
            "engineInfo": "airflow-s3commit",
            "s3commit": {"generation": entry.number, "nonce": entry.nonce, "job": entry.job_id or ""},
        }
    )
    txn = _line(txn={"appId": f"airflow-s3commit:{home.uri}", "version": entry.number})
    if change is None:
        yield txn
        return
    before, after = change.before, change.after
    if before != after:
        ntz = [_NTZ] if _NTZ_TYPE in after.text else []
        if before is None or (ntz and _NTZ_TYPE not in before.text):
            versions = {"minReaderVersion": 3 if ntz else 1, "minWriterVersion": 7}
            features = {"writerFeatures": [*ntz, GUARD], **({"readerFeatures": ntz} if ntz else {})}
            yield _line(protocol={**versions, **features})
        yield _line(
            metaData={
                "id": str(uuid5(NAMESPACE_URL, home.uri)),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": after.text,
                "partitionColumns": [*after.partitions],
                "configuration": {},
                "createdTime": entry.since,
            }
        )
    yield txn
    differs = before is None or not SAME_ROWS.items() <= entry.context.items()
    kinds = {one["name"]: one["type"] for one in after.fields if one["name"] not in after.partitions}
    if change.table.counts_of(change.gained).files > MOST_WITH_BOUNDS:
        kinds = {}

    def facts(file: FileEntry, values: Callable[[str], dict[str, str | None]]) -> dict[str, Any]:
        # The key below the table, escaped once more.
        path = quote(file.key.removeprefix(home.prefix), safe="/=")
        known = {"partitionValues": values(file.partition), "size": file.size, "dataChange": differs}
        return {"path": path, **known}

    # The columns before say how the removed files are partitioned.
    had = cache(lambda partition: partition_values(partition, before or after))
    has = cache(lambda partition: partition_values(partition, after))
    for file in change.removed:
        yield _line(
            remove={**facts(file, had), "deletionTimestamp": entry.since, "extendedFileMetadata": True}
        )
    for file in change.added:
        known = {"modificationTime": entry.since, **_statistics(file, kinds)}
        yield _line(add={**facts(file, has), **known})


def _line(**action: Any) -> bytes:
    return msgspec.json.encode(action) + b"\n"


#: Number of columns for which readers expect bounds: Delta's default.
_INDEXED = 32


def _statistics(file: FileEntry, kinds: Mapping[str, Any]) -> dict[str, str]:
    """Return the ``stats`` of a file's ``add`` action, for the columns in ``kinds``; empty if unknown.

    They have bounds of all columns or of none: datasets of deltalake (1.6) take a bound that is missing
    beside others for null, and leave the file out for any filter on its column.
    """
    found: dict[str, Any] = {} if file.rows is None else {"numRecords": file.rows}
    known = {name: one for name, one in (file.statistics or {}).items() if isinstance(kinds.get(name), str)}
    if nulls := {name: one.nulls for name, one in known.items() if one.nulls is not None}:
        found["nullCount"] = nulls
    first = islice(kinds.items(), _INDEXED)
    expected = [name for name, kind in first if isinstance(kind, str) and kind != "binary"]
    if expected and known.keys() >= set(expected):
        # A column without values has no bounds.
        some = [name for name in expected if known[name].values != 0]
        least, greatest = (
            {name: _bound(kinds[name], known[name], side) for name in some} for side in ("least", "greatest")
        )
        if some and None not in (*least.values(), *greatest.values()):
            found |= {"minValues": least, "maxValues": greatest}
    return {"stats": msgspec.json.encode(found).decode()} if found else {}


def _bound(kind: str, known: ColumnStatistics, side: str) -> Any:
    """Return the least or greatest value of a column as Delta has it; None if it has none for the type."""
    value: Value = getattr(known, side)
    if not isinstance(value, str):
        return value if (kind == "boolean" if isinstance(value, bool) else kind in _NUMBERS) else None
    if known.decimal:
        # Exactly these digits: a binary number would be a different bound.
        is_number = kind.startswith("decimal") and _NUMBER.fullmatch(value)
        return Raw(value.encode()) if is_number else None
    if kind in _TIMES:
        return value.replace("+00:00", "Z")
    return value if kind == "string" else None
