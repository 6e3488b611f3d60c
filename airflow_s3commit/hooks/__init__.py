"""How Airflow's tasks reach a store and a job."""

from __future__ import annotations
