"""What all crash tests share."""

from __future__ import annotations

import pytest

from airflow_s3commit.protocol.metadata import snapshot


@pytest.fixture(autouse=True)
def checkpoints_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a checkpoint follow every third entry, because few plays make thirteen entries."""
    monkeypatch.setattr(snapshot, "CHECKPOINT_EVERY", 3)
