"""Airflow sensors that wait for a commit."""

from __future__ import annotations

from airflow_s3commit._names import lazy

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from airflow_s3commit.sensors.success_manifest import S3SuccessManifestSensor

__all__ = [
    "S3SuccessManifestSensor",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__spec__)
