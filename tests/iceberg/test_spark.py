"""Snapshots read by Spark with Iceberg's own runtime."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")

from airflow_s3commit import rollback
from airflow_s3commit.iceberg import publish_iceberg
from tests.iceberg.conftest import NAME, PARTITIONS, rows
from tests.spark.engines import of_release

pytestmark = [pytest.mark.all, pytest.mark.spark, pytest.mark.seaweedfs]

#: The newest Spark that Iceberg has a runtime for.
RELEASE = "4.1.4"
RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def runtime(folder: Path) -> Path:
    """Return Iceberg's jar for Spark, or skip the test where Maven cannot get it."""
    if shutil.which("mvn") is None:
        pytest.skip("mvn is not installed: Debian has it in maven")
    copied = ["dependency:copy", f"-Dartifact={RUNTIME}", f"-DoutputDirectory={folder}"]
    done = subprocess.run(
        ["mvn", "-B", "-q", *copied], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        pytest.skip(f"Maven cannot get {RUNTIME}: {done.stdout.strip()[:500]}")
    return next(folder.glob("iceberg-spark-runtime-*.jar"))


def test_spark_reads_each_snapshot(lake, catalog, seaweed, request, tmp_path) -> None:
    """Rows, and partition values that no file has, are those of the generation."""
    generations = []
    lake.write(rows(0))
    generations += publish_iceberg(lake.store, lake.uri, catalog, NAME).published
    lake.write(rows(100))
    lake.write(rows(200, PARTITIONS[1:]), "replace")
    rollback(lake.store, lake.uri, to=3, retain="1d")
    generations += publish_iceberg(lake.store, lake.uri, catalog, NAME).published
    table = catalog.load_table(NAME)
    engine, endpoint = of_release(request.config.cache, RELEASE), seaweed.endpoint_url
    conf = {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
    }
    environment = {**engine.environment, **seaweed.environment}
    environment.pop("AWS_ENDPOINT_URL_S3")
    command = engine.command(conf, str(Path(__file__).with_name("spark_reader.py")))
    jars = command.index("--jars") + 1
    command[jars] = f"{command[jars]},{runtime(tmp_path)}"
    ids = [str(one.snapshot_id) for one in table.snapshots()]
    done = subprocess.run(
        [*command, table.metadata_location, *ids],
        env=environment, capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == len(generations) == 4
    for generation, read in zip(generations, found, strict=True):
        truth = lake.truth(generation)
        assert [(one["id"], one["name"], one["place"]) for one in read] == [
            (one["id"], one["name"], one["place"]) for one in truth
        ]
        assert [one["amount"] for one in read] == [str(one["amount"]) for one in truth]
        assert [one["day"] for one in read] == [one["day"] and str(one["day"]) for one in truth]
        wanted = [one["at"] and one["at"].replace(tzinfo=None).isoformat(sep=" ") for one in truth]
        assert [one["at"] for one in read] == [one and one.replace(".250000", ".25") for one in wanted]
