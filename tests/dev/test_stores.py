"""Jobs on other S3 servers than SeaweedFS; one that no registry has for this machine is skipped."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import Job, JobOptions
from airflow_s3commit.exceptions import JobFailed, StoreUnsuitable
from dev.stores import BUCKET, STORES, VIRTUAL_HOST, abort_many, connect, diagnose, run_jobs
from tests.store.s3.relay import relay
from tests.store.s3.test_conditions import run_jobs as replace_twice

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_s3commit import S3Config, S3Store

pytestmark = [pytest.mark.all, pytest.mark.slow]

#: Stores on which no job runs.
UNFIT = ("s3mock", "s3proxy")

#: Stores that list a part of a large dataset only: jobs run on small ones.
CUT = ("localstack",)

#: Each store, in the group of its server.
EACH = {name: pytest.param(name, marks=pytest.mark.xdist_group(f"store-{name}")) for name in STORES}


@pytest.fixture(params=[param for name, param in EACH.items() if name not in UNFIT])
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of each server that is fit, in turn."""
    return str(request.param)


@pytest.fixture
def other(name: str, other_server: Callable[[str], S3Config]) -> S3Store:
    """Return a store on it."""
    return connect(other_server(name))


@pytest.mark.parametrize("name", EACH.values())
def test_doctor_knows_it(name: str, other: S3Store) -> None:
    """Jobs fail where a store compares before it writes; the check of pages where it cuts listings."""
    failed = {check.name for check in diagnose(other).checks if check.verdict == "failed"}
    # Each check races; on a busy machine the first one may see nothing.
    assert bool({"fencing", "whole jobs"} & failed) == (name in UNFIT)
    assert ("pages of objects" in failed) == (name in CUT)
    assert not failed or name in (*UNFIT, *CUT)


def test_every_committer_and_mode(name: str, other: S3Store) -> None:
    """Three jobs in a row of each committer and mode leave the files that they should."""
    assert run_jobs(other, lists_uploads=name != "minio") == 18


def test_an_abort_finds_more_than_a_page_of_uploads(name: str, other: S3Store) -> None:
    """No pending upload of an aborted job is left, however many pages list them, if the store lists them."""
    if name == "minio":
        # It lists them by their exact keys only.
        with pytest.raises(StoreUnsuitable, match='track_pending="s3"'):
            abort_many(other)
    else:
        assert abort_many(other) == 0


def test_an_abort_finds_uploads_by_their_records(other: S3Store, prefix: str) -> None:
    """With records of them, the uploads of a dead task are gone on every store."""
    options = JobOptions(committer="magic", track_pending="s3")
    job = Job.setup(other, f"s3://{BUCKET}/{prefix}", options=options)
    attempt = job.task_attempt("stage", "1", "00000", "1")
    files = [attempt.open(f"dt={number}/part.bin") for number in range(20)]
    for file in files:
        file.write(b"content")
        file.close()
    pending = [upload for file in files for upload in other.list_uploads(BUCKET, file.key)]
    assert len(pending) == len(files)
    job.abort()
    assert [upload for file in files for upload in other.list_uploads(BUCKET, file.key)] == []


def test_a_job_whose_upload_is_gone_fails(name: str, other: S3Store) -> None:
    """If an upload was aborted behind a job's back, its commit fails with that reason, and shows nothing."""
    options = JobOptions(committer="magic", track_pending="s3" if name == "minio" else "task")
    job = Job.setup(other, f"s3://{BUCKET}/gone/", options=options)
    with job.task_attempt("stage", "1", "00000", "1") as attempt:
        with attempt.open("dt=1/part.bin") as file:
            file.write(b"lost")
        written = attempt.commit()
    job.seal_stage("stage", "1", [written])
    job.seal()
    for upload in list(other.list_uploads(BUCKET, file.key)):
        other.abort_upload(BUCKET, upload.key, upload.upload_id)
    with pytest.raises(JobFailed, match="gone"):
        job.commit()
    assert list(other.list_objects(BUCKET, "gone/dt=1/")) == []


@pytest.mark.xdist_group("store-gofakes3")
def test_virtual_hosts(other_server: Callable[[str], S3Config], monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run where the bucket is a part of the host's name; a proxy stands in for the names' DNS."""
    config = other_server("gofakes3")
    assert config.endpoint_url is not None
    with relay(config.endpoint_url) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.endpoint_url)
        monkeypatch.setenv("NO_PROXY", "")
        named = replace(config, endpoint_url=f"http://{VIRTUAL_HOST}", path_style=False)
        replace_twice(connect(named), "virtual/")
        assert {seen.headers["host"] for seen in proxy.seen} == {f"{BUCKET}.{VIRTUAL_HOST}"}
