"""What tests of several folders share: a real S3 server, and a place of their own on it."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import botocore.session
import pytest
from hypothesis import HealthCheck, settings

from airflow_s3commit import RetryPolicy, S3Store
from airflow_s3commit.testing.programs import ProgramFailed
from dev.stores import STORES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_s3commit import S3Config
    from airflow_s3commit.testing import S3Server

pytest_plugins = ["airflow_s3commit.testing.pytest_plugin", "tests.order"]

# On a busy machine any example may take long; what must be fast is measured in benchmarks.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Each session of boto3 parses megabytes of botocore's models, 85 of the 100 ms that a new client
# takes. Tests make hundreds of clients.
botocore.session.create_loader = cache(botocore.session.create_loader)

#: The tests that failed, a line each; `.ci/run` prints them last.
FAILED = Path(__file__).parents[1] / "build" / "failed-tests.txt"

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


@pytest.fixture(scope="session")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], S3Config]]:
    """Return what starts a server of `dev.stores`, once, and skips the test where it cannot be had."""
    with ExitStack() as stack:

        @cache
        def started(name: str) -> S3Config | str:
            try:
                STORES[name].get()
                return stack.enter_context(STORES[name].running(tmp_path_factory.mktemp(name)))
            except ProgramFailed as error:
                return str(error)

        def start(name: str) -> S3Config:
            server = started(name)
            if isinstance(server, str):
                pytest.skip(server)
            return server

        yield start


@pytest.fixture
def bucket() -> str:
    """Return the bucket that the session's SeaweedFS has, and a `MemoryStore` has by default."""
    return BUCKET


@pytest.fixture
def prefix() -> str:
    """Return a prefix, with its slash, that no other test uses."""
    return f"test-{uuid.uuid4().hex}/"


def pytest_sessionstart() -> None:
    """Forget what failed in an earlier run."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        FAILED.unlink(missing_ok=True)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the name of each test that fails, also of one that takes its worker or the session with it."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        FAILED.parent.mkdir(exist_ok=True)
        with FAILED.open("a") as file:
            file.write(f"{report.nodeid} ({report.when})\n")


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
