"""Publish a table to an Iceberg catalog: each commit becomes a snapshot, which other engines read whole.

Snapshots follow from the log alone. pyiceberg writes them below ``_iceberg/`` of the destination; no data
file is opened or moved. The generation of the newest published commit is a property of the catalog's table,
which changes together with the snapshot. So a publication may be repeated at any time, by any process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct
from pyiceberg import exceptions, types
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions.literals import literal
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from airflow_s3commit.exceptions import InvalidOption, OutcomeUnknown, Unavailable
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.delta import DeltaColumns, TableChange, partition_values
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.steps.publish import changes
from airflow_s3commit.tables.columns import from_text

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.metadata import TableMetadata

    from airflow_s3commit.protocol.model.manifest import FileEntry
    from airflow_s3commit.store.base import ObjectStore

#: Property of the catalog's table and of each snapshot: the number of the commit.
GENERATION = "s3commit.generation"

#: Property of each snapshot: SHA-256 of the commit's entry.
_ENTRY = "s3commit.entry"

#: Maximum number of tries; one fails if another process publishes meanwhile.
_TRIES = 5


class IcebergReport(Plain, Struct, frozen=True, kw_only=True):
    """What a publication has added to a catalog.

    Attributes:
        table: The table in the catalog.
        generation: The generation that the catalog has now; 0 if there is no commit.
        published: The generations for which a snapshot was added.
    """

    destination: str
    table: str
    generation: int
    published: list[int]


def publish_iceberg(
    store: ObjectStore, destination: str | Destination, catalog: Catalog, table: str
) -> IcebergReport:
    """Add a snapshot to a catalog's table for each commit that it lacks; create the table if it is missing.

    A new table begins with the newest generation. Repeatable, and safe during commits and other publications.
    After a crash the catalog has an older generation, which is whole as long as its files are retained.

    Args:
        destination: URI of the dataset's directory, or a `Destination`.
        catalog: The catalog, whose properties let pyiceberg write to the destination's bucket.
        table: The table's name in a namespace that exists: ``lake.flights``.

    Raises:
        InvalidOption: Iceberg cannot represent the files, columns or partitions; or the catalog's table
            belongs to another destination, was written to by another program, or has lost its metadata.
        Unavailable: Other processes keep changing the catalog's table.
        OutcomeUnknown: The catalog's answer was lost: publish again.
        InvalidRecord: The log is damaged, or was started over.
    """
    home, published = Destination.of(destination), list[int]()
    for _ in range(_TRIES):
        try:
            newest = _publish(store, home, catalog, table, published)
        except (exceptions.CommitFailedException, exceptions.ValidationException):
            continue
        except FileNotFoundError as error:
            raise InvalidOption(
                f"metadata of {table} is gone ({error}): drop it from the catalog, without its files, and"
                " publish again"
            ) from error
        except exceptions.CommitStateUnknownException as error:
            raise OutcomeUnknown(f"the catalog's answer about {table} was lost; publish it again") from error
        return IcebergReport(destination=home.uri, table=table, generation=newest, published=published)
    raise Unavailable(f"other processes have changed {table} {_TRIES} times meanwhile; publish it again")


def _publish(store: ObjectStore, home: Destination, catalog: Catalog, name: str, published: list[int]) -> int:
    """Publish the missing commits, add their numbers to ``published``, and return the catalog's newest."""
    try:
        found = catalog.load_table(name)
    except exceptions.NoSuchTableError:
        first = next(changes(store, home, Position()), None)
        if first is None or not first.after.fields:
            return 0
        for file in first.added:
            _rows(file, home)
        # Another process may create it first, and publish: only the table itself says what it has.
        found = _create(catalog, name, home, first.after)
    since = _published(found, name, home)
    for change in changes(store, home, since):
        _commit(found, name, home, change)
        since = change.table.head
        published.append(since.number)
    return since.number


def _rows(file: FileEntry, home: Destination) -> int:
    if file.rows is None:
        where = join_uri(home.bucket, file.key)
        raise InvalidOption(f"the rows of {where} were not counted, and Iceberg must know them: replace it")
    return file.rows


def _create(catalog: Catalog, name: str, home: Destination, columns: DeltaColumns) -> IcebergTable:
    schema = assign_fresh_schema_ids(_schema(columns))
    spec = PartitionSpec(
        *(
            PartitionField(schema.find_field(one).field_id, 1000 + number, IdentityTransform(), one)
            for number, one in enumerate(columns.partitions)
        )
    )
    properties = {
        GENERATION: "0",
        "write.metadata.path": f"{home.uri}_iceberg",
        # The data files have no field ids.
        "schema.name-mapping.default": schema.name_mapping.model_dump_json(),
        # pyiceberg's own retry would publish a generation twice: it does not check what changed meanwhile.
        "commit.retry.num-retries": "0",
        # Only a sweep deletes data files.
        "gc.enabled": "false",
    }
    try:
        return catalog.create_table_if_not_exists(
            name, schema, location=home.uri.rstrip("/"), partition_spec=spec, properties=properties
        )
    except exceptions.NoSuchNamespaceError as error:
        raise InvalidOption(f"the catalog has no namespace for {name}: create it first") from error


def _published(found: IcebergTable, name: str, home: Destination) -> Position:
    """Return the entry whose snapshot is the current one; number 0 before the first."""
    number = found.properties.get(GENERATION)
    if number is None or found.location().rstrip("/") != home.uri.rstrip("/"):
        raise InvalidOption(
            f"{name} is in the catalog already, and is not the publication of {home.uri}, but a table at"
            f" {found.location()}: choose another name"
        )
    snapshot = found.current_snapshot()
    known = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary else {}
    if known.get(GENERATION, "0") != number:
        raise InvalidOption(
            f"the current snapshot of {name} is not that of generation {number} of {home.uri}: another"
            " program has written to it. Drop it from the catalog, without its files, and publish again"
        )
    return Position(int(number), known.get(_ENTRY, ""))


def _commit(found: IcebergTable, name: str, home: Destination, change: TableChange) -> None:
    """Add the snapshot of a commit, in one transaction of the catalog."""
    number, columns = change.entry.number, change.after
    if [field.name for field in found.spec().fields] != [*columns.partitions]:
        raise InvalidOption(
            f"generation {number} of {home.uri} has the partition columns {[*columns.partitions]}, which are"
            f" others than those of {name}: publish it under another name"
        )
    told = {
        GENERATION: str(number),
        _ENTRY: change.table.head.sha256,
        "s3commit.job": change.entry.job_id or "",
    }
    with found.transaction() as transaction:
        try:
            _refuse_loss(assign_fresh_schema_ids(_schema(columns)), transaction.table_metadata.schema())
            with transaction.update_schema() as update:
                update.union_by_name(_schema(columns))
        except (exceptions.ValidationError, ValueError) as error:
            raise InvalidOption(
                f"generation {number} of {home.uri} has columns that {name} cannot get ({error}): publish it"
                " under another name"
            ) from error
        facts = home, transaction.table_metadata, _zones(change, columns, home)
        removed, update_snapshot = list(change.removed), transaction.update_snapshot(told)
        # Readers that follow a table accept snapshots that only add files, and stop at any other.
        with update_snapshot.overwrite() if removed else update_snapshot.merge_append() as snapshot:
            for file in _data_files(removed, change.before or columns, *facts):
                snapshot.delete_data_file(file)
            for file in _data_files(change.added, columns, *facts):
                snapshot.append_data_file(file)
        transaction.set_properties({GENERATION: str(number)})


def _refuse_loss(columns: Schema, held: Schema) -> None:
    """Raise `ValueError` for a column whose type in the table pyiceberg wrongly takes for a wider one."""
    for name in {*columns.column_names} & {*held.column_names}:
        kind, wide = columns.find_type(name), held.find_type(name)
        scales = [one.scale for one in (kind, wide) if isinstance(one, types.DecimalType)]
        if len({*scales}) > 1 or (isinstance(wide, types.StringType | types.BinaryType) and kind != wide):
            raise ValueError(f"Cannot change column type: {name}: {wide} -> {kind}")


def _zones(change: TableChange, columns: DeltaColumns, home: Destination) -> dict[str, tzinfo]:
    """Return, for each partition column of times, the time zone of the values in directory names."""
    zones: dict[str, str] = {}
    texts = change.table.schemas() if "timestamp" in columns.partitions.values() else ()
    for field in chain.from_iterable(from_text(text, f"the log of {home.uri}").partitions for text in texts):
        if not pa.types.is_timestamp(field.type):
            continue
        if (known := zones.setdefault(field.name, field.type.tz)) != field.type.tz:
            raise InvalidOption(
                f"partition column {field.name!r} of {home.uri} has times of {known} and of {field.type.tz}:"
                " write it in one time zone, such as UTC"
            )
    return {name: pa.lib.string_to_tzinfo(zone) for name, zone in zones.items() if zone}


def _data_files(
    files: Iterable[FileEntry],
    columns: DeltaColumns,
    home: Destination,
    metadata: TableMetadata,
    zones: Mapping[str, tzinfo],
) -> Iterator[DataFile]:
    """Yield the entries of these files for Iceberg's manifests."""
    fields = {field.name: field for field in metadata.schema().fields}

    @cache
    def record(partition: str) -> Record:
        texts = partition_values(partition, columns).items()
        return Record(*(_value(fields[name].field_type, text, zones.get(name, UTC)) for name, text in texts))

    for file in files:
        known = [(fields[name], one) for name, one in (file.statistics or {}).items() if name in fields]
        nulls = {field.field_id: one.nulls for field, one in known if one.nulls is not None}
        made = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=join_uri(home.bucket, file.key),
            file_format=FileFormat.PARQUET,
            partition=record(file.partition),
            record_count=_rows(file, home),
            file_size_in_bytes=file.size,
            # Value counts include nulls.
            value_counts=dict.fromkeys(nulls, file.rows),
            null_value_counts=nulls,
            lower_bounds=_bounds((field, one.least) for field, one in known),
            upper_bounds=_bounds((field, one.greatest) for field, one in known),
        )
        made.spec_id = metadata.default_spec_id
        yield made


def _value(kind: types.IcebergType, text: str | None, zone: tzinfo) -> Any:
    """Return a partition's value as Iceberg represents it: dates in days, times in microseconds."""
    if text is None:
        return None
    if isinstance(kind, types.BinaryType):
        return text.encode()
    if isinstance(kind, types.TimestampType | types.TimestamptzType):
        moment = datetime.fromisoformat(text)
        if isinstance(kind, types.TimestamptzType):
            moment = moment.replace(tzinfo=moment.tzinfo or zone).astimezone(UTC)
        text = moment.isoformat()
    return literal(text).to(kind).value


def _bounds(values: Iterable[tuple[types.NestedField, Any]]) -> dict[int, bytes]:
    """Return least or greatest values by field id, as Iceberg encodes them, for types that have bounds."""
    found = {}
    for field, value in values:
        kind: Any = field.field_type
        with suppress(TypeError, ValueError):
            found[field.field_id] = to_bytes(kind, literal(value).to(kind).value)
    return found


#: Iceberg's names for Spark's types, where they differ.
_NAMES = {
    "byte": "int",
    "short": "int",
    "integer": "int",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}


def _schema(columns: DeltaColumns) -> Schema:
    """Return the columns as Iceberg's schema, without field ids."""
    try:
        return Schema.model_validate(_type({"type": "struct", "fields": columns.fields}))
    except ValueError as error:
        name = str(error).partition(" for name ")[2].partition(":")[0]
        raise InvalidOption(
            f"two columns of the table have the name {name!r} in Iceberg, which writes a.b for the field b of"
            " a column a: rename one of them"
        ) from error


def _type(kind: Any) -> Any:
    """Return a type in Iceberg's JSON, from Spark's JSON for it, which Delta uses too."""
    match kind:
        case {"type": "array", "elementType": element}:
            return {"type": "list", "element-id": -1, "element": _type(element), "element-required": False}
        case {"type": "map", "keyType": key, "valueType": value}:
            ids = {"key-id": -1, "value-id": -1, "value-required": False}
            return {"type": "map", "key": _type(key), "value": _type(value), **ids}
        case {"type": "struct", "fields": fields}:
            known = [(one["name"], _type(one["type"])) for one in fields]
            made = [{"id": -1, "name": name, "type": one, "required": False} for name, one in known]
            return {"type": "struct", "fields": made}
    return _NAMES.get(kind, kind)
