"""Partition values that share a directory, or have rare characters: no row is lost, or its task fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from airflow_s3commit import Job
from airflow_s3commit.protocol.model.destination import NULL_DIRECTORY, escape
from airflow_s3commit.spark import committer_conf, read_table
from tests.spark.conftest import Lake, Submit, fill, write
from tests.spark.engines import ENGINES, Engine
from tests.spark.odd_values import VALUES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.seaweedfs]

REFUSED = {
    "unlisted": "U+FFFE",
    "long": "S3's keys end at 1024",
    "hidden": "readers skip the directory /p=a._COPYING_",
    "backslash": "U+005C",
}

HOURS = {(0, "p=2013-10-27 02%3A30%3A00"), (1, "p=2013-10-27 02%3A30%3A00"), (2, "p=2013-10-27 03%3A30%3A00")}


@pytest.fixture(
    scope="module",
    params=[name if name == "installed" else pytest.param(name, marks=pytest.mark.all) for name in ENGINES],
)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Return each Spark that the jar is for."""
    return ENGINES[request.param](request.config.cache)


def expected(table: str) -> set[tuple[int, str]]:
    """Return the directory of each row, by Spark's rule."""
    return {
        (number, f"p={escape(value or '') or NULL_DIRECTORY}") for number, value in enumerate(VALUES[table])
    }


def rows_of(lake: Lake, folder: Path) -> set[tuple[int, str]]:
    """Return each row of a table, with its directory."""
    lake.download(folder)
    return {
        (row, file.parent.name)
        for file in folder.rglob("*.parquet")
        for row in pq.ParquetFile(file).read(columns=["id"]).column("id").to_pylist()
    }


@pytest.mark.all
@pytest.mark.xdist_group("spark-submit")
def test_an_unchanged_job(lake: Lake, submit_unchanged: Submit, tmp_path: Path) -> None:
    """Values of one directory have a file each; a key that S3 cannot keep or list fails its task, by name."""
    tables = {
        name: Lake(lake.store, lake.server, f"{lake.uri}{name}/") for name in (*VALUES, "backslash", "hours")
    }
    jobs = {name: Job.setup(lake.store, table.uri) for name, table in tables.items()}
    conf: dict[str, str] = {}
    for job in jobs.values():
        conf |= committer_conf(job.reference, "load", "1", writer="spark")
    done = submit_unchanged("odd_values.py", [lake.uri.replace("s3:", "s3a:").rstrip("/")], conf)
    assert done.returncode == 0, done.stderr[-4000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    assert errors.keys() == REFUSED.keys()
    assert {name for name, why in REFUSED.items() if why not in errors[name]} == set()
    for name in REFUSED:
        jobs[name].abort()
        assert tables[name].pending() == []
    for name in tables.keys() - REFUSED.keys():
        jobs[name].seal_stage("load", "1")
        jobs[name].seal()
        jobs[name].commit()
        found = rows_of(tables[name], tmp_path / name)
        assert found == (HOURS if name == "hours" else expected(name)), name
        assert tables[name].pending() == []


@pytest.mark.parametrize("way", [write, fill], ids=["format", "write_pending"])
@pytest.mark.parametrize("name", ["shared", pytest.param("rare", marks=pytest.mark.all)])
def test_our_writers(
    way: Callable[..., None], name: str, spark_with_s3a: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Rows of values that share a directory, and of rare characters, are all committed and read back."""
    rows = _rows(spark_with_s3a, name)
    way(rows, lake, partitionBy="p")
    assert rows_of(lake, tmp_path) == expected(name)
    values = {row.id: row.p for row in read_table(spark_with_s3a, lake.uri).collect()}
    assert values == {
        number: None if (value or NULL_DIRECTORY) == NULL_DIRECTORY else value
        for number, value in enumerate(VALUES[name])
    }


@pytest.mark.parametrize("way", [write, fill], ids=["format", "write_pending"])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("unlisted", r"U\+FFFE"),
        pytest.param("long", "bytes, and S3's keys end at 1024", marks=pytest.mark.all),
        pytest.param("hidden", "is hidden from readers", marks=pytest.mark.all),
    ],
)
def test_our_writers_refuse(
    way: Callable[..., None], name: str, why: str, spark: SparkSession, lake: Lake
) -> None:
    """A key that S3 cannot keep or list fails its task, with a cure, and nothing is visible or pending."""
    rows = _rows(spark, name)
    if name == "long":
        rows = rows.selectExpr("id", "repeat(p, 2) AS p")
    with pytest.raises(Exception, match=why):
        way(rows, lake, partitionBy="p")
    assert lake.visible() == lake.pending() == []


def _rows(spark: SparkSession, name: str) -> DataFrame:
    return spark.createDataFrame(list(enumerate(VALUES[name])), "id INT, p STRING").coalesce(1)
