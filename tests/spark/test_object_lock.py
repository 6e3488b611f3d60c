"""Spark's own writers into a bucket that refuses every write without a checksum, as Object Lock does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import Job
from airflow_s3commit.spark import committer_conf
from tests.store.s3.relay import relay
from tests.store.s3.test_object_lock import needs_checksums

if TYPE_CHECKING:
    from airflow_s3commit import S3Store
    from airflow_s3commit.testing import S3Server
    from tests.spark.conftest import Submit

pytestmark = [
    pytest.mark.all,
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("spark-submit"),
]


def test_parts_have_checksums(
    seaweed: S3Server, seaweed_store: S3Store, prefix: str, submit_unchanged: Submit
) -> None:
    """Parts that S3 refuses without a checksum are committed with the setting that the docs name."""
    destination = f"s3://lake/{prefix}t/"
    place = destination.replace("s3:", "s3a:")
    job = Job.setup(seaweed_store, destination)
    with relay(seaweed.endpoint_url, needs_checksums) as server:
        conf = {"spark.hadoop.fs.s3a.endpoint": server.endpoint_url}
        refused = submit_unchanged(
            "one_table.py", [place], committer_conf(job.reference, "load", "1", writer="spark") | conf
        )
        conf["spark.hadoop.fs.s3a.create.checksum.algorithm"] = "CRC32C"
        done = submit_unchanged(
            "one_table.py", [place], committer_conf(job.reference, "load", "2", writer="spark") | conf
        )
    assert refused.returncode == 1
    assert "x-amz-checksum" in refused.stderr
    assert done.returncode == 0, done.stderr[-4000:]
    job.seal_stage("load", "2")
    job.seal()
    assert job.commit().counts.rows == 40
