"""Links from a task in Airflow's UI to what it left on S3."""

from __future__ import annotations
