"""The command line ``s3commit``: inspects jobs, finishes them, and cleans up after them."""

from __future__ import annotations

from airflow_s3commit._names import lazy

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from airflow_s3commit.cli.app import main

__all__ = ["main"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__spec__)
