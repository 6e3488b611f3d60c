"""The command line ``s3commit``: inspects jobs, finishes them, and cleans up after them."""

from __future__ import annotations

from airflow_s3commit.cli.app import main

__all__ = ["main"]
