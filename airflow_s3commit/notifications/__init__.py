"""Airflow notifiers for failed tasks and runs."""

from __future__ import annotations

from airflow_s3commit._names import lazy

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from airflow_s3commit.notifications.abort_uploads import AbortUploadsNotifier

__all__ = [
    "AbortUploadsNotifier",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__spec__)
