"""Removing what dead jobs left behind: planned as a value, then applied."""

from __future__ import annotations

from airflow_s3commit._deprecated import forwarding

TYPE_CHECKING = False  # type checkers take it for true
if not TYPE_CHECKING:
    __getattr__ = forwarding("protocol.sweep")
