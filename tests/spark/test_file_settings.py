"""A session's settings of files are honoured or refused by name, and never ignored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.spark import register, write_pending
from airflow_s3commit.spark.file_settings import SETTINGS, column_settings, with_file_settings
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
        ("parquet.encryption.key.access.token", "secret", "parquet", "would not be encrypted"),
        ("orc.encrypt", "pii:a", "orc", "would not be encrypted"),
        ("parquet.bloom.filter.expected.ndv", "100", "parquet", "unset it"),
        ("parquet.column.statistics.enabled", "false", "parquet", "unset it"),
        ("orc.compression.strategy", "COMPRESSION", "orc", "unset it"),
        ("spark.sql.orc.impl", "hive", "orc", "Spark's own writer"),
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
        ("zlib.compress.level", "BEST_SPEED", "parquet", "unset it"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(key: str, value: str, file_format: str, says: str) -> None:
    """The error names the setting, its value and what to do; files of other formats are written."""
    # A key of encryption may have a secret.
    value_shown = "" if "encrypted" in says else f"={value}"
    shown = f"{key.removeprefix('spark.hadoop.')}{value_shown}, which s3commit cannot do for {file_format}"
    with pytest.raises(InvalidOption, match=says) as error:
        set_by({key: value}, format=file_format)
    assert str(error.value).startswith(f"the session sets {shown}")
    other = "parquet" if file_format != "parquet" else "orc"
    assert set_by({key: value}, format=other) == parse_options({"format": other}, overwrite=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.parquet.writeLegacyFormat", "False"),
        ("spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED"),
        ("parquet.writer.version", "PARQUET_1_0"),
        ("parquet.page.size", "1048576"),
        ("zlib.compress.level", "DEFAULT_COMPRESSION"),
        (CRYPTO, " "),
        ("spark.sql.files.maxPartitionBytes", "1"),
    ],
)
def test_defaults_are_silent(key: str, value: str) -> None:
    """A setting with Spark's default value, or of reads, changes and refuses nothing."""
    assert set_by({key: value}) == parse_options({}, overwrite=False)


def test_settings_of_columns_and_of_hives_names_are_found() -> None:
    """A key for one column is refused whatever that of the others says, and ORC's keys by Hive's names."""
    said = {"spark.hadoop.parquet.bloom.filter.enabled#a.b": "true", "parquet.bloom.filter.enabled": "false"}
    assert column_settings(said) == {"parquet.bloom.filter.enabled": "true"}
    assert column_settings({"parquet.enable.dictionary#a": "true", "parquet.page.size": "1"}) == {}
    with pytest.raises(InvalidOption, match=r"sets orc\.row\.index\.stride=5, which"):
        set_by({"hive.exec.orc.default.row.index.stride": "5"}, format="orc")
    honoured = set_by({"spark.hadoop.hive.exec.orc.default.stripe.size": "1048576"}, format="orc")
    assert honoured.table.row_group_bytes == 1 << 20


#: Settings that change nothing in the files of a write, by the reason.
WITHOUT_EFFECT = {
    "reads": (
        r"spark\.sql\.parquet\.(aggregatePushdown|binaryAsString|columnarReader.*|enable.*Reader|fieldId\.read.*"
        r"|filterPushdown.*|ignoreVariantAnnotation|inferTimestampNTZ.*|int96As.*|int96Timestamp.*|mergeSchema"
        r"|.*RebaseModeInRead|pushdown.*|reader\..*|recordLevelFilter.*|respectSummaryFiles)",
        r"spark\.sql\.orc\.(aggregatePushdown|columnarReaderBatchSize|enable.*Reader|filterPushdown|mergeSchema)",
        r"spark\.sql\.files\.(archive.*|ignore.*|maxPartition.*|minPartitionNum|openCostInBytes)",
        r"spark\.sql\.sources\.(binaryFile.*|bucketing.*|fileCompressionFactor|ignoreDataLocality"
        r"|parallelPartitionDiscovery.*|partitionColumnTypeInference.*|structPredicateDecompose.*|useList.*"
        r"|useV1SourceList|v2\..*|validatePartitionColumns|disabledJdbc.*)",
        r"orc\.(use\.zerocopy|skip\.corrupt\.data|tolerate.*|bloom\.filter\.ignore.*|max\.file\.length|mapred.*|include.*"
        r"|kryo.*|sarg.*|force.*|schema.*|filter.*|max\.disk.*|min\.disk.*|proleptic\.gregorian\.default)",
    ),
    "the commit, which is this package's own": (
        r"spark\.sql\.(sources\.(commitProtocolClass|outputCommitterClass)|parquet\.output\.committer\.class)",
    ),
    "heeded by `spark.overwrite`": (r"spark\.sql\.sources\.partitionOverwriteMode",),
    "text, which Spark renders itself": (r"spark\.sql\.files\.supportSecondOffsetFormat",),
    "tables of a catalog, and a format that is not named": (
        r"spark\.sql\.sources\.(default|schemaStringLengthThreshold)",
    ),
    "memory and checks while writing": (
        r"parquet\.(validation|memory\..*|compression\.codec\.zstd\.(workers|bufferPool\.enabled))",
        r"spark\.sql\.orc\.columnarWriterBatchSize",
        r"orc\.(memory\.pool|rows\.between\.memory\.checks|row\.batch\.size|row\.child\.limit"
        r"|stripe\.size\.check\.ratio|dictionary\.implementation|overwrite\.output\.file|base\.delta\.ratio)",
    ),
    "blocks, which S3 does not have": (
        r"parquet\.writer\.max-padding",
        r"orc\.(block\..*|write\.variable\.length\.blocks)",
    ),
    "bloom filters' size, if there are any": (
        r"parquet\.bloom\.filter\.(max\.bytes|fpp|adaptive\.enabled|candidates\.number)",
        r"orc\.(bloom\.filter\.(fpp|write\.version)|default\.bloom\.fpp)",
    ),
    "set by Spark itself for each write": (r"parquet\.(compression|write\.support\.class)", r"orc\.compress"),
}

#: parquet-java's classes whose constants are the keys of its writer.
PARQUETS = (
    "hadoop.ParquetOutputFormat",
    "hadoop.codec.ZstandardCodec",
    "crypto.EncryptionPropertiesFactory",
    "crypto.keytools.KeyToolkit",
    "crypto.keytools.PropertiesDrivenCryptoFactory",
)


def settings_of(spark: SparkSession) -> set[str]:
    """Return the keys that this Spark, its parquet-java and its ORC know."""
    jvm: Any = spark._jvm
    conf = getattr(getattr(jvm.org.apache.spark.sql.internal, "SQLConf$"), "MODULE$")
    registry = conf.getConfigEntries().iterator()
    found = set()
    while registry.hasNext():
        found.add(registry.next().key())
    for name in PARQUETS:
        for constant in jvm.java.lang.Class.forName(f"org.apache.parquet.{name}").getDeclaredFields():
            if constant.getType().getName() == "java.lang.String":
                constant.setAccessible(True)
                found.add(constant.get(None))
    for each in jvm.org.apache.orc.OrcConf.values():
        found |= {each.getAttribute(), each.getHiveConfName()} - {None}
    areas = ("parquet.", "orc.", *(f"spark.sql.{area}." for area in ("parquet", "orc", "files", "sources")))
    return {key for key in found if key.startswith(areas)}


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_every_setting_that_spark_knows_is_decided(spark: SparkSession) -> None:
    """A setting that a new Spark, parquet-java or ORC brings is honoured, refused, or known to do nothing."""
    known = settings_of(spark)
    harmless = [pattern for patterns in WITHOUT_EFFECT.values() for pattern in patterns]
    idle = {key for key in known for pattern in harmless if re.fullmatch(pattern, key)}
    assert known - idle - set(SETTINGS) == set()
    assert idle & set(SETTINGS) == set()
    encryption = {key for key in known if key.startswith(("parquet.encryption.", "parquet.crypto."))}
    assert len(encryption) > 10
    for key in encryption:
        with pytest.raises(InvalidOption, match="would not be encrypted"):
            set_by({key: "x"})


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
