"""Show a table to other engines: as versions of a Delta table, or as the partitions of a catalog."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from airflow_s3commit.exceptions import DestinationChanged, InvalidDestination, InvalidOption, NoSuchKey
from airflow_s3commit.protocol.metadata.context import JobContext, after_effect, new_uuid
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination, hive_values, is_data, split_uri
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import Layout, owner_of, partition_of
from airflow_s3commit.protocol.model.table import Entry, Table
from airflow_s3commit.protocol.steps.files import TableFiles, freed_objects
from airflow_s3commit.protocol.steps.fold import newest_entry, read_table
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.protocol.steps.publish import (
    delta_columns,
    missing_versions,
    publish,
    publish_if_missing,
)
from airflow_s3commit.protocol.write_job import write_job
from airflow_s3commit.store.base import ObjectStore

_STATEMENTS: Mapping[str, str] = {
    "athena": """\
CREATE EXTERNAL TABLE {name}
LOCATION '{at.uri}'
TBLPROPERTIES ('table_type' = 'DELTA');""",
    "databricks": """\
CREATE TABLE IF NOT EXISTS {name}
USING DELTA
LOCATION '{at.uri}';""",
    "duckdb": """\
INSTALL delta;
LOAD delta;
CREATE OR REPLACE VIEW {name} AS SELECT * FROM delta_scan('{at.uri}');""",
    "snowflake": """\
-- first: an external volume {at.bucket} that allows reading s3://{at.bucket}/
CREATE CATALOG INTEGRATION IF NOT EXISTS delta_files
  CATALOG_SOURCE = OBJECT_STORE TABLE_FORMAT = DELTA ENABLED = TRUE;
CREATE ICEBERG TABLE {name}
  CATALOG = 'delta_files' EXTERNAL_VOLUME = '{at.bucket}' BASE_LOCATION = '{at.prefix}'
  AUTO_REFRESH = TRUE;""",
    "trino": """\
-- first: a catalog delta of the connector delta_lake, with delta.register-table-procedure.enabled=true
CALL delta.system.register_table(
  schema_name => '{schema}', table_name => '{table}', table_location => '{at.uri}');""",
}

#: The engines that `ddl` knows.
ENGINES = tuple(_STATEMENTS)

_NAME = re.compile(r"([A-Za-z_]\w*\.){0,2}[A-Za-z_]\w*", re.ASCII)


class PublishReport(Plain, Struct, frozen=True, kw_only=True):
    """What other engines see of a table.

    Attributes:
        destination: URI of the table.
        generation: Number of the newest entry of the log.
        version: Its version as a Delta table.
        written: How many versions were missing, and are written.
    """

    destination: str
    generation: int
    version: int
    written: int


def publish_table(store: ObjectStore, destination: str | Destination) -> PublishReport:
    """Publish a table as versions of a Delta table, from now on; or write the versions that are missing.

    The first version has all files of the table. It belongs to a commit without files, so the table gets a
    new generation. Repeatable, also while jobs are at work.

    Raises:
        NoSuchKey: There is no log: no job was set up there.
        InvalidOption: Delta cannot have the table's files, columns or names; or the table has no columns yet.
        InvalidRecord: Another program wrote a version.
        OutcomeUnknown: A response was lost, or a request failed after the commit: publish it again.
    """
    home = Destination.of(destination)
    context = JobContext(store, Layout.of(home, new_uuid()))
    read = newest_entry(store, home)
    if read is None:
        raise NoSuchKey(
            f"{home.uri} has no log: no job was set up there. A job publishes it: publish='delta'"
        )
    if read.entry.published:
        return _publish_missing(context, read.entry, 0)
    if not delta_columns(read_table(store, home)).fields:
        raise InvalidOption(f"{home.uri} has no columns yet: let its first job publish it, publish='delta'")
    options = JobOptions(conflict_mode="append", publish="delta")
    with write_job(home, store=store, job_options=options, name="publish") as writer:
        pass
    assert writer.manifest is not None
    generation = writer.manifest.generation
    with after_effect(f"{home.uri} is published, as entry {generation} of its log", "publish it again"):
        return _publish_missing(context, read_entry(store, home, generation).entry, 1)


def _publish_missing(context: JobContext, newest: Entry, written: int) -> PublishReport:
    """Write the versions that are missing up to that of the newest entry."""
    store, home = context.store, context.layout.destination
    assert newest.delta_version is not None
    for version in missing_versions(store, home, newest.delta_version):
        publish(context, read_entry(store, home, newest.published + version).entry)
        written += 1
    publish_if_missing(context, newest)
    return PublishReport(
        destination=home.uri, generation=newest.number, version=newest.delta_version, written=written
    )


def ddl(engine: str, destination: Destination, name: str = "") -> str:
    """Return the statements that make a published table known to an engine, as a Delta table.

    Args:
        engine: One of `ENGINES`.
        name: The table's name: ``lake.flights``, ``flights``; by default the destination's last directory.

    Raises:
        InvalidOption: The name, or a quote in the destination, cannot be in a statement.
    """
    name = name or re.sub(r"\W", "_", destination.uri.rstrip("/").rpartition("/")[2])
    if not _NAME.fullmatch(name) or "'" in destination.uri:
        raise InvalidOption(
            f"{name!r} at {destination.uri} cannot be in a statement: give the table a name of letters,"
            " digits and _, with a dot after its database"
        )
    schema, _, table = name.rpartition(".")
    schema = schema.rpartition(".")[2] or "default"
    return _STATEMENTS[engine].format(name=name, schema=schema, table=table, at=destination)


#: A partition, by the values of its columns, outermost first.
Values = tuple[str, ...]

#: Most attempts, if other jobs commit during each of them.
_TRIES = 20


class Catalog(Protocol):
    """A table of a catalog. Methods are repeatable: they may add what exists and remove what is gone."""

    @property
    def name(self) -> str:
        """The table's name, for messages."""

    @property
    def location(self) -> str:
        """URI of the table's directory."""

    @property
    def columns(self) -> Sequence[str]:
        """The partition columns, outermost first."""

    def partitions(self) -> Collection[Values]:
        """Return the partitions that the catalog has."""

    def location_of(self, partition: Values) -> str:
        """Return the URI of the directory of a partition that the catalog has."""

    def add(self, partitions: Sequence[Values], directories: Sequence[str]) -> None:
        """Add partitions, with their directories relative to the table's."""

    def remove(self, partitions: Sequence[Values]) -> None:
        """Remove partitions, and leave their files alone."""


class RegistrationReport(Plain, Struct, frozen=True, kw_only=True):
    """What a registration has changed in a catalog.

    Attributes:
        destination: URI of the table.
        generation: The generation whose partitions the catalog has; 0 without a commit.
        partitions: Number of these partitions.
        added: Directories of the partitions that were added.
        removed: Directories of the partitions that were removed.
    """

    destination: str
    generation: int
    partitions: int
    added: list[str]
    removed: list[str]


def register_partitions(store: ObjectStore, catalog: Catalog) -> RegistrationReport:
    """Make the partitions of a catalog's table those that have files at the newest generation of its log.

    Before: any moment, also after an abort: Spark may have added and removed partitions for a write that was
    not committed. After: the catalog has the partitions of the newest commit. Partitions stay if they are
    elsewhere, or have files that no job of the log has written or taken. Repeatable, and safe to run beside
    commits and beside other registrations: the last to end has seen the newest commit.

    Args:
        store: The store of the table.
        catalog: The table in its catalog.

    Raises:
        InvalidOption: The catalog's table has no partition columns, or others than the directories; or a
            partition has two directories, or files that were replaced and are retained.
        DestinationChanged: Other jobs keep committing.
        InvalidRecord: The log is damaged.
    """
    place = Destination.parse(catalog.location)
    if not catalog.columns:
        raise InvalidOption(f"table {catalog.name} has no partition columns: there is nothing to register")
    added: set[str] = set()
    removed: set[str] = set()
    table = read_table(store, place)
    for _ in range(_TRIES):
        wanted, found = _wanted(store, place, table, catalog.columns), {*catalog.partitions()}
        if new := {values: directory for values, directory in wanted.items() if values not in found}:
            catalog.add(list(new), list(new.values()))
        gone = {}
        for values in sorted(found - wanted.keys()):
            directory = _below(place, catalog.location_of(values))
            if directory and not _has_files(store, place, table, directory):
                gone[values] = directory
        if gone:
            catalog.remove(list(gone))
        added.update(new.values())
        removed.update(gone.values())
        before, table = table, read_table(store, place)
        # A registration after a newer commit may have ended meanwhile, and this one may have undone it.
        if table.generation == before.generation:
            return RegistrationReport(
                destination=place.uri,
                generation=table.generation,
                partitions=len(table.live),
                added=sorted(added),
                removed=sorted(removed),
            )
    raise DestinationChanged(
        f"other jobs have committed to {place.uri} {_TRIES} times while its partitions were being registered"
        f" as {catalog.name}; register them again"
    )


def _wanted(
    store: ObjectStore, place: Destination, table: Table, columns: Sequence[str]
) -> dict[Values, str]:
    """Return the directories of a table by the values of their partition.

    Readers of a catalog list directories, so a directory that still has replaced files is refused.
    """
    freed = freed_objects(JobContext(store, Layout.of(place, new_uuid())), table)
    keys = [*(info.key for info in freed), *(key for one in table.retained.values() for key in one.unowned)]
    retained = {partition_of(place.relative(key) or "") for key in keys}
    retained.update(*(one.pieces for one in table.retained.values()))
    if crowded := sorted(retained & table.live.keys()):
        raise InvalidOption(
            f"partition {crowded[0]!r} of {place.uri} has files that generation {table.generation} or one"
            " before has replaced and retains: readers of a catalog list directories, and would read them"
            " beside the new ones. Commit without retain, or wait until a sweep has deleted them"
        )
    wanted: dict[Values, str] = {}
    for directory in sorted(table.live):
        try:
            values = hive_values(directory)
        except ValueError:
            values = {}
        # Glue and Hive keep the names of columns in lower case.
        if [name.lower() for name in values] != [name.lower() for name in columns]:
            raise InvalidOption(
                f"directory {directory!r} of {place.uri} is not a partition by {', '.join(columns)}, the"
                " partition columns of the catalog"
            )
        if (first := wanted.setdefault(tuple(values.values()), directory)) != directory:
            raise InvalidOption(
                f"directories {directory!r} and {first!r} of {place.uri} are one partition to a catalog,"
                " whose readers would see the files of one alone: write the rows of both anew, in one of them"
            )
    return wanted


def _below(place: Destination, uri: str) -> str:
    """Return the directory of a URI below a destination; empty if it is elsewhere."""
    try:
        bucket, key = split_uri(uri)
    except InvalidDestination:
        return ""
    return (place.relative(key) or "").rstrip("/") if bucket == place.bucket else ""


def _has_files(store: ObjectStore, place: Destination, table: Table, directory: str) -> bool:
    """Return whether a directory has data objects that no job of the log has written or taken.

    Files of jobs that are not in the table any more, or not yet, do not count. Without a log any object does.
    """
    known, taken = TableFiles.all_in(store, place, table, [directory]), table.unowned_in_place()
    found = store.list_objects(place.bucket, place.key(f"{directory}/"))
    named = (info for info in found if not table.head.number or owner_of(info.key) is None)
    others = (one.key for one in named if one not in known and taken.get(one.key) != one.etag)
    return any(is_data(place.relative(key) or "") for key in others)
