"""The page in Airflow's UI: the jobs of the configured destinations, and details of each job."""

from __future__ import annotations
