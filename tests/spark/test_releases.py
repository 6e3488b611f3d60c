"""Every release of PySpark that the package is for writes and reads once, through each door."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from tests.conftest import BUCKET
from tests.spark.conftest import Lake
from tests.spark.engines import RELEASES, of_release

if TYPE_CHECKING:
    from airflow_s3commit import S3Store
    from airflow_s3commit.testing import S3Server

pytestmark = [pytest.mark.all, pytest.mark.spark, pytest.mark.seaweedfs]


@pytest.mark.parametrize("release", [*RELEASES, pytest.param(pyspark.__version__, id="installed")])
def test_a_release_of_pyspark_writes_and_reads(
    release: str, request: pytest.FixtureRequest, seaweed: S3Server, seaweed_store: S3Store, prefix: str
) -> None:
    """Rows of all kinds come back as Spark has them, whether or not Spark finds the data source by itself.

    And filters leave out the files whose bounds allow it, and no others.
    """
    engine = of_release(request.config.cache, release)
    conf = {
        "spark.s3commit.endpoint.url": seaweed.endpoint_url,
        "spark.s3commit.endpoint.region": "us-east-1",
        "spark.s3commit.path.style": "true",
        "spark.hadoop.fs.s3a.endpoint": seaweed.endpoint_url,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    environment = {**engine.environment, **seaweed.environment}
    # Spark looks for data sources in the directories of this path.
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    environment.pop("AWS_ENDPOINT_URL_S3", None)
    place = f"s3://{BUCKET}/{prefix}"
    application = str(Path(__file__).with_name("releases.py"))
    done = subprocess.run(
        engine.command(conf, application, place),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"version": release, "different": [], "misread": []}
    for table in ("pending",) if release.startswith("3.") else ("pending", "format"):
        lake = Lake(seaweed_store, seaweed, f"{place}{table}/")
        assert sorted(lake.table("dt").column("id").to_pylist()) == list(range(30))
        assert lake.pending() == []
