"""Tables of commits in a Spark session: `read_table`, and the partitions of a table in its catalog.

`read_table` gives Spark's own reader the files of one generation of a table, without a listing.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec import structs
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.protocol import publication
from airflow_s3commit.protocol.model.destination import NULL_DIRECTORY, Destination, hive_values
from airflow_s3commit.protocol.steps.files import FileSummary, FileWithBounds
from airflow_s3commit.reader.listing import UnreadablePartitions, find_table
from airflow_s3commit.reader.table import (
    FileReading,
    UnreadableFiles,
    format_of,
    partition_columns,
    s3_filesystem,
    schemas_of,
    table_schema,
)
from airflow_s3commit.spark.options import quoted
from airflow_s3commit.spark.session import getter_of, renewing_store, store_from_conf, store_of_process
from airflow_s3commit.spark.writer_settings import class_of_jar, is_classic, s3a_address
from airflow_s3commit.store.execute import in_batches
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.tables.columns import ROW_METADATA
from airflow_s3commit.tables.options import FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    from airflow_s3commit.reader.listing import Table, TableFile
    from airflow_s3commit.store.base import ObjectStore
    from airflow_s3commit.tables.columns import WrittenSchema

#: Spark's options that choose files, in lower case: the log does that here.
_CHOOSE_FILES = frozenset(
    {"path", "paths", "basepath", "pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter"}
)

#: In Spark's JSON, what may be null.
_NULLABLE = frozenset({"nullable", "containsNull", "valueContainsNull"})

#: In it, what is not read: defaults of another table, and a class, which PySpark 3.5 and 4.0 unpickle.
_DROPPED = frozenset({"EXISTS_DEFAULT", "CURRENT_DEFAULT", "serializedClass"})

#: Bytes of statistics that the driver's JVM keeps for a table; files beyond them are never left out.
_BOUNDS_BYTES = 64 << 20

#: Whether a directory without ``=`` lies between those of two partition columns.
_IS_BROKEN = re.compile(r"(.*/)?[^/]*=[^/]*/([^/=]+/)+[^/]*=").match

#: What Spark's log says of a file beside its path and size. The log of commits has no time for each file.
_ENTRY = {"action": "add", "isDir": False, "blockSize": 1 << 27, "blockReplication": 1, "modificationTime": 0}


def read_table(
    spark: SparkSession,
    uri: str | Destination,
    *,
    generation: int | None = None,
    since: int | None = None,
    job_id: str | None = None,
    format: str | None = None,  # noqa: A002 - as Spark calls it
    schema: StructType | str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a table at one generation as a DataFrame, which Spark's own reader reads through S3A.

    Each commit makes a generation of the table. The call fixes which one to read, by default the newest:
    later commits do not change the rows, and a file that a later commit has deleted is an error, not missing
    rows. Spark prunes partitions and columns as in its own reads. With the jar of `pending_jar` it also opens
    no Parquet file of which the bounds in the log show that no row passes a filter. The call may be repeated.

    The log is read at the address that the session has in ``spark.s3commit.endpoint.*``, or else for S3A,
    with credentials from boto3's chain. Spark lists no files. In Spark Connect, and for partitions of a
    table whose own path has an element ``name=value``, it sends three requests per file, in a task each.

    Args:
        spark: The session, classic or Spark Connect, with S3A.
        uri: URI of the table.
        generation: Read the table as it was after this commit.
        since: Read only files added by commits after this generation and still in the table; 0 reads all.
        job_id: Read only the files that this job's commit added.
        format: Spark's name of the files' format; by default how their names end: parquet, orc, csv or json.
        schema: The columns, as for ``spark.read.schema``; those of partitions may be left out. By default the
            columns of all commits; for formats without recorded columns Spark infers them from the files.
        options: Options of Spark's reader of the format, such as ``header``.

    Raises:
        NoSuchKey: There is no commit, none of ``job_id`` or no such generation; or a list of files is gone.
        HistoryRewound: A rollback came after the generation ``since``.
        InvalidRecord: The log or a list of files is damaged.
        UnreadableFiles: The files have several formats, or one that their names do not tell; or a column has
            types in different commits that have no common one, or one that Spark lacks.
        UnreadablePartitions: The directories have different partition columns, or one between two of them.
        InvalidOption: An option chooses files.
        ValueError: A generation is out of range, or is given beside a job.
    """
    place, given = Destination.of(uri), dict(options or {})
    if chosen := [name for name in given if name.lower() in _CHOOSE_FILES]:
        raise InvalidOption(
            f"{chosen[0]} chooses files, and those of {place.uri} are chosen by generation, since and job_id:"
            " leave it out, and filter the rows with where()"
        )
    if not any(name.lower() == "ignoremissingfiles" for name in given):
        # Whatever the session says: a generation whose files are gone is not a smaller table.
        given["ignoreMissingFiles"] = "false"
    address = store_from_conf(getter_of(spark))
    if is_classic(spark):
        address = address.or_else(s3a_address(spark, place.bucket))
    with renewing_store(address):
        kind = FileSummary if class_of_jar(spark, "FileBounds") is None else FileWithBounds
        store = store_of_process(address)
        table = find_table(store, place, generation, since, job_id, kind=kind)
    paths = [file.path for file in table.examples]
    name = format_of(paths, format)
    has_record = name in FORMATS and not FORMATS[name].text
    recorded = _recorded(table) if schema is None else None
    # With a schema no file is opened for its columns.
    is_known = schema is not None or recorded is not None
    asked = replace(table, to_inspect=(), others=()) if is_known else table
    schemas: list[tuple[str, WrittenSchema]] = []
    if has_record:
        filesystem = s3_filesystem(S3Config(**asdict(address)), store)
        schemas = schemas_of(asked, filesystem, FileReading.of(paths, name))
    partitions = _partitions(table, schemas)
    source = _Source(spark, place, name, given, partitions)
    if schema is not None:
        whole = schema if isinstance(schema, StructType) else spark.createDataFrame([], schema).schema
        partitions |= {column.name: column for column in whole if column.name in partitions}
    elif recorded is not None:
        whole = recorded
    elif has_record:
        whole = _columns(spark, table, schemas)
    else:
        whole = source.read(table.examples, None).schema if table.examples else StructType()
    # Spark does not unescape the values of a binary column.
    binary = [one.name for one in partitions.values() if one.dataType == BinaryType()]
    partitions |= {name: StructField(name, StringType()) for name in binary}
    wanted = StructType([*(one for one in whole if one.name not in partitions), *partitions.values()])
    wanted = _struct(wanted.json()) or wanted
    rows = source.read(table.files.values(), wanted) if table.files else spark.createDataFrame([], wanted)
    for name in binary:
        rows = rows.withColumn(name, rows[quoted(name)].cast("binary"))
    return rows


def _recorded(table: Table) -> StructType | None:
    """Return the columns that every commit recorded, if Spark's own writers did; None if commits differ."""
    found = [schema.columns.spark for schema in table.schemas]
    by_spark = any(schema.columns.arrow is None for schema in table.schemas)
    if not table.all_recorded or not by_spark or any(one != found[0] for one in found):
        return None
    return _struct(json.dumps({"type": "struct", "fields": [*map(structs.asdict, found[0].fields)]}))


def _columns(spark: SparkSession, table: Table, schemas: Sequence[tuple[str, WrittenSchema]]) -> StructType:
    """Return the columns of all commits, in the types that Spark gave them."""
    has_case = str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"
    merged = table_schema(table, schemas, str if has_case else str.lower)
    known: dict[str, StructField] = {}
    for _, schema in schemas:
        for column in _struct((schema.files.metadata or {}).get(ROW_METADATA.encode(), b"")) or ():
            # A column that was widened has its widest type.
            own, all_ = (some.get_field_index(column.name) for some in (schema.files, merged))
            if min(own, all_) >= 0 and schema.files.field(own).type == merged.field(all_).type:
                known.setdefault(column.name, column)
    found = (known.get(one.name) or StructField(one.name, _type(table, one)) for one in merged)
    return StructType([*found])


def _type(table: Table, column: pa.Field) -> DataType:
    try:
        return _spark_type(column.type)
    except PySparkTypeError as error:
        raise UnreadableFiles(
            f"column {column.name!r} of {table.destination} is {column.type}, for which Spark has no certain"
            " type: give the columns in schema"
        ) from error


# A timestamp without a time zone has none in Spark either. The default has changed between releases.
_spark_type = partial(from_arrow_type, prefer_timestamp_ntz=True)


def _partitions(table: Table, schemas: Sequence[tuple[str, WrittenSchema]]) -> dict[str, StructField]:
    """Return the partition columns: in the type that every commit recorded, or inferred from their values."""
    if odd := next(filter(_IS_BROKEN, table.directories), None):
        raise UnreadablePartitions(
            f"{table.destination}{odd} has a directory without '=' between two partitions, and Spark would"
            " not see the outer one: read the table with airflow_s3commit.dataset"
        )
    recorded, found = table.recorded, {}
    for column in partition_columns(table, None, schemas).schema:
        field = {"name": column.name, "type": recorded.get(column.name), "nullable": True, "metadata": {}}
        known = _struct(json.dumps({"type": "struct", "fields": [field]}))
        found[column.name] = known[0] if known else StructField(column.name, _spark_type(column.type))
    return found


def _struct(text: str | bytes) -> StructType | None:
    """Return columns by Spark's JSON, nullable as Spark reads them; None if damaged or of unknown types."""

    def read(found: dict[str, Any]) -> dict[str, Any]:
        return {name: name in _NULLABLE or one for name, one in found.items() if name not in _DROPPED}

    with suppress(ValueError, LookupError, TypeError, ImportError):
        return StructType.fromJson(json.loads(text, object_hook=read))
    return None


@dataclass(frozen=True, slots=True)
class _Source:
    """Spark's own reader of some files.

    Spark reads a directory by a log in it, as a streaming query leaves one: a line per file. Such a log is
    made on the driver's disk and read at once, so files are neither listed nor opened before a task does it.
    Spark's reader gets paths instead under Spark Connect, which has no such disk; in a session that ignores
    such logs; and if the table's own path has ``name=value``, which Spark would take for a partition.
    """

    spark: SparkSession
    place: Destination
    format: str
    options: Mapping[str, str]
    partitions: Collection[str]

    def read(self, files: Collection[TableFile], schema: StructType | None) -> DataFrame:
        """Return the rows of files; Spark infers the schema if there is none."""
        reader = self.spark.read.format(self.format).options(**self.options)
        reader = reader if schema is None else reader.schema(schema)
        # Without partitions Spark would look for files beside the log alone.
        is_flat = not self.partitions
        if is_classic(self.spark) and (is_flat or "=" not in self.place.prefix):
            with tempfile.TemporaryDirectory(prefix="s3commit-") as folder:
                _write_log(Path(folder), files)
                found = reader.option("recursiveFileLookup", is_flat).load(Path(folder).as_uri())
                if len(found._jdf.inputFiles()) == len(files):  # noqa: SLF001 - the others are copied one by one
                    return self._pruned(found, Path(folder, "bounds"), files)
        # Spark's own option for paths that are no patterns.
        base = f"s3a://{self.place.bucket}/{self.place.prefix}"
        reader = reader.options(recursiveFileLookup=False, __globPaths__=False, basePath=base)
        return reader.load([f"s3a://{file.path}" for file in files])

    def _pruned(self, found: DataFrame, bounds: Path, files: Collection[TableFile]) -> DataFrame:
        """Return the rows, and have Spark leave out files by their bounds; none are known without the jar."""
        plan = found._jdf.queryExecution().analyzed()  # noqa: SLF001
        # A session may read by Spark's sources of version 2, whose relation has no file index to replace.
        is_known = self.format == "parquet" and plan.nodeName() == "LogicalRelation"
        if not is_known or not any(file.statistics for file in files):
            return found
        left = _BOUNDS_BYTES
        with bounds.open("wb") as lines:
            for file in files:
                left -= len(file.statistics)
                if file.statistics and left > 0:
                    lines.write(f"s3a://{quote(file.path)}\t".encode() + file.statistics + b"\n")
        made = plan.relation()
        schemas = (made.partitionSchema(), made.dataSchema())
        facts = (*schemas, made.bucketSpec(), made.fileFormat(), made.options(), made.sparkSession())
        index = class_of_jar(self.spark, "FileBounds").prune(made.location(), str(bounds))
        session = self.spark._jsparkSession  # noqa: SLF001
        return DataFrame(session.baseRelationToDataFrame(made.copy(index, *facts)), self.spark)


def _write_log(folder: Path, files: Iterable[TableFile]) -> None:
    log = folder / "_spark_metadata"
    log.mkdir()
    with (log / "0").open("w") as lines:
        lines.write("v1")
        for file in files:
            entry = {"path": f"s3a://{quote(file.path)}", "size": file.size, **_ENTRY}
            lines.write(f"\n{json.dumps(entry)}")


#: Partitions in one statement.
_BATCH = 100


class SparkTable:
    """A table of a Spark session's catalog, for `airflow_s3commit.register_partitions`.

    Args:
        name: The table, as in SQL: ``database.table``.
    """

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session = session
        self.name = name

    @property
    def location(self) -> str:
        """URI of the table's directory."""
        return self._described["Location"]

    @cached_property
    def columns(self) -> Sequence[str]:
        """The partition columns, outermost first."""
        return [column.name for column in self._session.catalog.listColumns(self.name) if column.isPartition]

    def partitions(self) -> Collection[tuple[str, ...]]:
        """Return the values of the table's partitions."""
        rows = self._sql(f"SHOW PARTITIONS {self.name}").collect()
        return {tuple(hive_values(row[0]).values()) for row in rows}

    def location_of(self, partition: tuple[str, ...]) -> str:
        """Return the URI of the directory of the partition with these values."""
        return self._describe(self._part(partition))["Location"]

    def add(self, partitions: Sequence[tuple[str, ...]], directories: Sequence[str]) -> None:
        """Add partitions, with directories relative to the table's. Existing ones are not changed.

        Raises `InvalidOption` if the type of a partition column changes a value: two may become the same.
        """
        # Spark's own names of directories may differ: in the case of a column, and in what is escaped.
        places = (_literal(f"{self.location.rstrip('/')}/{directory}") for directory in directories)
        named = zip(partitions, places, strict=True)
        self._alter("ADD IF NOT EXISTS", " ", (f"{self._part(values)} LOCATION {at}" for values, at in named))
        if changed := sorted({*partitions} - {*self.partitions()}):
            raise InvalidOption(
                f"table {self.name} names the partition {'/'.join(changed[0])} otherwise, by the types of its"
                f" columns: declare {', '.join(self.columns)} as STRING"
            )

    def remove(self, partitions: Sequence[tuple[str, ...]]) -> None:
        """Remove partitions, by their values; their files stay.

        Raises `InvalidOption` if the table is managed: Spark would delete the partitions' files.
        """
        if self._described["Type"].upper() == "MANAGED":
            raise InvalidOption(
                f"table {self.name} is managed, so its partitions cannot be removed without their files, such"
                f" as {'/'.join(partitions[0])}: make it external, with a LOCATION"
            )
        self._alter("DROP IF EXISTS", ", ", map(self._part, partitions))

    @cached_property
    def _described(self) -> dict[str, str]:
        return self._describe("")

    def _describe(self, partition: str) -> dict[str, str]:
        rows = self._sql(f"DESCRIBE TABLE EXTENDED {self.name} {partition}").collect()
        # Columns come first, and a partition's own values before those of its table.
        details = [*dropwhile(lambda row: not row[0].startswith("# Detailed"), rows)]
        return {name: value for name, value, *_ in reversed(details)}

    def _alter(self, change: str, between: str, parts: Iterable[str]) -> None:
        for some in in_batches(parts, _BATCH):
            self._sql(f"ALTER TABLE {self.name} {change} {between.join(some)}")

    def _sql(self, statement: str) -> DataFrame:
        raw = "spark.sql.parser.escapedStringLiterals"
        if "\\" in statement and self._session.conf.get(raw) == "true":
            raise InvalidOption(f"partitions of table {self.name} cannot be named in SQL: unset {raw}")
        return self._session.sql(statement)

    def _part(self, partition: Iterable[str]) -> str:
        pairs = zip(self.columns, partition, strict=True)
        return f"PARTITION ({', '.join(f'{quoted(name)} = {_literal(value)}' for name, value in pairs)})"


def register_partitions(
    session: SparkSession, table: str, store: ObjectStore | None = None
) -> publication.RegistrationReport:
    """Make the partitions of a table in a session's catalog those of its newest commit.

    Effect, errors and repeatability are those of `airflow_s3commit.register_partitions`.

    Args:
        session: The session.
        table: The table, as in SQL: ``database.table``.
        store: The store of the table; by default that of the session's conf, with this process's credentials.

    Raises:
        InvalidOption: As there; or the table is managed, and has partitions that the newest commit lacks.
    """
    there = store or store_of_process(store_from_conf(getter_of(session)))
    return publication.register_partitions(there, SparkTable(session, table))


def _literal(value: str) -> str:
    # In a text, too, Spark replaces the name of a variable in ${} by its value.
    text = value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return "null" if value == NULL_DIRECTORY else f"'{text}'"
