"""The steps of a commit as Airflow tasks."""

from __future__ import annotations
