"""What all crash tests share."""

from __future__ import annotations

import pytest

from airflow_s3commit.protocol.steps import fold


@pytest.fixture(autouse=True)
def checkpoints_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a checkpoint follow every third entry, because few plays make thirteen entries."""
    monkeypatch.setattr(fold, "CHECKPOINT_EVERY", 3)
