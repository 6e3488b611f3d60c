"""The store of a process, and the credentials it found."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import AccessDenied, Unavailable
from airflow_s3commit.spark.session import renewing_store, store_of_process
from airflow_s3commit.store.credentials import StoreAddress

SETTINGS = StoreAddress("http://127.0.0.1:1", "us-east-1", path_style=True)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process keys."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "some")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def test_a_process_connects_once() -> None:
    """Tasks that run in one process share its store."""
    assert store_of_process(SETTINGS) is store_of_process(
        StoreAddress("http://127.0.0.1:1", "us-east-1", path_style=True)
    )


def test_a_driver_reads_credentials_again_when_its_own_are_refused() -> None:
    """After refused credentials the next step reconnects; after any other error it does not."""
    first = store_of_process(SETTINGS)
    with pytest.raises(Unavailable), renewing_store(SETTINGS):
        raise Unavailable("slow down")
    assert store_of_process(SETTINGS) is first
    with pytest.raises(AccessDenied), renewing_store(SETTINGS):
        raise AccessDenied("expired")
    assert store_of_process(SETTINGS) is not first
