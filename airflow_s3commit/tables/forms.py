"""From the options of a write to how its files are encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_s3commit.tables.orc import OrcForm
from airflow_s3commit.tables.parquet import ParquetForm
from airflow_s3commit.tables.text_file import TextForm

if TYPE_CHECKING:
    from airflow_s3commit.tables.options import TableOptions
    from airflow_s3commit.tables.sink import FileForm
    from airflow_s3commit.tables.spark_footer import SparkFooter

__all__ = ["form_of"]


def form_of(options: TableOptions, spark: SparkFooter | None = None) -> FileForm:
    """Return how the files are encoded.

    Args:
        options: The options of the write.
        spark: What the files say of Spark, where it writes them.

    """
    if options.format == "parquet":
        return ParquetForm(options.codec, spark, options.int96)
    if options.format == "orc":
        return OrcForm(options.codec, spark, options.row_group_bytes)
    return TextForm(options.format, options.codec, options.text)
