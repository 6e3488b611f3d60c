"""What travels in the Spark conf."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec.structs import replace

from airflow_s3commit import JobReference, ObjectOptions
from airflow_s3commit.exceptions import InvalidOption, InvalidRecord
from airflow_s3commit.spark import committer_conf
from airflow_s3commit.spark.session import JobInConf, StoreAddress, job_from_conf, store_from_conf

REFERENCE = JobReference(job_id="j1", destination="s3://lake/t/", staging="s3://lake/t/__magic_job-j1/")


def test_settings_survive_the_conf() -> None:
    """The conf carries the job, stage, attempt and store settings unchanged."""
    conf = committer_conf(REFERENCE, "load", "2", endpoint_url="http://h", region="r", path_style=False)
    assert job_from_conf(conf.get) == JobInConf(REFERENCE, "load", "2")
    assert store_from_conf(conf.get) == StoreAddress("http://h", "r", path_style=False)
    assert all(isinstance(value, str) and key.startswith("spark.s3commit.") for key, value in conf.items())


def test_a_conf_without_a_job_names_none() -> None:
    """Store settings alone are not a job."""
    assert job_from_conf({"spark.s3commit.endpoint.url": "http://h"}.get) is None
    assert store_from_conf({}.get) == StoreAddress()


def test_a_part_of_a_job_is_refused() -> None:
    """A conf that only partly names a job is refused with the missing keys."""
    with pytest.raises(InvalidRecord, match=r"not spark\.s3commit\.job\.destination, spark\..*staging"):
        job_from_conf({"spark.s3commit.job.id": "j1"}.get)


def test_sparks_own_writers_get_the_protocol_and_s3a_the_address() -> None:
    """The conf names the job by its id, so that confs of several jobs can be merged."""
    conf = committer_conf(
        REFERENCE, "load", "2", endpoint_url="http://h", region="r", path_style=True, writer="spark"
    )
    assert conf == {
        "spark.sql.sources.commitProtocolClass": "s3commit.spark.PendingCommitProtocol",
        "spark.sql.extensions": "s3commit.spark.CatalogGuard",
        "spark.s3commit.pending.job.j1.destination": "s3://lake/t/",
        "spark.s3commit.pending.job.j1.stage": "load",
        "spark.s3commit.pending.job.j1.attempt": "2",
        "spark.hadoop.fs.s3a.committer.magic.track.commits.in.memory.enabled": "true",
        "spark.hadoop.fs.s3a.bucket.lake.endpoint": "http://h",
        "spark.hadoop.fs.s3a.bucket.lake.endpoint.region": "r",
        "spark.hadoop.fs.s3a.bucket.lake.path.style.access": "true",
    }


def test_sparks_own_writers_get_a_jobs_object_options_as_settings() -> None:
    """S3A encrypts and stores as the job says, in its bucket only."""
    options = ObjectOptions(
        sse="aws:kms", sse_kms_key_id="alias/lake", storage_class="STANDARD_IA", acl="bucket-owner-read"
    )
    plain = committer_conf(REFERENCE, "load", "2", writer="spark")
    conf = committer_conf(REFERENCE, "load", "2", writer="spark", object_options=options)
    assert {key: value for key, value in conf.items() if key not in plain} == {
        "spark.hadoop.fs.s3a.bucket.lake.encryption.algorithm": "SSE-KMS",
        "spark.hadoop.fs.s3a.bucket.lake.encryption.key": "alias/lake",
        "spark.hadoop.fs.s3a.bucket.lake.create.storage.class": "standard_ia",
        "spark.hadoop.fs.s3a.bucket.lake.acl.default": "BucketOwnerRead",
    }


@pytest.mark.parametrize(
    "options",
    [
        {"tags": {"team": "lake"}},
        {"headers": {"cache-control": "no-cache"}},
        {"sse": "aws:kms", "sse_bucket_key": True},
    ],
)
def test_object_options_that_s3a_cannot_apply_are_refused(options: dict) -> None:
    """Nothing of a job's options is dropped silently."""
    with pytest.raises(InvalidOption, match=f"object_options has {list(options)[-1]}, which S3A cannot"):
        committer_conf(REFERENCE, "load", "2", writer="spark", object_options=ObjectOptions(**options))


def test_a_staging_elsewhere_is_refused_for_sparks_own_writers() -> None:
    """S3A leaves files pending below the destination only."""
    elsewhere = replace(REFERENCE, staging="s3://private/__magic_job-j1/")
    with pytest.raises(InvalidOption, match="has its staging at s3://private/"):
        committer_conf(elsewhere, "load", "2", writer="spark")


def test_importing_the_door_imports_no_pyspark() -> None:
    """Airflow's processes import `committer_conf` without PySpark and pyarrow."""
    heavy = "{'pyspark', 'pyarrow', 'boto3'}"
    code = f"import sys, airflow_s3commit.spark; sys.exit(bool({heavy} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)
