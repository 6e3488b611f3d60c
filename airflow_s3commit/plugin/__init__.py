"""The page in Airflow's UI: the jobs of the configured destinations, and one job in detail."""

from __future__ import annotations
