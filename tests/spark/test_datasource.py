"""``df.write.format("s3commit")`` in a real Spark session, on a real S3 server."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.conftest import write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.conftest import Lake

pytestmark = [pytest.mark.spark, pytest.mark.seaweedfs, pytest.mark.xdist_group("spark")]


def rows(table: pa.Table) -> Counter[str]:
    """Count equal rows, whatever the order of columns."""
    names = sorted(table.column_names)
    return Counter(repr([row[name] for name in names]) for row in table.to_pylist())


def test_a_notebook_write_commits_by_itself(spark: SparkSession, lake: Lake) -> None:
    """Without a job every row appears exactly once, the manifest counts them, and nothing stays pending."""
    frame = spark.range(5000, numPartitions=3).selectExpr(
        "id", "id / 7 as ratio", "cast(id % 4 as string) as dt", "concat('r', id % 2) as region"
    )
    write(frame, lake, partitionBy="dt,region")
    expected = pa.Table.from_pylist([row.asDict() for row in frame.collect()])
    assert rows(lake.table("dt", "region")) == rows(expected)
    manifest = lake.manifest()
    assert (manifest.counts.rows, manifest.counts.files) == (5000, 12)
    assert manifest.conflict_mode == "append"
    assert sorted(manifest.partitions) == [f"dt={n}/region=r{n % 2}" for n in range(4)]
    listed = sorted(entry.key for entry in lake.files())
    assert sorted(lake.destination.prefix + path for path in lake.visible()) == listed
    assert all(f"-{manifest.job_id}.c000.snappy.parquet" in path for path in lake.visible())
    assert lake.pending() == []
    assert not [key for key in lake.everything() if "__magic_job" in key and "_s3commit/" not in key]


def test_overwrite_replaces_touched_partitions_and_append_adds(spark: SparkSession, lake: Lake) -> None:
    """Overwrite replaces only the partitions that get data; append leaves existing data."""
    days = spark.range(30, numPartitions=2).selectExpr("id", "concat('d', id % 3) as dt")
    write(days, lake, partitionBy="dt")
    write(days.where("dt = 'd1'").selectExpr("id + 100 as id", "dt"), lake, "overwrite", partitionBy="dt")
    write(days.where("dt = 'd2'").selectExpr("id + 200 as id", "dt"), lake, partitionBy="dt")
    found = Counter((row["dt"], row["id"]) for row in lake.table("dt").to_pylist())
    expected = Counter((f"d{n % 3}", n) for n in range(30) if n % 3 != 1)
    expected += Counter(("d1", n + 100) for n in range(30) if n % 3 == 1)
    expected += Counter(("d2", n + 200) for n in range(30) if n % 3 == 2)
    assert found == expected
    assert lake.pending() == []


def test_partition_values_are_named_as_spark_names_them(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Directories equal those of Spark's own writer, whatever the strings, booleans, dates and decimals."""
    frame = spark.sql(
        """select * from values
        (null, true, date'2013-01-01', 1.50, 1), ('', false, date'0001-01-01', 0.01, 2),
        ('a/b:c=d%', null, null, null, 3), ('é x', true, date'1582-10-04', -0.10, 4),
        ('.{[^"', false, date'9999-12-31', 12345.67, 5) t(`na me`, b, d, n, id)"""
    ).coalesce(1)
    columns = ["na me", "b", "d", "n"]
    write(frame, lake, partitionBy=json.dumps(columns))
    frame.write.partitionBy(*columns).parquet(str(tmp_path / "native"))
    theirs = tmp_path / "native"
    native = {str(path.parent.relative_to(theirs)) for path in theirs.rglob("*.parquet")}
    assert {path.rpartition("/")[0] for path in lake.visible()} == native
    folder = lake.download(tmp_path / "ours")
    back = spark.read.parquet(str(folder)).select(frame.columns)
    wanted = spark.read.parquet(str(theirs)).select(frame.columns)
    assert Counter(back.collect()) == Counter(wanted.collect())


def test_types_read_back_as_from_sparks_own_writer(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Spark reads the same schema and values from our files as from its own; DuckDB reads the same rows."""
    frame = spark.range(50, numPartitions=2).selectExpr(
        "id", "cast(id as tinyint) as i8", "if(id % 3 = 0, null, cast(id as float)) as f",
        "cast(id as double) / 3 as d", "cast(id as decimal(9, 2)) as d9", "cast(id as decimal(18, 3)) as d18",
        "cast(id as decimal(38, 4)) as d38", "id % 2 = 0 as flag", "cast(id as string) as `text with.dots`",
        "cast(cast(id as string) as binary) as raw",
        "date_add(date'1850-01-01', cast(id as int)) as day", "timestamp'1890-01-01 00:00:01.000002' as t",
        "timestamp_ntz'1500-01-01 00:00:00' as ntz", "array(id, null) as a", "map('k', id) as m",
        "named_struct('x', id, 'y', array(named_struct('z', id))) as s", "make_dt_interval(0, 0, 0, id) as i",
        "if(id % 3 = 0, null, named_struct('x', id, 'y', named_struct('z', 'q'))) as ns",
        "array(null, named_struct('z', id)) as an",
    )  # fmt: skip
    write(frame, lake)
    folder = lake.download(tmp_path / "ours")
    frame.write.parquet(str(tmp_path / "native"))
    ours, native = spark.read.parquet(str(folder)), spark.read.parquet(str(tmp_path / "native"))
    assert ours.schema == native.schema
    assert Counter(map(repr, ours.collect())) == Counter(map(repr, native.collect()))
    # DuckDB takes Spark's own INT96 for a time without a zone, and has no type for intervals in days.
    names = [name for name in frame.columns if name not in ("t", "i")]
    wanted = ", ".join(f'"{name}"' for name in names)
    by_duckdb = [
        duckdb.sql(f"select {wanted} from read_parquet('{place}/*.parquet') order by id").fetchall()
        for place in (folder, tmp_path / "native")
    ]
    assert by_duckdb[0] == by_duckdb[1]
    footer = pq.ParquetFile(next(folder.glob("*.parquet"))).metadata.metadata
    written = json.loads(footer[b"org.apache.spark.sql.parquet.row.metadata"])
    assert [field["name"] for field in written["fields"]] == frame.columns


def test_under_a_job_the_write_only_seals(spark: SparkSession, lake: Lake, job_conf: Any) -> None:
    """With a job in the conf nothing is visible until its owner commits, and no path is needed."""
    job = job_conf("replace")
    frame = spark.range(100, numPartitions=2).selectExpr("id", "concat('d', id % 2) as dt")
    frame.write.format("s3commit").mode("append").option("partitionBy", "dt").save()
    assert lake.visible() == []
    assert len(lake.pending()) == 4
    seal = job.stage_seal("load", "1")
    assert seal is not None
    assert (seal.tasks, seal.counts.files, seal.counts.rows) == (2, 4, 100)
    assert sorted(seal.partitions) == ["dt=d0", "dt=d1"]
    job.seal()
    job.commit()
    assert sorted(lake.table("dt")["id"].to_pylist()) == list(range(100))
    assert lake.pending() == []


def test_under_a_job_contradictions_are_refused(spark: SparkSession, lake: Lake, job_conf: Any) -> None:
    """Overwrite on an append job, and a path that is not the job's, fail with a remedy."""
    job_conf("append")
    frame = spark.range(10, numPartitions=1)
    with pytest.raises(Exception, match="save mode overwrite contradicts conflict mode append"):
        frame.write.format("s3commit").mode("overwrite").save()
    # With its options the writer's own process finds the store, to abort what it may have begun.
    elsewhere = frame.write.format("s3commit").mode("append").options(**lake.options)
    with pytest.raises(Exception, match="leave the path out"):
        elsewhere.save(f"{lake.uri}elsewhere/")
    assert lake.pending() == []


def test_wrong_options_fail_before_any_task(spark: SparkSession, lake: Lake) -> None:
    """A missing column, a type that needs a cast and an unknown option are errors of the driver."""
    frame = spark.range(3).selectExpr("id", "array(id) as t")
    for options, says in (
        ({"partitionBy": "day"}, "not among id, t"),
        ({"partitionBy": "t"}, r"cast it to string first, in Spark: df\.withColumn\('t'"),
        ({"partitioned": "t"}, "has no option partitioned"),
        ({"header": "true"}, "s3commit has no option header"),
        ({"format": "csv"}, "format='csv' of s3commit: .* only parquet"),
    ):
        with pytest.raises(Exception, match=says):
            write(frame, lake, **options)
    with pytest.raises(Exception, match=r"'m' has .* the type interval year to month.*Spark's own writer"):
        write(frame.selectExpr("id", "make_ym_interval(1, 2) as m"), lake)
    assert lake.everything() == []


def test_reads_and_streams_are_refused_with_the_remedy(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """A read, with a schema or without, and a query to the format name the call to use."""
    reader = re.escape("read_table(spark, uri), and the files of new commits")
    for read in (spark.read, spark.read.schema("id long"), spark.readStream):
        with pytest.raises(Exception, match=reader):
            read.format("s3commit").load(lake.uri).isEmpty()
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    stream = rows.writeStream.format("s3commit").options(**lake.options, checkpointLocation=str(tmp_path))
    says = re.escape(f"foreach_batch(destination='{lake.uri}'))")
    with pytest.raises(StreamingQueryException, match=f"InvalidOption: .*format.*{says}"):
        stream.start(lake.uri).awaitTermination()
    assert lake.everything() == []


@pytest.mark.all
def test_tables_of_sql_are_written_by_the_options_of_a_statement(spark: SparkSession, lake: Lake) -> None:
    """Both forms of INSERT use the path that they name, and without one the error says so.

    Spark tells a data source nothing of the buckets that it notes in the catalog, and nothing reads by them.
    """
    spark.range(4, numPartitions=1).selectExpr("id", "concat('d', id % 2) as dt").createTempView("arrivals")
    spark.sql("CREATE TABLE flights (id BIGINT, dt STRING) USING s3commit PARTITIONED BY (dt)")
    place = ", ".join(f"{name} = '{value}'" for name, value in {**lake.options, "path": lake.uri}.items())
    parted = f"WITH ({place}, partitionBy = 'dt')"
    try:
        spark.sql(f"INSERT INTO flights {parted} SELECT * FROM arrivals")
        spark.sql(f"INSERT OVERWRITE flights {parted} SELECT id + 10, dt FROM arrivals WHERE dt = 'd1'")
        found = lake.table("dt").to_pylist()
        assert sorted((row["dt"], row["id"]) for row in found) == [
            ("d0", 0), ("d0", 2), ("d1", 11), ("d1", 13)
        ]  # fmt: skip
        bucketed = (
            spark.table("arrivals").write.format("s3commit").mode("append").bucketBy(2, "id").sortBy("id")
        )
        bucketed.options(**lake.options, path=lake.uri, partitionBy="dt").saveAsTable("bucketed")
        assert len(lake.visible()) == 4
        for statement, says in (
            (f"INSERT INTO flights WITH ({place}) SELECT * FROM arrivals", "partitionBy to dt, in SQL"),
            ("INSERT INTO flights SELECT * FROM arrivals", "no destination.*INSERT INTO t WITH"),
            ("CREATE TABLE others USING s3commit AS SELECT * FROM arrivals", "no destination"),
            ("SELECT * FROM flights", "only writes: read a table with .*read_table"),
            ("SELECT * FROM bucketed WHERE id = 1", "only writes: read a table with .*read_table"),
            (f"CREATE TABLE others USING s3commit OPTIONS ({place})", "name the columns, CREATE TABLE"),
        ):
            with pytest.raises(Exception, match=says):
                spark.sql(statement).collect()
        assert len(lake.visible()) == 4
        assert lake.pending() == []
    finally:
        spark.sql("DROP TABLE flights")
        spark.sql("DROP TABLE IF EXISTS bucketed")
        spark.catalog.dropTempView("arrivals")
