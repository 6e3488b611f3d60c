"""The Airflow hook for a store and its jobs."""

from __future__ import annotations

from airflow_s3commit._names import lazy

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from airflow_s3commit.hooks.s3_commit import S3CommitHook
    from airflow_s3commit.store.credentials import StoreAddress

__all__ = [
    "S3CommitHook",
    "StoreAddress",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__spec__)
