"""The fixtures that users' tests get: a server, a store, a destination, an environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import boto3
import pytest

from airflow_s3commit import Job

if TYPE_CHECKING:
    from airflow_s3commit import S3Store
    from airflow_s3commit.testing import S3Server

pytestmark = pytest.mark.seaweedfs


def test_a_job_commits_on_the_server(s3_store: S3Store, s3_destination: str) -> None:
    """A destination is empty and takes a job."""
    job = Job.setup(s3_store, s3_destination)
    with job.task_attempt("load", "1", "00000", "1") as task:
        with task.open("dt=1/a.csv") as file:
            file.write(b"1\n")
        written = task.commit()
    job.seal_stage("load", "1", [written])
    job.seal()
    assert job.commit().counts.files == 1


def test_clients_that_read_the_environment_reach_the_server(
    s3_server: S3Server, s3_environment: dict[str, str]
) -> None:
    """A client without arguments uses the server, whatever the machine was configured for."""
    assert "lake" in [bucket["Name"] for bucket in boto3.client("s3").list_buckets()["Buckets"]]
    assert (
        os.environ["AWS_ENDPOINT_URL_S3"] == s3_environment["AWS_ENDPOINT_URL_S3"] == s3_server.endpoint_url
    )
