"""Jobs on other S3 servers than SeaweedFS; one that no registry has for this machine is skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dev.stores import STORES, abort_many, connect, diagnose, run_jobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_s3commit import S3Config, S3Store

pytestmark = [pytest.mark.all, pytest.mark.slow]


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.xdist_group(f"store-{name}")) for name in STORES]
)
def other(request: pytest.FixtureRequest, other_server: Callable[[str], S3Config]) -> S3Store:
    """Return a store on each server in turn."""
    return connect(other_server(request.param))


def test_doctor_knows_it(other: S3Store, request: pytest.FixtureRequest) -> None:
    """Whole jobs pass their rehearsal, but on S3Mock, which compares first and writes later."""
    failed = [check.name for check in diagnose(other).checks if check.verdict == "failed"]
    assert failed == (["fencing"] if "s3mock" in request.node.name else [])


def test_every_committer_and_mode(other: S3Store) -> None:
    """Three jobs in a row of each committer and mode leave the files that they should."""
    assert run_jobs(other) == 18


def test_an_abort_finds_more_than_a_page_of_uploads(other: S3Store) -> None:
    """No pending upload of an aborted job is left, however many pages list them."""
    assert abort_many(other) == 0
