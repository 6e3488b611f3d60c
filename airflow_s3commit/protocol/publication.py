"""Publish a table to other engines, as it is and from then on, and tell them where it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import InvalidOption, NoSuchKey
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.steps.fold import newest_entry, read_table
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.protocol.steps.publish import delta_columns, missing_versions, publish
from airflow_s3commit.protocol.write_job import write_job
from airflow_s3commit.store.base import ObjectStore

_STATEMENTS: Mapping[str, str] = {
    "athena": """\
CREATE EXTERNAL TABLE {name}
LOCATION '{uri}'
TBLPROPERTIES ('table_type' = 'DELTA');""",
    "databricks": """\
CREATE TABLE IF NOT EXISTS {name}
USING DELTA
LOCATION '{uri}';""",
    "duckdb": """\
INSTALL delta;
LOAD delta;
CREATE OR REPLACE VIEW {name} AS SELECT * FROM delta_scan('{uri}');""",
    "snowflake": """\
-- first: an external volume {bucket} that allows reading s3://{bucket}/
CREATE CATALOG INTEGRATION IF NOT EXISTS delta_files
  CATALOG_SOURCE = OBJECT_STORE TABLE_FORMAT = DELTA ENABLED = TRUE;
CREATE ICEBERG TABLE {name}
  CATALOG = 'delta_files' EXTERNAL_VOLUME = '{bucket}' BASE_LOCATION = '{prefix}' AUTO_REFRESH = TRUE;""",
    "trino": """\
-- first: a catalog delta of the connector delta_lake, with delta.register-table-procedure.enabled=true
CALL delta.system.register_table(
  schema_name => '{schema}', table_name => '{table}', table_location => '{uri}');""",
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


def publish_table(
    store: ObjectStore,
    destination: str | Destination,
    *,
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
) -> PublishReport:
    """Publish a table as versions of a Delta table, from now on; or write the versions that are missing.

    The first version has all files of the table. It is that of a commit without files, so the table gets a
    new generation. Repeatable, also beside jobs at work.

    Raises:
        NoSuchKey: There is no log: no job was set up there.
        InvalidOption: Delta cannot have the table's files, columns or names; or it has no columns yet.
        InvalidRecord: Another program wrote a version.
        OutcomeUnknown: A response was lost: publish it again.
    """
    home = Destination.of(destination)
    context = JobContext(store, Layout.of(home, new_uuid()), clock or SystemClock(), new_id)
    read = newest_entry(store, home)
    if read is None:
        raise NoSuchKey(
            f"{home.uri} has no log: no job was set up there. A job publishes it: publish='delta'"
        )
    newest, written = read.entry, 0
    if not newest.published:
        if not delta_columns(read_table(store, home)).fields:
            raise InvalidOption(
                f"{home.uri} has no columns yet: let its first job publish it, publish='delta'"
            )
        options = JobOptions(conflict_mode="append", publish="delta")
        with write_job(home, store=store, job_options=options, name="publish", clock=clock) as writer:
            pass
        assert writer.manifest is not None
        newest, written = read_entry(store, home, writer.manifest.generation).entry, 1
    assert newest.delta_version is not None
    for version in missing_versions(store, home, newest.delta_version):
        publish(context, read_entry(store, home, newest.published + version).entry)
        written += 1
    return PublishReport(
        destination=home.uri, generation=newest.number, version=newest.delta_version, written=written
    )


def ddl(engine: str, destination: Destination, name: str = "") -> str:
    """Return the statements by which an engine gets to know a table that is published as a Delta table.

    Args:
        engine: One of `ENGINES`.
        name: Its name in the engine, with or without a database: ``lake.flights``. By default that of the
            destination's last directory.

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
    return _STATEMENTS[engine].format(
        name=name,
        schema=schema.rpartition(".")[2] or "default",
        table=table,
        uri=destination.uri,
        bucket=destination.bucket,
        prefix=destination.prefix,
    )
