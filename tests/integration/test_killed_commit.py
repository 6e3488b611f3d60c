"""A commit whose process is really killed, on a real S3 server, and then run again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from airflow_s3commit import Job, JobOptions, S3Config, S3Store
from airflow_s3commit.exceptions import AlreadyCommitted
from airflow_s3commit.testing import S3Server
from dev import stores as others
from dev.killed import (
    KILLS,
    PARTITIONS,
    TASKS,
    TRANSPORTS,
    Generation,
    call_of,
    check_generation,
    finish_killed,
    run_and_kill,
)

REPLACE = JobOptions(conflict_mode="replace")


def strikes(count: int, *, held: int) -> list[Any]:
    """Return the numbers of the strikes; all but the first ones are left to `make test-all`."""
    return [n if n < held else pytest.param(n, marks=pytest.mark.all) for n in range(count)]


@pytest.mark.seaweedfs
@pytest.mark.parametrize("strike", strikes(12, held=3))
def test_a_killed_commit_run_again_leaves_no_trace_of_the_kill(
    strike: int, seaweed: S3Server, seaweed_store: S3Store, bucket: str, prefix: str
) -> None:
    """After SIGKILL at a random call, a second commit leaves exactly the new files, and nothing pending."""
    destination = f"s3://{bucket}/{prefix}"
    Generation(seaweed_store, destination, "old", REPLACE).job.commit()
    job = Generation(seaweed_store, destination, "new", REPLACE).job

    calls = call_of(strike, 12)
    assert run_and_kill(seaweed.config, job.reference, "commit", calls, TRANSPORTS[strike % 2])

    manifest = Job.at(seaweed_store, job.reference).commit()

    assert manifest.counts.files == TASKS * PARTITIONS
    check_generation(seaweed_store, bucket, prefix, "new")


@pytest.mark.seaweedfs
@pytest.mark.parametrize("strike", strikes(6, held=2))
def test_a_killed_commit_and_a_killed_abort_end_either_way(
    strike: int, seaweed: S3Server, seaweed_store: S3Store, bucket: str, prefix: str
) -> None:
    """After a commit and its abort were killed, a second abort restores the old files, or is too late."""
    destination = f"s3://{bucket}/{prefix}"
    Generation(seaweed_store, destination, "old", REPLACE).job.commit()
    job = Generation(seaweed_store, destination, "new", REPLACE).job
    chance = random.Random(100 + strike)
    transport = TRANSPORTS[strike % 2]
    assert run_and_kill(seaweed.config, job.reference, "commit", call_of(strike, 6), transport)
    run_and_kill(seaweed.config, job.reference, "abort", chance.randint(1, 40), transport)

    again = Job.at(seaweed_store, job.reference)
    try:
        again.abort()
    except AlreadyCommitted:
        again.commit()
        check_generation(seaweed_store, bucket, prefix, "new")
    else:
        check_generation(seaweed_store, bucket, prefix, "old")


@pytest.mark.all
@pytest.mark.slow
@pytest.mark.parametrize("strike", range(KILLS))
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xdist_group(f"store-{name}"))
        for name, result in others.results().items()
        if result.killed
    ],
)
def test_a_killed_commit_is_finished_on_other_stores(
    name: str, strike: int, other_server: Callable[[str], S3Config], prefix: str
) -> None:
    """Wherever a commit is killed, another process's commit or abort ends with one complete generation."""
    options = others.job_options("partitioned", "replace", lists_uploads=name != "minio")
    loses = others.STORES[name].loses_uploads
    finish_killed(other_server(name), others.BUCKET, prefix, options, strike, loses_uploads=loses)
