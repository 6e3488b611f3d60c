"""What all plays have in common."""

from __future__ import annotations

import pytest

from airflow_s3commit.protocol.metadata import snapshot


@pytest.fixture(autouse=True)
def checkpoints_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every third entry of a log followed by a checkpoint: few plays make thirteen."""
    monkeypatch.setattr(snapshot, "CHECKPOINT_EVERY", 3)
