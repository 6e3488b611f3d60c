"""A separate Airflow home for these tests, a store in memory behind the hook, and a run's context."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

# Airflow reads these when it is first imported, which the test modules do.
_HOME = tempfile.TemporaryDirectory(prefix="s3commit-airflow-")
os.environ["AIRFLOW_HOME"] = _HOME.name
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(Path(_HOME.name) / "dags")

from airflow_s3commit import MemoryStore  # noqa: E402 - after the environment
from airflow_s3commit.hooks import S3CommitHook, StoreAddress  # noqa: E402 - after the environment
from tests.airflow.runs import new_context  # noqa: E402 - after the environment


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """Return the store that every hook of the test reaches."""
    memory = MemoryStore(buckets=("lake",))
    monkeypatch.setattr(S3CommitHook, "store", property(lambda self: memory))
    monkeypatch.setattr(S3CommitHook, "address", property(lambda self: StoreAddress()))
    return memory


@pytest.fixture
def context() -> dict[str, Any]:
    """Return the context of a first try in a scheduled, partitioned run."""
    return new_context()
