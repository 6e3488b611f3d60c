"""Sweeps: plan the removal of what dead jobs left, as a value, and apply the plan."""

from __future__ import annotations

from airflow_s3commit._names import forwarding

TYPE_CHECKING = False  # type checkers take it for true
if not TYPE_CHECKING:
    __getattr__ = forwarding("protocol.sweep")
