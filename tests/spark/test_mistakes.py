"""Ordinary mistakes in a write: the error's first line names the mistake and its remedy. No JVM is needed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from airflow_s3commit import Job, JobOptions, MemoryStore
from airflow_s3commit.exceptions import InvalidOption, JobMismatch
from airflow_s3commit.spark import foreach_batch
from airflow_s3commit.spark.driver import OVERWRITE_MODE, Target, ready_job, target_of
from airflow_s3commit.spark.options import OTHER_WRITER, WRITE_OPTIONS, parse_options
from airflow_s3commit.spark.session import job_from_conf
from airflow_s3commit.spark.task import plan_table
from airflow_s3commit.store.credentials import StoreAddress
from airflow_s3commit.tables import UnsupportedColumn
from tests.protocol.building import OURS
from tests.spark.test_plan import nested

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import DataType

    from airflow_s3commit.protocol.model.job import Committer
    from airflow_s3commit.tables.options import Option

COLUMNS = (
    ("id", LongType()),
    ("Dt", StringType()),
    ("a", ArrayType(LongType())),
    ("raw", BinaryType()),
    ("months", YearMonthIntervalType()),
    ("folded", StringType("UTF8_LCASE")),
)


def write(given: dict[str, str], conf: dict[str, str], *columns: str, overwrite: bool = False) -> None:
    """Do what a write does before it contacts the store."""
    options = parse_options(given, overwrite=overwrite)
    target_of(options, OURS, conf, job_from_conf(conf.get))
    plan_table(StructType([StructField(*pair) for pair in COLUMNS if pair[0] in columns]), options)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"path": "/tmp/x"}, r"path='/tmp/x' .*is not an S3 URI; write it as s3://bucket/prefix/"),
        ({"path": "hdfs://a/b"}, r"is not an S3 URI; write it as s3://bucket/prefix/"),
        ({"path": "s3://"}, r"is not an S3 URI; write it as s3://bucket/prefix/"),
        ({"path": "s3://lake/a//b"}, r"has an empty element, '.' or '..' in its path"),
        ({"path": "s3://lake/t "}, r"path='s3://lake/t ' of s3commit: whitespace at its start or end"),
        ({"path": "s3://lake/{{ ds }}"}, r"'{' is for templates and patterns.*: name one place"),
        ({"path": "s3://lake/t/*"}, r"'\*' is for templates and patterns"),
        ({"path": "S3://lake/t"}, r"is not an S3 URI; write it as s3://bucket/prefix/"),
        ({"path": "https://lake.s3.amazonaws.com/t"}, r"is not an S3 URI; write it as s3://bucket/prefix/"),
        ({"secretKey": "hidden"}, r"no option secretKey[^h]*its options are"),
        ({"fs.s3a.endpoint": "x"}, r"no option fs.s3a.endpoint"),
        ({"mode": "overwrite"}, r"no option mode"),
        ({"partitionBy": "d"}, r"partition column 'd' is not among id, Dt"),
        ({"partitionBy": "`Dt`"}, r"'`Dt`' is not among .*; name one of the columns, without backticks"),
        (
            {"endpointUrl": "localhost:9000"},
            r"endpoint .* is not the URL of a store: write it as http://host",
        ),
        ({"endpointUrl": "http://u:p@h"}, r"endpoint .* holds a user name or password.*give them as"),
        ({"pathStyle": "maybe"}, r"pathStyle='maybe' of s3commit: neither true nor false"),
        ({"partition_by": "Dt"}, r"no option partition_by, did you mean partitionBy\?"),
        ({"partitionedBy": "Dt"}, r"no option partitionedBy, did you mean partitionBy\?"),
        ({"maxRecordPerFile": "1"}, r"no option maxRecordPerFile, did you mean maxRecordsPerFile\?"),
        ({"mergeSchema": "true"}, r"no option mergeSchema; its options are"),
        ({"replaceWhere": "dt=1"}, r"no option replaceWhere; its options are"),
        ({"parquet.encryption.footer.key": "k"}, r"no option parquet.encryption.footer.key"),
        ({"partitionBy": "day"}, r"partition column 'day' is not among id, Dt"),
        ({"partitionBy": "Dt,,id"}, r"partitionBy='Dt,,id' of s3commit: a column name is empty"),
        ({"partitionBy": "Dt,dt"}, r"partitionBy='Dt,dt' of s3commit: a column is named twice"),
        ({"partitionBy": '["Dt"'}, r"partitionBy=.* of s3commit: not a JSON list of strings"),
        ({"partitionBy": "id,Dt"}, r"all columns are partition columns, so none is left"),
        (
            {"format": "delta"},
            r"format='delta' of s3commit: .*only parquet in Python; use Spark's own writer",
        ),
        ({"compression": "lzo"}, r"compression='lzo' of s3commit: not one of .*snappy"),
        ({"header": "true", "FORMAT": "csv"}, r"format='csv' of s3commit: .*only parquet in Python"),
        ({"maxRecordsPerFile": "many"}, r"maxRecordsPerFile='many' of s3commit: not a whole number"),
        ({"openFiles": "0"}, r"openFiles='0' of s3commit: less than 1"),
        ({"targetFileBytes": "128 megabytes"}, r"targetFileBytes=.*: not a size such as 33554432, 32m"),
        ({"committer": "fast"}, r"committer='fast' of s3commit: not one of directory, partitioned, magic"),
        ({"partitionOverwriteMode": "all"}, r"partitionOverwriteMode='all' .*not one of static, dynamic"),
        ({"objectTags": "team=a"}, r"objectTags='team=a' of s3commit: not a JSON object of strings, such as"),
        ({"sse": "kms"}, r"sse='kms' is not 'AES256' or 'aws:kms'"),
    ],
)
def test_a_wrong_option_is_named_with_a_remedy(given: dict[str, str], says: str) -> None:
    """The first line has the option, its value, and its valid values."""
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
        ({"spark.s3commit.endpoint.url": "localhost:1"}, r"not the URL of a store: write it as http://host"),
        ({"spark.s3commit.path.style": "x"}, r"spark.s3commit.path.style='x' is neither true nor false"),
    ],
)
def test_a_wrong_conf_is_named_with_a_remedy(conf: dict[str, str], says: str) -> None:
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
        ({"partitionBy": "folded"}, "folded", r"'folded' has the type string collate.*; cast it to string"),
        ({}, "months", r"'months' has or holds the type interval year.*use Spark's own writer"),
    ],
)
def test_a_wrong_column_is_named_with_a_remedy(given: dict[str, str], column: str, says: str) -> None:
    """The first line has the column, its type, and what to do with it."""
    with pytest.raises(ValueError, match=says) as error:
        write({"path": "s3://lake/t", **given}, {}, "id", column)
    assert len(str(error.value).splitlines()) == 1


def every_type() -> Iterator[DataType]:
    """Yield one of each type that this PySpark has."""
    made = {
        types.ArrayType: lambda: types.ArrayType(LongType()),
        types.MapType: lambda: types.MapType(StringType(), LongType()),
        types.StructType: lambda: StructType([StructField("x", LongType())]),
        types.CharType: lambda: types.CharType(3),
        types.VarcharType: lambda: types.VarcharType(3),
        types.GeometryType: lambda: types.GeometryType(4326),
        types.GeographyType: lambda: types.GeographyType(4326),
    }
    todo = [types.DataType]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        is_abstract = bool(kind.__subclasses__()) and kind is not StringType
        if not is_abstract and kind not in (types.StructField, types.UserDefinedType):
            yield made.get(kind, kind)()


#: Types that no writer of Spark accepts either.
NOBODYS = r"the type .*without a type of its values"


def test_every_type_is_planned_or_refused_by_name() -> None:
    """A refusal is one line that names the column and ends with a remedy, if possible Spark's own writer."""
    options, refused = parse_options({}, overwrite=False), set()
    for plain in {str(kind): kind for kind in every_type()}.values():
        for kind in nested(plain):
            frame = StructType([StructField("id", LongType()), StructField("c", kind)])
            try:
                plan_table(frame, options)
            except UnsupportedColumn as error:
                refused.add(plain.typeName())
                line = str(error)
                assert re.match(r"column 'c' has( or holds)? the type \w+", line), line
                assert plain.simpleString() in line, line
                assert line.endswith(OTHER_WRITER) or re.search(NOBODYS, line), line
                assert "\n" not in line
    assert refused == {
        "geometry", "geography", "time", "char", "varchar", "interval", "yearmonthinterval", "void", "variant"
    }  # fmt: skip


@pytest.mark.parametrize("option", WRITE_OPTIONS, ids=lambda option: option.name)
def test_every_option_is_refused_by_name(option: Option) -> None:
    """An invalid value gives one line with the option and the valid values."""
    # The store knows its storage classes, and is asked before a job begins.
    odd = {"partitionBy": "[odd", "storageClass": "ödd"}.get(option.name, "{ odd")
    given = {"path": "s3://lake/t", option.name: odd}
    with pytest.raises(InvalidOption, match=rf"option {option.name}\b") as error:
        write(given, {}, "id", "Dt")
    cure = r"not one of|not of|such as|give|write it|is not|goes with|name one|remove|only"
    assert re.search(cure, str(error.value))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("job_mode", ["append", "replace", "fail"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "given",
    [{}, *({"partitionOverwriteMode": mode} for mode in ("static", "dynamic"))],
)
def test_every_mode_fits_the_job_or_is_refused_by_name(
    job_mode: Any, whole: bool, static: bool, overwrite: bool, given: dict[str, str]
) -> None:
    """A save mode or option that contradicts the job gives one line with both, and lets the job decide."""
    committer: Committer = "directory" if whole else "partitioned"
    store = MemoryStore()
    settings = JobOptions(conflict_mode=job_mode, committer=committer)
    job = Job.setup(store, "s3://lake/t/", options=settings, job_id=OURS)
    target = Target(job.reference, "load", "1", own=False, store=StoreAddress(), session_static=static)
    try:
        options = parse_options({"partitionBy": "Dt", **given}, overwrite=overwrite)
        ready_job(target, options, job)
    except (InvalidOption, JobMismatch) as error:
        line = str(error)
        named = [f"{name}={value}" for name, value in given.items()]
        shown = ["overwrite", OVERWRITE_MODE, *named]
        assert any(each in line for each in shown), line
        assert re.search(r'use \.mode\("append"\)', line), line
        assert "\n" not in line
    else:
        assert not overwrite or job_mode == "replace"
        chosen = given.get("partitionOverwriteMode")
        assert job_mode != "replace" or chosen in (None, "static" if whole else "dynamic")


def test_a_wrong_mode_is_named_with_a_remedy() -> None:
    """A save mode that a stream's batches cannot have is named."""
    mode: Any = "complete"
    with pytest.raises(Exception, match=r"mode 'complete' is not supported .*use append or overwrite"):
        foreach_batch(destination="s3://lake/t", mode=mode)
