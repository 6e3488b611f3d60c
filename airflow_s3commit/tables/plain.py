"""Writing a table from plain Python, with the files that Spark's door would leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_s3commit.tables.forms import form_of
from airflow_s3commit.tables.options import parse_table_options
from airflow_s3commit.tables.partitions import resolve_columns
from airflow_s3commit.tables.rows import rows_of
from airflow_s3commit.tables.write import TablePlan, WrittenTable, write_batches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_s3commit.tables.sink import FileOpener

__all__ = ["write_table"]


def write_table(
    opener: FileOpener,
    data: Any,
    *,
    stem: str,
    numbers: dict[str, int],
    partition_by: Sequence[str] = (),
    format: str | None = None,  # noqa: A002 - as Spark calls it
    options: Mapping[str, str] | None = None,
) -> WrittenTable:
    """Write a table to files; every file is closed afterwards.

    Args:
        opener: Opens files; what it has opened is its own to discard if this raises.
        data: See `airflow_s3commit.tables.rows.rows_of`.
        stem: First part of the file names.
        numbers: How many files of that stem each directory has; counted on.
        partition_by: Partition columns, outermost first.
        format: ``parquet`` (the default), ``orc``, ``csv`` or ``json``.
        options: See `airflow_s3commit.tables.options.TABLE_OPTIONS`.

    Raises:
        InvalidOption: An option is unknown, malformed, or not one of the format's.
        UnsupportedColumn: A column, or a value, cannot be written.
        UnsupportedPartition: A partition column is missing, or has no text.
        TypeError: The data is no table.
        S3CommitError: A file could not be written.

    """
    said = parse_table_options(options or {}, format=format, partition_by=partition_by)
    rows = rows_of(data)
    columns = resolve_columns(rows.schema, said.partition_by)
    form = form_of(said)
    in_files = [field for field in rows.schema if field.name not in columns]
    form.check(rows.schema.empty_table().select([field.name for field in in_files]).schema)
    plan = TablePlan(rows.schema, columns, form, said)
    return write_batches(opener, rows, plan, stem, empty_file=True, numbers=numbers)
