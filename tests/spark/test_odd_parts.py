"""Formats and listeners of an application's own, which do not behave as Spark's do."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import Job, JobOptions
from airflow_s3commit.spark import committer_conf
from tests.spark.conftest import Lake, Submit

if TYPE_CHECKING:
    from tests.spark.engines import Engine

pytestmark = [
    pytest.mark.all,
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("spark-submit"),
]


def test_no_file_or_row_is_lost_that_spark_does_not_report(
    lake: Lake, engine: Engine, submit_unchanged: Submit, tmp_path: Path
) -> None:
    """A file that Spark did not name fails its task; rows that it did not count are committed uncounted.

    And EMR's own protocol writes what is for no job.
    """
    sources = [
        str(Path(__file__).with_name(f"{name}.java"))
        for name in ("OddParts", "SQLEmrOptimizedCommitProtocol")
    ]
    classes = f"{engine.home}/jars/*"
    subprocess.run(["javac", "-proc:none", "-cp", classes, "-d", str(tmp_path), *sources], check=True)
    job = Job.setup(lake.store, lake.uri, options=JobOptions(conflict_mode="as-written"))
    conf = committer_conf(job.reference, "load", "1", writer="spark")
    conf |= {"spark.driver.extraClassPath": str(tmp_path), "spark.extraListeners": "OddParts$Slow"}
    pipe, elsewhere = tmp_path / "pipe", (tmp_path / "elsewhere").as_uri()
    os.mkfifo(pipe)
    place = lake.uri.replace("s3://", "s3a://").rstrip("/")
    done = submit_unchanged("odd_parts.py", [place], conf, PIPE=str(pipe), LOCAL=elsewhere)
    assert done.returncode == 0, done.stderr[-4000:]
    error, elsewheres = json.loads(done.stdout.splitlines()[-1])
    assert "EMR's protocol was asked to write to file:" in elsewheres
    assert "has written " in error
    assert "index.bin, which is none of the files that Spark named" in error
    told = f"job {job.reference.job_id}, write 1 to {place}: Spark was to report the rows of its 2 tasks"
    assert told in done.stderr
    job.seal_stage("load", "1")
    job.seal()
    manifest = job.commit()
    assert manifest.counts.rows is None
    assert sorted(map(int, lake.table().column("value").to_pylist())) == list(range(30))
    assert lake.pending() == []
