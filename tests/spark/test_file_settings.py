"""A session's settings of files are honoured or refused by name, and never ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.spark import register, write_pending
from airflow_s3commit.spark.file_settings import with_file_settings
from airflow_s3commit.spark.options import WriteOptions, parse_options
from tests.spark.conftest import write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.conftest import Lake

#: Hadoop's property that has Parquet files encrypted.
CRYPTO = "parquet.crypto.factory.class"


def set_by(conf: dict[str, str], **options: str) -> WriteOptions:
    """Return options as a session with this conf completes them."""
    return with_file_settings(parse_options(options, overwrite=False), conf.get)


@pytest.mark.parametrize(
    ("conf", "options", "read", "expected"),
    [
        ({"spark.sql.parquet.compression.codec": "ZSTD"}, {}, lambda table: table.codec, "zstd"),
        (
            {"spark.sql.parquet.compression.codec": "zstd"},
            {"format": "orc"},
            lambda table: table.codec,
            "zstd",
        ),
        ({"spark.sql.orc.compression.codec": "lz4"}, {"format": "orc"}, lambda table: table.codec, "lz4"),
        ({"spark.sql.orc.compression.codec": "lz4"}, {}, lambda table: table.codec, "snappy"),
        (
            {"spark.sql.parquet.compression.codec": "zstd"},
            {"compression": "gzip"},
            lambda table: table.codec,
            "gzip",
        ),
        ({"spark.sql.files.maxRecordsPerFile": "7"}, {}, lambda table: table.max_records_per_file, 7),
        (
            {"spark.sql.files.maxRecordsPerFile": "7"},
            {"maxRecordsPerFile": "0"},
            lambda table: table.max_records_per_file,
            0,
        ),
        ({"spark.sql.parquet.outputTimestampType": "INT96"}, {}, lambda table: table.int96, True),
        (
            {"spark.sql.parquet.outputTimestampType": "INT96"},
            {"outputTimestampType": "TIMESTAMP_MICROS"},
            lambda table: table.int96,
            False,
        ),
        ({"parquet.block.size": "1048576"}, {}, lambda table: table.row_group_bytes, 1 << 20),
        (
            {"spark.hadoop.orc.stripe.size": "1048576"},
            {"format": "orc"},
            lambda table: table.row_group_bytes,
            1 << 20,
        ),
    ],
)
def test_what_spark_heeds_is_heeded(
    conf: dict[str, str], options: dict[str, str], read: Any, expected: object
) -> None:
    """A setting is used for files of its format, unless the write's own option is given."""
    assert read(set_by(conf, **options).table) == expected


@pytest.mark.parametrize(
    ("key", "value", "file_format", "says"),
    [
        (CRYPTO, "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory", "parquet", "encrypted"),
        ("spark.hadoop.parquet.encryption.footer.key", "k1", "parquet", "would not be encrypted"),
        ("parquet.encryption.column.keys", "k2:a", "parquet", "would not be encrypted"),
        ("orc.encrypt", "pii:a", "orc", "would not be encrypted"),
        ("spark.sql.parquet.compression.codec", "lzo", "parquet", "set the write's option compression"),
        ("spark.sql.parquet.compression.codec", "zlib", "parquet", "option compression to one of snappy"),
        (
            "spark.sql.parquet.outputTimestampType",
            "TIMESTAMP_MILLIS",
            "parquet",
            "option outputTimestampType",
        ),
        ("spark.sql.parquet.writeLegacyFormat", "true", "parquet", "unset it"),
        ("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY", "parquet", "Spark's own writer"),
        ("spark.sql.parquet.fieldId.write.enabled", "false", "parquet", "unset it"),
        ("parquet.bloom.filter.enabled", "true", "parquet", "unset it"),
        ("parquet.page.size", "65536", "parquet", "unset it"),
        ("orc.bloom.filter.columns", "a", "orc", "unset it"),
        ("mapreduce.output.fileoutputformat.compress", "true", "csv", "unset it"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(key: str, value: str, file_format: str, says: str) -> None:
    """The error names the setting, its value and what to do; files of other formats are written."""
    shown = f"{key.removeprefix('spark.hadoop.')}={value}, which s3commit cannot do for {file_format}"
    with pytest.raises(InvalidOption, match=says) as error:
        set_by({key: value}, format=file_format)
    assert str(error.value).startswith(f"the session sets {shown}")
    other = "parquet" if file_format != "parquet" else "json"
    assert set_by({key: value}, format=other) == parse_options({"format": other}, overwrite=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.parquet.writeLegacyFormat", "False"),
        ("spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED"),
        ("parquet.writer.version", "PARQUET_1_0"),
        ("parquet.page.size", "1048576"),
        (CRYPTO, " "),
        ("spark.sql.files.maxPartitionBytes", "1"),
    ],
)
def test_defaults_are_silent(key: str, value: str) -> None:
    """A setting with Spark's default value, or of reads, changes and refuses nothing."""
    assert set_by({key: value}) == parse_options({}, overwrite=False)


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_settings_of_a_session_reach_both_doors(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """What the session or its Hadoop configuration sets is honoured, and encryption is never ignored."""
    frame = spark.range(10, numPartitions=1)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    session = {"spark.sql.parquet.compression.codec": "zstd", "spark.sql.files.maxRecordsPerFile": "4"}
    try:
        for key, value in session.items():
            spark.conf.set(key, value)
        write(frame, lake)
        write_pending(frame, destination=lake.uri, mode="append", options=lake.options)
        for path in lake.download(tmp_path).rglob("*.parquet"):
            metadata = pq.ParquetFile(path).metadata
            assert metadata.row_group(0).column(0).compression == "ZSTD"
            assert metadata.num_rows in (4, 2)
        assert len(lake.visible()) == 6
        hadoop.set(CRYPTO, "org.example.Factory")
        register(spark)
        with pytest.raises(Exception, match="would not be encrypted"):
            write(frame, lake)
        with pytest.raises(InvalidOption, match="would not be encrypted"):
            write_pending(frame, destination=lake.uri, mode="append", options=lake.options)
        assert len(lake.visible()) == 6
        assert lake.pending() == []
    finally:
        hadoop.unset(CRYPTO)
        for key in (*session, "spark.sql.execution.arrow.maxRecordsPerBatch"):
            spark.conf.unset(key)
        spark.conf.unset("spark.sql.execution.arrow.maxBytesPerBatch")
        register(spark)
