"""What tests of several folders share: a real S3 server, and a place of their own on it."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from airflow_s3commit import RetryPolicy, S3Store

if TYPE_CHECKING:
    from airflow_s3commit.testing import S3Server

pytest_plugins = ["airflow_s3commit.testing.pytest_plugin"]

# On a busy machine any example may take long; what must be fast is measured in benchmarks.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

#: The bucket on the shared server. Tests keep apart by prefix: a bucket costs the server seven volumes.
BUCKET = "lake"


@pytest.fixture(scope="session")
def seaweed(s3_server: S3Server) -> S3Server:
    """Return the session's S3 server."""
    return s3_server


@pytest.fixture(scope="session")
def seaweed_store(seaweed: S3Server) -> S3Store:
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
