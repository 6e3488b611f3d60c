"""Ordinary mistakes of a write: the error's first line names the mistake and the cure. No JVM is needed."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from airflow_s3commit.spark import foreach_batch
from airflow_s3commit.spark.driver import target_of
from airflow_s3commit.spark.options import parse_options
from airflow_s3commit.spark.plan import plan_table
from airflow_s3commit.spark.reading import parse_read_options
from airflow_s3commit.store.credentials import StoreAddress
from tests.protocol.building import OURS

COLUMNS = (
    ("id", LongType()),
    ("Dt", StringType()),
    ("a", ArrayType(LongType())),
    ("raw", BinaryType()),
    ("months", YearMonthIntervalType()),
)


def write(given: dict[str, str], conf: dict[str, str], *columns: str, overwrite: bool = False) -> None:
    """Do what a write does before it reaches the store."""
    options = parse_options(given, overwrite=overwrite)
    target_of(options, OURS, conf.get)
    plan_table(StructType([StructField(*pair) for pair in COLUMNS if pair[0] in columns]), options)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"path": "/tmp/x"}, r"path='/tmp/x' .*is not an S3 URI; write it as s3://bucket/prefix/"),
        ({"path": "hdfs://a/b"}, r"is not an S3 URI; write it as s3://bucket/prefix/"),
        ({"path": "s3://"}, r"is not an S3 URI; write it as s3://bucket/prefix/"),
        ({"path": "s3://lake/a//b"}, r"has an empty element, '.' or '..' in its path"),
        ({"path": "s3://lake/t "}, r"path='s3://lake/t ' of s3commit: white space at its start or end"),
        ({"path": "s3://lake/{{ ds }}"}, r"'{' is for templates and patterns.*: name one place"),
        ({"path": "s3://lake/t/*"}, r"'\*' is for templates and patterns"),
        ({"path": "S3://lake/t"}, r"is not an S3 URI; write it as s3://bucket/prefix/"),
        ({"path": "https://lake.s3.amazonaws.com/t"}, r"is not an S3 URI; write it as s3://bucket/prefix/"),
        (
            {"aws_access_key_id": "AKIA"},
            r"cannot do option aws_access_key_id: .*environment, profile or role",
        ),
        ({"secretKey": "hidden"}, r"cannot do option secretKey: plans and logs show options"),
        ({"fs.s3a.endpoint": "x"}, r"cannot do option fs.s3a.endpoint: set it in the Spark conf"),
        ({"spark.sql.shuffle.partitions": "1"}, r"cannot do option spark.sql.*: set it in the Spark conf"),
        ({"mode": "overwrite"}, r'cannot do option mode: call \.mode\("append"\) or'),
        ({"partitionBy": "d"}, r"partition column 'd' is not among id, Dt"),
        ({"partitionBy": "`Dt`"}, r"partition column '`Dt`' is not among .*; write it without backticks: Dt"),
        ({"partitionBy": "Dt.day"}, r"'Dt.day' is not among .*; make a field of a struct a column first"),
        ({"partitionBy": "year(Dt)"}, r"'year\(Dt\)' is not among .*; name a column, not an expression"),
        ({"partitionBy": "Dtt"}, r"'Dtt' is not among id, Dt; did you mean Dt\?"),
        ({"endpointUrl": "localhost:9000"}, r"endpoint .* is no URL of a store: write it as http://host"),
        ({"endpointUrl": "http://u:p@h"}, r"endpoint .* holds a user name or password.*give them as"),
        ({"pathStyle": "maybe"}, r"pathStyle='maybe' of s3commit: neither true nor false"),
        ({"partition_by": "Dt"}, r"no option partition_by, did you mean partitionBy\?"),
        ({"partitionedBy": "Dt"}, r"no option partitionedBy, did you mean partitionBy\?"),
        ({"maxRecordPerFile": "1"}, r"no option maxRecordPerFile, did you mean maxRecordsPerFile\?"),
        ({"mergeSchema": "true"}, r"no option mergeSchema; its options are"),
        ({"replaceWhere": "dt=1"}, r"no option replaceWhere; its options are"),
        (
            {"parquet.encryption.footer.key": "k"},
            r"cannot do option parquet.encryption.footer.key: leave it out, or use Spark's own writer",
        ),
        (
            {"parquet.bloom.filter.enabled#id": "true"},
            r"cannot do option parquet.bloom.filter.enabled#id: leave it out",
        ),
        ({"partitionBy": "day"}, r"partition column 'day' is not among id, Dt"),
        ({"partitionBy": "Dt,,id"}, r"partitionBy='Dt,,id' of s3commit: a column name is empty"),
        ({"partitionBy": "Dt,dt"}, r"partitionBy='Dt,dt' of s3commit: a column is named twice"),
        ({"partitionBy": '["Dt"'}, r"partitionBy=.* of s3commit: not a JSON list of strings"),
        ({"partitionBy": "id,Dt"}, r"all columns are partition columns: no column would be left"),
        ({"format": "delta"}, r"format='delta' of s3commit: not one of parquet, orc, csv, json"),
        ({"compression": "lzo"}, r"compression='lzo' of s3commit: not one of .*snappy"),
        (
            {"compression": "snappy", "format": "csv"},
            r"csv files cannot have compression=snappy; use one of",
        ),
        ({"header": "true"}, r"option header is only for csv; the files' format is parquet"),
        ({"partBytes": "1m"}, r"partBytes='1m' of s3commit: S3 takes no parts under 5242880 bytes"),
        ({"maxRecordsPerFile": "many"}, r"maxRecordsPerFile='many' of s3commit: not a whole number"),
        ({"openFiles": "0"}, r"openFiles='0' of s3commit: less than 1"),
        ({"targetFileBytes": "128 megabytes"}, r"targetFileBytes=.*: not a size such as 33554432, 32m"),
        ({"committer": "fast"}, r"committer='fast' of s3commit: not one of directory, partitioned, magic"),
        ({"conflictMode": "merge"}, r"conflictMode='merge' of s3commit: not one of fail, append, replace"),
        ({"partitionOverwriteMode": "all"}, r"partitionOverwriteMode='all' .*not one of static, dynamic"),
        ({"objectTags": "team=a"}, r"objectTags='team=a' of s3commit: not a JSON object of strings, such as"),
        ({"sse": "kms"}, r"sse='kms' is not 'AES256' or 'aws:kms'"),
    ],
)
def test_a_wrong_option_is_named_with_its_cure(given: dict[str, str], says: str) -> None:
    """The first line has the option, its value, and what it can be."""
    with pytest.raises(Exception, match=says) as error:
        write({"path": "s3://lake/t", **given}, {}, "id", "Dt")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({}, r"no destination: call \.save\(.*INSERT INTO t WITH \(path = 's3://bucket/table', part"),
        (
            {"spark.s3commit.job.id": OURS},
            r"names a job but not spark.s3commit.job.destination.*set all",
        ),
        ({"spark.s3commit.endpoint.url": "localhost:1"}, r"no URL of a store: write it as http://host"),
        ({"spark.s3commit.path.style": "x"}, r"spark.s3commit.path.style='x' is neither true nor false"),
    ],
)
def test_a_wrong_conf_is_named_with_its_cure(conf: dict[str, str], says: str) -> None:
    """The first line has the key of the conf, or what the write lacks."""
    with pytest.raises(Exception, match=says) as error:
        write({}, conf, "id", "Dt")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "column", "says"),
    [
        (
            {"partitionBy": "a"},
            "a",
            r"'a' has the type list.*partition column cannot have; cast it",
        ),
        ({"partitionBy": "raw"}, "raw", r"'raw' has the type binary, .*; cast it to string first"),
        ({}, "months", r"'months' has the type interval year.*write_pending can write it to parquet"),
        ({"format": "orc"}, "months", r"'months' has the type interval year"),
    ],
)
def test_a_wrong_column_is_named_with_its_cure(given: dict[str, str], column: str, says: str) -> None:
    """The first line has the column, its type, and what to do with it."""
    with pytest.raises(ValueError, match=says) as error:
        write({"path": "s3://lake/t", **given}, {}, "id", column)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, r"nothing to read: pass the destination to \.load\(\), or in SQL .* WITH \(path = "),
        (
            {"owner": "root", "path": "s3://lake/t"},
            r"a table of SQL .*: name the columns, CREATE TABLE t \(id",
        ),
        (
            {"path": "s3://lake/t", "generatoin": "3"},
            "no option generatoin for reading, did you mean generation",
        ),
    ],
)
def test_a_wrong_read_is_named_with_its_cure(options: dict[str, str], says: str) -> None:
    """The first line says what a read lacks, in SQL too."""
    with pytest.raises(Exception, match=says) as error:
        parse_read_options(options, StoreAddress())
    assert len(str(error.value).splitlines()) == 1


def test_a_wrong_mode_is_named_with_its_cure() -> None:
    """A save mode that contradicts an option, and one that a stream's batches cannot have, are named."""
    with pytest.raises(Exception, match=r'overwrite contradicts conflictMode=fail; use \.mode\("append"\)'):
        write({"path": "s3://lake/t", "conflictMode": "fail"}, {}, "id", overwrite=True)
    mode: Any = "complete"
    with pytest.raises(Exception, match=r"mode 'complete' is not supported .*use append or overwrite"):
        foreach_batch(destination="s3://lake/t", mode=mode)
