"""Pytest fixtures for tests of pipelines against a real S3 server on loopback.

Name the plugin in the ``conftest.py`` at the root of your tests::

    pytest_plugins = ["airflow_s3commit.testing.pytest_plugin"]
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from airflow_s3commit.store.s3.store import S3Store
from airflow_s3commit.testing.s3_server import S3Server

BUCKET = "lake"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run an S3 server with the bucket ``lake`` for the session; with pytest-xdist, for each worker."""
    with S3Server(tmp_path_factory.mktemp("s3"), (BUCKET,)) as server:
        yield server


@pytest.fixture(scope="session")
def s3_store(s3_server: S3Server) -> S3Store:
    """Return a store on the session's S3 server, connected with the administrator's keys."""
    return S3Store.connect(s3_server.config)


@pytest.fixture
def s3_destination() -> str:
    """Return the URI of a destination on the session's S3 server that no other test uses."""
    return f"s3://{BUCKET}/test-{uuid.uuid4().hex}/"


@pytest.fixture
def s3_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Set the AWS variables to the session's S3 server and its keys for one test, and return them.

    boto3, this package and processes that the test starts then use this server, and no other credentials.
    """
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server.environment
