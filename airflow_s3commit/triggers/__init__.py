"""Airflow triggers that wait for a commit."""

from __future__ import annotations

from airflow_s3commit._names import lazy

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from airflow_s3commit.triggers.success_manifest import (
        S3SuccessManifestEventTrigger,
        S3SuccessManifestTrigger,
    )

__all__ = [
    "S3SuccessManifestEventTrigger",
    "S3SuccessManifestTrigger",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__spec__)
