"""Jobs on other S3 servers than SeaweedFS; one that no registry has for this machine is skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import Job
from airflow_s3commit.exceptions import StoreUnsuitable
from dev.stores import BUCKET, STORES, abort_many, connect, diagnose, run_jobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_s3commit import S3Config, S3Store
    from airflow_s3commit.protocol.model.job import Fencing

pytestmark = [pytest.mark.all, pytest.mark.slow]


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.xdist_group(f"store-{name}")) for name in STORES]
)
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of each server in turn."""
    return str(request.param)


@pytest.fixture
def other(name: str, other_server: Callable[[str], S3Config]) -> S3Store:
    """Return a store on it."""
    return connect(other_server(name))


@pytest.fixture
def fencing(name: str) -> Fencing:
    """Return what it can promise: S3Mock compares first and writes later."""
    return "best-effort" if name == "s3mock" else "required"


def test_doctor_knows_it(other: S3Store, fencing: Fencing) -> None:
    """Whole jobs pass their rehearsal, unless concurrent writes are not kept apart."""
    failed = {check.name for check in diagnose(other).checks if check.verdict == "failed"}
    assert ("fencing" in failed) == (fencing == "best-effort")
    assert failed <= {"fencing"} or fencing == "best-effort"


def test_setup_knows_it(other: S3Store, fencing: Fencing) -> None:
    """Setup refuses a store that lets several concurrent writes succeed, and no other."""
    if fencing == "required":
        Job.setup(other, f"s3://{BUCKET}/jobs/").abort()
        return
    with pytest.raises(StoreUnsuitable, match="several of one key succeed"):
        Job.setup(other, f"s3://{BUCKET}/jobs/")


def test_every_committer_and_mode(other: S3Store, fencing: Fencing) -> None:
    """Three jobs in a row of each committer and mode leave the files that they should."""
    assert run_jobs(other, fencing) == 18


def test_an_abort_finds_more_than_a_page_of_uploads(other: S3Store, fencing: Fencing) -> None:
    """No pending upload of an aborted job is left, however many pages list them."""
    assert abort_many(other, fencing) == 0
