"""What tests of several folders share: a real S3 server, and a place of their own on it."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit.demo.seaweed import SeaweedServer
from airflow_s3commit.store.retry import RetryPolicy
from airflow_s3commit.store.s3 import S3Store

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The bucket on the shared server. Tests keep apart by prefix: a bucket costs the server seven volumes.
BUCKET = "lake"


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    """Run one SeaweedFS for the whole session (under xdist: one a worker)."""
    with SeaweedServer(tmp_path_factory.mktemp("seaweed"), (BUCKET,)) as server:
        yield server


@pytest.fixture(scope="session")
def seaweed_store(seaweed: SeaweedServer) -> S3Store:
    """Return a store on the session's SeaweedFS, with its administrator's keys."""
    return S3Store.connect(seaweed.config, retry=RetryPolicy(deadline=20.0))


@pytest.fixture
def bucket() -> str:
    """Return the bucket that the session's SeaweedFS has, and a `MemoryStore` has by default."""
    return BUCKET


@pytest.fixture
def prefix() -> str:
    """Return a prefix, with its slash, that no other test uses."""
    return f"test-{uuid.uuid4().hex}/"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many stops and schedules the crash suite really tried, under xdist too."""
    tried: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, value in report.user_properties:
            if name in ("stops", "schedules"):
                tried[name] += value
    if tried:
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(tried.items()))
        terminalreporter.write_line(f"crash suite: {counts} tried")
