"""S3 through boto3, which can make every call; `curl` is the fast path for many small ones."""

from __future__ import annotations

from airflow_s3commit._names import forwarding

TYPE_CHECKING = False  # type checkers take it for true
if not TYPE_CHECKING:
    __getattr__ = forwarding("store.s3")
