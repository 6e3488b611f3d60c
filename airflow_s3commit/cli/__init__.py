"""``s3commit``: looking at jobs, finishing them, cleaning up after them, from a terminal or a script."""

from __future__ import annotations

from airflow_s3commit.cli.program import main

__all__ = ["main"]
