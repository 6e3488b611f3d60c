"""The statements by which engines get to know a table that is published for them, each to be run once."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.protocol.model.destination import Destination

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
