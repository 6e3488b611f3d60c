"""From a connection to a store and to what Spark needs."""

from __future__ import annotations

import json
import os

import pytest

from airflow_s3commit.hooks.s3_commit import S3CommitHook
from airflow_s3commit.store.s3 import S3Store

SECRET = "not-for-anyones-eyes"


@pytest.fixture
def connect(monkeypatch):
    """Define the ``aws`` connection ``lake`` as an environment variable, as Airflow reads it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def define(*, login: str | None = "key-id", **extra: object) -> S3CommitHook:
        described = {"conn_type": "aws", "extra": {"region_name": "eu-west-1", **extra}}
        if login:
            described |= {"login": login, "password": SECRET}
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(described))
        return S3CommitHook("lake")

    return define


def test_the_connection_makes_the_store(connect) -> None:
    """Endpoint and region come from the connection; the client asks once and by path."""
    hook = connect(endpoint_url="http://127.0.0.1:8333")
    assert isinstance(hook.store, S3Store)
    client = hook.aws.conn
    assert client.meta.endpoint_url == "http://127.0.0.1:8333"
    assert client.meta.region_name == "eu-west-1"
    assert client.meta.config.retries["total_max_attempts"] == 1
    assert client.meta.config.s3["addressing_style"] == "path"


def test_the_address_has_no_credentials(connect) -> None:
    """What goes into a Spark configuration is endpoint, region and addressing, and no more."""
    address = connect(endpoint_url="http://127.0.0.1:8333").address
    assert (address.endpoint_url, address.region, address.path_style) == (
        "http://127.0.0.1:8333",
        "eu-west-1",
        None,
    )
    assert SECRET not in repr(address)


def test_the_connections_addressing_wins(connect) -> None:
    """An addressing style in the connection's ``config_kwargs`` is kept."""
    hook = connect(config_kwargs={"s3": {"addressing_style": "virtual"}}, endpoint_url="http://s3.lan:9000")
    assert hook.address.path_style is False
    assert hook.aws.conn.meta.config.s3["addressing_style"] == "virtual"


def test_keys_of_the_connection_reach_programs_it_starts(connect) -> None:
    """Within the block the keys are in the environment; outside they are not."""
    hook = connect()
    with hook.credentials_in_environment():
        assert os.environ["AWS_ACCESS_KEY_ID"] == "key-id"
        assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET
        assert "AWS_SESSION_TOKEN" not in os.environ
    assert "AWS_SECRET_ACCESS_KEY" not in os.environ


@pytest.mark.parametrize("extra", [{"login": None}, {"role_arn": "arn:aws:iam::123456789012:role/lake"}])
def test_a_connection_without_keys_of_its_own_changes_nothing(connect, extra) -> None:
    """Roles and instance identities are left to the machines that have them."""
    before = dict(os.environ)
    hook = connect(**extra)
    with hook.credentials_in_environment():
        assert {name for name in os.environ if name.startswith("AWS_")} == {
            name for name in before if name.startswith("AWS_")
        }
