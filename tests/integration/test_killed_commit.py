"""A commit whose process is really killed, on a real S3 server, and then run again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_s3commit import Job, JobOptions, JobReference, S3Config, S3Store
from airflow_s3commit.exceptions import AlreadyCommitted
from airflow_s3commit.testing import S3Server
from dev import stores as others
from dev.stores import connect

ROOT = Path(__file__).parents[2]
TASKS, PARTITIONS = 6, 5

#: How each killed process sends, in turn.
TRANSPORTS = ("boto3", "curl")


def strikes(count: int, *, held: int) -> list[Any]:
    """Return the numbers of the strikes; all but the first ones are left to `make test-all`."""
    return [n if n < held else pytest.param(n, marks=pytest.mark.all) for n in range(count)]


def _data(generation: str, task: int, partition: int) -> bytes:
    return f"{generation}: task {task}, partition {partition}".encode() * 50


def _write(store: S3Store, destination: str, generation: str) -> Job:
    """Upload one generation of the dataset, sealed and planned."""
    job = Job.setup(store, destination, options=JobOptions(conflict_mode="replace"))
    committed = []
    for task in range(TASKS):
        with job.task_attempt("spark", "1", f"{task:05d}", "0") as attempt:
            for partition in range(PARTITIONS):
                with attempt.open(f"dt={partition}/part-{task}.parquet") as file:
                    file.write(_data(generation, task, partition))
            committed.append(attempt.commit())
    with job.task_attempt("spark", "1", "00000", "twin") as late:
        with late.open("dt=0/part-0.parquet") as file:
            file.write(b"a speculative twin")
        late.commit()
    job.seal_stage("spark", "1", committed)
    job.seal()
    job.plan()
    return job


def _run_and_kill(config: S3Config, reference: JobReference, step: str, calls: int, transport: str) -> None:
    """Take a step in a process of its own and kill it when it is about to make this call."""
    environment = {
        **os.environ,
        "S3_ENDPOINT": str(config.endpoint_url),
        "S3_TRANSPORT": transport,
        "AWS_ACCESS_KEY_ID": str(config.access_key),
        "AWS_SECRET_ACCESS_KEY": str(config.secret_key),
    }
    command = [
        sys.executable,
        "-m",
        "tests.integration.commit_process",
        json.dumps(reference.to_dict()),
        step,
    ]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    made = 0
    for made, _ in enumerate(process.stdout, start=1):
        if made == calls:
            process.send_signal(signal.SIGKILL)
            break
    process.stdout.close()
    process.wait()
    print(f"{step} killed at call {made}, exit code {process.returncode}")


def _contents(store: S3Store, bucket: str, prefix: str) -> list[bytes]:
    keys = [info.key for info in store.list_objects(bucket, prefix) if "/dt=" in info.key]
    return sorted(store.get(bucket, key).body for key in keys)


@pytest.mark.seaweedfs
@pytest.mark.parametrize("strike", strikes(12, held=3))
def test_a_killed_commit_run_again_ends_as_if_never_killed(
    strike: int, seaweed: S3Server, seaweed_store: S3Store, bucket: str, prefix: str
) -> None:
    """After SIGKILL at a random call, committing again leaves the new files exactly, and nothing pending."""
    destination = f"s3://{bucket}/{prefix}"
    _write(seaweed_store, destination, "old").commit()
    job = _write(seaweed_store, destination, "new")

    # A commit of this size makes about 90 calls; the strikes are spread over all of them.
    calls = random.Random(strike).randint(7 * strike + 1, 7 * strike + 7)
    _run_and_kill(seaweed.config, job.reference, "commit", calls, TRANSPORTS[strike % 2])

    manifest = Job.at(seaweed_store, job.reference).commit()

    assert manifest.counts.files == TASKS * PARTITIONS
    _check_generation(seaweed_store, bucket, prefix, "new")


@pytest.mark.seaweedfs
@pytest.mark.parametrize("strike", strikes(6, held=2))
def test_a_killed_commit_and_a_killed_abort_end_either_way(
    strike: int, seaweed: S3Server, seaweed_store: S3Store, bucket: str, prefix: str
) -> None:
    """After SIGKILL of a commit and of its abort, aborting again restores the old files, or is too late."""
    destination = f"s3://{bucket}/{prefix}"
    _write(seaweed_store, destination, "old").commit()
    job = _write(seaweed_store, destination, "new")
    chance = random.Random(100 + strike)
    transport = TRANSPORTS[strike % 2]
    calls = chance.randint(15 * strike + 1, 15 * strike + 15)
    _run_and_kill(seaweed.config, job.reference, "commit", calls, transport)
    _run_and_kill(seaweed.config, job.reference, "abort", chance.randint(1, 40), transport)

    again = Job.at(seaweed_store, job.reference)
    try:
        again.abort()
    except AlreadyCommitted:
        again.commit()
        _check_generation(seaweed_store, bucket, prefix, "new")
    else:
        _check_generation(seaweed_store, bucket, prefix, "old")


@pytest.mark.all
@pytest.mark.slow
@pytest.mark.parametrize("strike", range(10))
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xdist_group(f"store-{name}"))
        for name in ("versitygw", "ceph", "localstack")
    ],
)
def test_a_killed_commit_is_finished_on_other_stores(
    name: str, strike: int, other_server: Callable[[str], S3Config], prefix: str
) -> None:
    """Wherever a commit is killed, another process's commit or abort ends with one generation, whole."""
    config = other_server(name)
    store = connect(config)
    destination = f"s3://{others.BUCKET}/{prefix}"
    _write(store, destination, "old").commit()
    job = _write(store, destination, "new")
    calls = random.Random(strike).randint(9 * strike + 1, 9 * strike + 9)
    _run_and_kill(config, job.reference, "commit", calls, TRANSPORTS[strike % 2])
    again = Job.at(connect(config), job.reference)
    generation = "new"
    try:
        if strike % 3 == 2:
            again.abort()
            generation = "old"
        else:
            again.commit()
    except AlreadyCommitted:
        again.commit()
    _check_generation(store, others.BUCKET, prefix, generation)


def _check_generation(store: S3Store, bucket: str, prefix: str, generation: str) -> None:
    expected = sorted(_data(generation, task, part) for task in range(TASKS) for part in range(PARTITIONS))
    assert _contents(store, bucket, prefix) == expected
    assert list(store.list_uploads(bucket, prefix)) == []
    left = [info.key for info in store.list_objects(bucket, f"{prefix}__magic_job-")]
    assert left == []
