"""The Python interface on PySpark 3.5, in a separate environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from airflow_s3commit import Job, JobOptions
from airflow_s3commit.spark import committer_conf
from tests.conftest import BUCKET
from tests.spark.conftest import Lake
from tests.spark.engines import RELEASE, python_with_pyspark

if TYPE_CHECKING:
    from airflow_s3commit import S3Store
    from airflow_s3commit.testing import S3Server

pytestmark = [pytest.mark.all, pytest.mark.spark, pytest.mark.seaweedfs]


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest) -> Path:
    """Return the Python of an environment with PySpark 3.5."""
    return python_with_pyspark(request.config.cache)


def test_the_python_interface_runs_on_pyspark_35(
    python: Path, seaweed: S3Server, seaweed_store: S3Store, prefix: str, tmp_path: Path
) -> None:
    """A write for a job, an overwrite without one and a stream give the rows of Spark's own writer."""
    place = f"s3://{BUCKET}/{prefix}"
    lakes = {name: Lake(seaweed_store, seaweed, f"{place}{name}/") for name in ("job", "own", "stream")}
    lake = lakes["job"]
    job = Job.setup(seaweed_store, lake.uri, options=JobOptions(conflict_mode="fail"))
    conf = committer_conf(
        job.reference, "load", "1", endpoint_url=seaweed.endpoint_url, region="us-east-1", path_style=True
    )
    conf |= {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
    settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    spark = python.parents[1].glob("lib/python*/site-packages/pyspark")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    root = Path(__file__).parents[2]
    application = Path(__file__).with_name("pyspark35.py")
    command = [str(next(spark) / "bin" / "spark-submit"), "--master", "local[2]", *settings]
    done = subprocess.run(
        [*command, str(application), place, str(tmp_path)],
        env=environment
        | seaweed.environment
        | {"PYTHONPATH": str(root), "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["version"] == RELEASE
    assert seen["refused"] == (
        'format("s3commit") needs the Python data source API of PySpark 4.0, and this is PySpark'
        f" {RELEASE}: write with airflow_s3commit.spark.write_pending or foreach_batch, and read"
        " with read_table"
    )
    assert lake.visible() == []
    job.seal()
    assert job.commit().counts.rows == 60
    own = ds.dataset(tmp_path / "sparks-own", partitioning="hive").to_table().to_pylist()
    rows = {row["id"]: {**row, "dt": str(row["dt"])} for row in own}
    assert {row["id"]: row for row in lake.table("dt").to_pylist()} == rows
    days = {number: row["dt"] for number, row in rows.items()}
    assert {row["id"]: row["dt"] for row in lakes["stream"].table("dt").to_pylist()} == days
    assert lakes["stream"].manifest().counts.rows == len(rows)
    overwritten = {number + 1000 * (number % 3 == 1): day for number, day in days.items()}
    assert {row["id"]: row["dt"] for row in lakes["own"].table("dt").to_pylist()} == overwritten
    assert [lake.pending() for lake in lakes.values()] == [[], [], []]
