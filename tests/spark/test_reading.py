"""`read_table` in a real Spark session, with S3A on a real S3 server."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from pyspark.sql.types import IntegerType, StructField, StructType, UserDefinedType

from airflow_s3commit import compact, write_job, write_table
from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.protocol.model.sealed_job import WrittenColumns
from airflow_s3commit.reader import UnreadableFiles, UnreadablePartitions, dataset
from airflow_s3commit.spark import read_table, register_partitions
from airflow_s3commit.tables.columns import ROW_METADATA
from tests.spark.conftest import Lake, fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.seaweedfs, pytest.mark.xdist_group("spark")]

#: What Spark notes of a column that a table declares with a default.
DEFAULT = {"CURRENT_DEFAULT": "42", "EXISTS_DEFAULT": "42"}

RAW_TEXTS = "spark.sql.parser.escapedStringLiterals"
IGNORES_LOGS = "spark.sql.streaming.fileStreamSink.ignoreMetadata"
IGNORES_MISSING = "spark.sql.files.ignoreMissingFiles"


@pytest.fixture
def spark(spark_with_s3a: SparkSession) -> Iterator[SparkSession]:
    """Return the session; what a test sets is unset after it."""
    yield spark_with_s3a
    for name in (
        IGNORES_LOGS,
        IGNORES_MISSING,
        RAW_TEXTS,
        "spark.sql.files.maxPartitionBytes",
        "spark.sql.caseSensitive",
    ):
        spark_with_s3a.conf.unset(name)


def rows_of(frame: DataFrame) -> list[Any]:
    """Return the rows in the order of their ids."""
    return sorted(frame.collect(), key=lambda row: row["id"])


def put(lake: Lake, rows: dict[str, Any], **how: Any) -> None:
    """Commit rows that pyarrow writes."""
    write_table(pa.table(rows), lake.uri, store=lake.server.config, **how)


def test_compaction_changes_no_row_of_spark_s(spark: SparkSession, lake: Lake) -> None:
    """Types that Arrow has under other names, nested ones and odd partition values are Spark's as before."""
    frame = spark.range(40, numPartitions=4).selectExpr(
        "id", "cast(id as decimal(12, 2)) as cost", "timestamp_millis(id * 86400000) as at",
        "cast(timestamp_millis(id) as timestamp_ntz) as local", "cast(cast(id as string) as binary) as raw",
        "make_dt_interval(cast(id as int)) as took", "cast(id as byte) as small",
        "if(id = 3, null, array(struct(id as x, map('k', id) as m))) as nested",
        "date_add(date'2013-01-01', cast(id % 2 as int)) as dt", "if(id % 3 = 0, 'a/b %', null) as kind",
    )  # fmt: skip
    fill(frame, lake, partitionBy="dt,kind")
    fill(frame.withColumn("id", frame["id"] + 100), lake, partitionBy="dt,kind")
    before, columns = rows_of(read_table(spark, lake.uri)), read_table(spark, lake.uri).schema
    files = len(lake.visible())
    done = compact(lake.store, lake.uri)
    assert (done.files, done.rows) == (len(lake.visible()), 80)
    assert done.files == 4 < files
    after = read_table(spark, lake.uri)
    assert (after.schema, rows_of(after)) == (columns, before)


def test_written_rows_are_read_back(spark: SparkSession, lake: Lake) -> None:
    """Rows and types come back, partition columns typed, and the DataFrame stays with its generation."""
    frame = spark.range(20, numPartitions=2).selectExpr(
        "id", "cast(id as decimal(12, 2)) as cost", "timestamp_millis(id * 86400000) as at",
        "cast(timestamp_millis(id) as timestamp_ntz) as local", "cast(cast(id as string) as binary) as raw",
        "if(id = 3, null, array(struct(id as x, map('k', id) as m))) as nested",
        "date_add(date'2013-01-01', cast(id % 3 as int)) as dt", "if(id % 2 = 0, 'a/b', null) as kind",
    )  # fmt: skip
    fill(frame, lake, partitionBy="dt,kind")
    found = read_table(spark, lake.uri)
    assert found.schema == frame.schema.toNullable()
    assert rows_of(found) == rows_of(frame)
    assert found.where("dt = date'2013-01-02' and kind is null").count() == 4

    days = "date'2020-01-01' as dt", "'new' as kind"
    fill(spark.range(100, 105).selectExpr("id", *days), lake, partitionBy="dt,kind")
    spark.catalog.refreshByPath(lake.uri.replace("s3:", "s3a:"))
    assert found.count() == 20
    assert read_table(spark, lake.uri).count() == 25
    added = {"job_id": lake.manifest().job_id}
    for new in (added, {"since": 2}, {"since": 2, "generation": 3}):
        assert read_table(spark, lake.uri, **new).selectExpr("sum(id)").collect() == [(510,)]
    for old in ({"since": 1, "generation": 2}, {"generation": 2}):
        assert read_table(spark, lake.uri, **old).count() == 20
    none = read_table(spark, lake.uri, since=3)
    assert (none.schema, none.count()) == (found.schema, 0)
    few = read_table(spark, lake.uri, since=2, schema="id bigint, dt string").select("id", "dt")
    assert rows_of(few) == [(id_, "2020-01-01") for id_ in range(100, 105)]
    with pytest.raises(Exception, match="has no generation 7"):
        read_table(spark, lake.uri, generation=7)


def test_a_partition_column_has_the_recorded_or_the_given_type(spark: SparkSession, lake: Lake) -> None:
    """A text of digits stays text if the commits or the caller say so; else types are inferred."""
    fill(spark.sql("select 1 as id, '007' as zip"), lake, partitionBy="zip")
    assert read_table(spark, lake.uri).collect() == [(1, "007")]
    assert read_table(spark, lake.uri, schema="id int, zip int").collect() == [(1, 7)]
    other = Lake(lake.store, lake.server, f"{lake.uri}other/")
    put(other, {"id": [1], "zip": ["007"]}, partition_by=["zip"], format="csv", options={"header": "true"})
    assert read_table(spark, other.uri, options={"header": "true"}).collect() == [("1", 7)]


def test_partitions_by_bytes_are_read_back(spark: SparkSession, lake: Lake) -> None:
    """What directories escape, and bytes that look like a number, are the bytes that were written."""
    frame = spark.sql(
        "select id, cast(p as binary) as p from values (1, 'a:b/%'), (2, '007'), (3, null) t(id, p)"
    )
    fill(frame, lake, partitionBy="p")
    found = read_table(spark, lake.uri)
    assert (found.schema, rows_of(found)) == (frame.schema.toNullable(), rows_of(frame))
    assert [row.id for row in found.where("p = cast('a:b/%' as binary)").collect()] == [1]
    assert sorted(dataset(lake.server.config, lake.uri).to_table()["id"].to_pylist()) == [1, 2, 3]


def test_another_table_s_default_fills_no_older_row(spark: SparkSession, lake: Lake) -> None:
    """The columns that a commit added are null in files before it, whatever table its rows came from."""
    fill(spark.sql("select 1 as id"), lake)
    fields = [StructField("id", IntegerType()), StructField("added", IntegerType(), True, DEFAULT)]
    fill(spark.createDataFrame([(2, 7)], StructType(fields)), lake)
    assert rows_of(read_table(spark, lake.uri)) == [(1, None), (2, 7)]


def test_columns_that_spark_s_own_writers_recorded_need_no_file(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record without Arrow's encoding gives the columns while all commits agree; else footers do."""
    with monkeypatch.context() as patch:
        in_full = WrittenColumns.text
        patch.setattr(WrittenColumns, "text", lambda self: in_full(structs.replace(self, arrow=None)))
        for number in range(2):
            put(lake, {"id": [number], "zip": ["007"]}, partition_by=["zip"], conflict_mode="append")
    with monkeypatch.context() as patch:
        patch.setattr("airflow_s3commit.reader.table.FileReading.as_read", None)
        found = read_table(spark, lake.uri)
        assert found.schema.simpleString() == "struct<id:bigint,zip:string>"
        assert rows_of(found) == [(0, "007"), (1, "007")]
    assert dataset(lake.server.config, lake.uri).to_table().num_rows == 2
    put(lake, {"id": [2], "more": ["x"], "zip": ["007"]}, partition_by=["zip"], conflict_mode="append")
    assert rows_of(read_table(spark, lake.uri)) == [(0, None, "007"), (1, None, "007"), (2, "x", "007")]


@pytest.mark.parametrize("parent", ["", "year=2013/"])
def test_rows_are_the_same_by_spark_s_log_and_by_paths(spark: SparkSession, lake: Lake, parent: str) -> None:
    """A session that ignores such logs, or a table below a directory with ``=``, reads the same rows."""
    table = Lake(lake.store, lake.server, f"{lake.uri}{parent}")
    odd = ["a b/c%", "{x}*", "[0]?", None, "é", "a=b", "#1"]
    put(table, {"id": list(range(7)), "p": odd}, partition_by=["p"])
    assert rows_of(read_table(spark, table.uri)) == list(enumerate(odd))
    spark.conf.set(IGNORES_LOGS, "true")
    assert rows_of(read_table(spark, table.uri)) == list(enumerate(odd))
    flat = Lake(lake.store, lake.server, f"{lake.uri}{parent}flat/")
    put(flat, {"id": [1, 2]})
    assert rows_of(read_table(spark, flat.uri)) == [(1,), (2,)]
    spark.conf.unset(IGNORES_LOGS)
    assert rows_of(read_table(spark, flat.uri)) == [(1,), (2,)]


@pytest.mark.parametrize(
    ("format_", "options"),
    [("orc", {}), ("csv", {"header": "true"}), ("json", {})],
)
def test_other_formats_are_read(
    spark: SparkSession, lake: Lake, format_: str, options: dict[str, str]
) -> None:
    """ORC has its types in the log; text gets a schema, or Spark's reader infers one from the files."""
    put(
        lake,
        {"id": [1, 2], "s": ["x", None], "p": [7, 8]},
        partition_by=["p"],
        format=format_,
        options=options,
    )
    found = read_table(spark, lake.uri, options=options)
    types = {"orc": ("bigint", "bigint"), "csv": ("string", "int"), "json": ("bigint", "int")}
    assert [told for _, told in found.select("id", "p").dtypes] == list(types[format_])
    typed = read_table(spark, lake.uri, options=options, schema="id bigint, s string")
    assert typed.columns == ["id", "s", "p"]
    assert rows_of(typed) == [(1, "x", 7), (2, None, 8)]


def test_a_plan_opens_no_file_and_a_missing_file_is_an_error(spark: SparkSession, lake: Lake) -> None:
    """Filters prune partitions whose files are gone; a file that is needed is missed in any session."""
    rows = spark.range(0, 10).selectExpr("id", "id % 2 as half")
    fill(rows, lake, partitionBy="half")
    for path in lake.visible():
        if "half=0" in path:
            lake.store.delete(lake.destination.bucket, lake.destination.key(path))
    spark.conf.set(IGNORES_MISSING, "true")
    found = read_table(spark, lake.uri)
    assert found.rdd.getNumPartitions() > 0
    assert found.where("half = 1 and id >= 4").count() == 3
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|does not exist"):
        found.collect()
    assert read_table(spark, lake.uri, options={"ignoreMissingFiles": "true"}).count() == 5


def test_a_filter_finds_nan(spark: SparkSession, lake: Lake) -> None:
    """NaN is Spark's greatest number: a filter finds it in files of either Python writer, nested or not."""
    put(lake, {"id": [1, 2], "x": [1.0, float("nan")], "s": [{"y": 1.0}, {"y": float("nan")}]})
    fill(spark.sql("select 3L as id, double('NaN') as x, named_struct('y', double('NaN')) as s"), lake)
    found = read_table(spark, lake.uri)
    for condition in ("x > 40", "s.y > 40", "x = double('NaN')"):
        assert [row.id for row in rows_of(found.where(condition))] == [2, 3]


def test_the_session_s_sizes_apply(spark: SparkSession, lake: Lake) -> None:
    """A large file is read by several tasks, and each row once."""
    put(lake, {"id": list(range(300_000)), "s": [f"{id_ * 7919 % 300_007}" for id_ in range(300_000)]})
    spark.conf.set("spark.sql.files.maxPartitionBytes", "256k")
    found = read_table(spark, lake.uri)
    assert found.rdd.getNumPartitions() > 3
    assert found.selectExpr("count(*)", "sum(id)").collect() == [(300_000, 44_999_850_000)]


def test_the_columns_are_those_of_all_commits(spark: SparkSession, lake: Lake) -> None:
    """An empty table has its columns; ones that later commits add or widen are read from all files."""
    first = spark.range(0).selectExpr("cast(id as int) as id", "cast(id as varchar(3)) as v", "1 as p")
    fill(first, lake, partitionBy="p")
    assert read_table(spark, lake.uri).schema == first.schema.toNullable()
    fill(spark.sql("select 1 as id, 'x' as v, 1 as p"), lake, partitionBy="p")
    fill(spark.sql("select 5000000000 as id, 'y' as v, 2.50 as added, 2 as p"), lake, partitionBy="p")
    found = read_table(spark, lake.uri)
    assert found.dtypes == [("id", "bigint"), ("v", "string"), ("added", "decimal(3,2)"), ("p", "int")]
    assert rows_of(found) == [(1, "x", None, 1), (5_000_000_000, "y", Decimal("2.50"), 2)]
    fill(spark.sql("select 'text' as id, 3 as p"), lake, partitionBy="p")
    with pytest.raises(UnreadableFiles, match=r"'id' of .* is int64 in files of .* and string in files of"):
        read_table(spark, lake.uri)


@pytest.mark.parametrize("damaged", [b"", b"no JSON", b"[]", b"{}", b'{"fields":[{"name":"id","type":1}]}'])
def test_a_damaged_note_of_spark_in_a_footer_is_ignored(
    spark: SparkSession, lake: Lake, damaged: bytes
) -> None:
    """The columns are those of the file, as Spark itself reads it."""
    file, noted = io.BytesIO(), pa.schema([("id", pa.int32())], metadata={ROW_METADATA: damaged})
    pq.write_table(pa.table({"id": [4]}, schema=noted), file)
    with write_job(lake.uri, store=lake.store) as job, job.open("x.parquet") as out:
        out.write(file.getvalue())
    found = read_table(spark, lake.uri)
    assert (found.dtypes, found.collect()) == ([("id", "int")], [(4,)])
    assert spark.read.parquet(lake.uri.replace("s3:", "s3a:")).collect() == [(4,)]


def test_no_class_is_unpickled_from_a_footer(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older PySpark would run what a file names as a type's class; the column has its stored type."""
    asked: list[dict[str, str]] = []
    monkeypatch.setattr(
        UserDefinedType, "fromJson", lambda note: asked.append(note) or note["serializedClass"]
    )
    kind = {"type": "udt", "pyClass": "no.Such", "serializedClass": "Li4u", "sqlType": "integer"}
    field = {"name": "id", "type": kind, "nullable": True, "metadata": {}}
    noted = json.dumps({"type": "struct", "fields": [field]})
    file, columns = io.BytesIO(), pa.schema([("id", pa.int32())], metadata={ROW_METADATA: noted})
    pq.write_table(pa.table({"id": [4]}, schema=columns), file)
    with write_job(lake.uri, store=lake.store) as job, job.open("x.parquet") as out:
        out.write(file.getvalue())
    assert read_table(spark, lake.uri).collect() == [(4,)]
    assert [note["pyClass"] for note in asked if "serializedClass" not in note] == ["no.Such"]


def test_case_makes_no_other_column(spark: SparkSession, lake: Lake) -> None:
    """Columns and fields that commits spell otherwise are one to Spark, unless its session says otherwise."""
    fill(spark.sql("select 1 as id, named_struct('a', 1) as s"), lake)
    fill(spark.sql("select named_struct('A', 2L, 'b', 'x') as S, 2L as ID"), lake)
    found = read_table(spark, lake.uri)
    assert found.dtypes == [("id", "bigint"), ("s", "struct<a:bigint,b:string>")]
    assert rows_of(found) == [(1, (1, None)), (2, (2, "x"))]
    assert rows_of(found.where("id > 1 and s.a > 1")) == [(2, (2, "x"))]
    spark.conf.set("spark.sql.caseSensitive", "true")
    assert read_table(spark, lake.uri).select("id", "ID").collect() in (
        [(1, None), (None, 2)],
        [(None, 2), (1, None)],
    )


def test_what_spark_would_read_otherwise_is_refused(spark: SparkSession, lake: Lake) -> None:
    """Options that choose files, several formats, and directories that Spark takes for no partitions."""
    put(lake, {"id": [1], "p": [1]}, partition_by=["p"])
    for name in ("basePath", "pathGlobFilter", "RECURSIVEFILELOOKUP"):
        with pytest.raises(InvalidOption, match=f"{name} chooses files"):
            read_table(spark, lake.uri, options={name: "x"})
    put(lake, {"id": [1], "p": [2]}, partition_by=["p"], format="json")
    with pytest.raises(UnreadableFiles, match="one dataset has files of one format"):
        read_table(spark, lake.uri)
    other = Lake(lake.store, lake.server, f"{lake.uri.rstrip('/')}-other/")
    home = other.destination
    body = lake.store.get(lake.destination.bucket, lake.destination.key(lake.visible()[0])).body
    lake.store.put(home.bucket, home.key("a=1/x/b=2/old.parquet"), body)
    put(other, {"id": [1], "a": [1], "b": [1]}, partition_by=["a", "b"])
    with pytest.raises(UnreadablePartitions, match="a=1/x/b=2 has a directory without '=' between"):
        read_table(spark, other.uri)


def test_a_catalog_has_the_directories_as_they_are_named(spark: SparkSession, lake: Lake) -> None:
    """Spark would name them otherwise: by a column's case, what it escapes, a type, or a variable's value."""
    named, numbered = (f"{lake.uri}{name}/" for name in ("named", "numbered"))
    variable = "${env:PATH}"
    odd = pa.table({"id": [0, 1, 2, 3], "Dt": [variable, "it's", None, "01"]})
    write_table(odd, named, store=lake.store, partition_by=["Dt"])
    write_table(odd.slice(3), numbered, store=lake.store, partition_by=["Dt"])
    file = io.BytesIO()
    pq.write_table(pa.table({"id": [4]}), file)
    with write_job(named, store=lake.store) as job, job.open("Dt=0:1/x.parquet") as out:
        out.write(file.getvalue())
    try:
        for table, kind in (("named", "STRING"), ("numbered", "INT")):
            spark.sql(
                f"CREATE TABLE {table} (id BIGINT, dt {kind}) USING parquet PARTITIONED BY (dt)"
                f" LOCATION '{lake.uri.replace('s3:', 's3a:')}{table}'"
            )
        spark.conf.set(RAW_TEXTS, "true")
        with pytest.raises(InvalidOption, match=f"cannot be named in SQL: unset {RAW_TEXTS}"):
            register_partitions(spark, "named", lake.store)
        spark.conf.unset(RAW_TEXTS)
        assert len(register_partitions(spark, "named", lake.store).added) == 5
        rows = [(row.id, row.dt) for row in rows_of(spark.table("named"))]
        assert rows == [(0, variable), (1, "it's"), (2, None), (3, "01"), (4, "0:1")]
        again = register_partitions(spark, "named", lake.store)
        assert [*again.added, *again.removed] == []
        with pytest.raises(InvalidOption, match=r"partition 01 otherwise, .*: declare dt as STRING"):
            register_partitions(spark, "numbered", lake.store)
    finally:
        for table in ("named", "numbered"):
            spark.sql(f"DROP TABLE IF EXISTS {table}")
