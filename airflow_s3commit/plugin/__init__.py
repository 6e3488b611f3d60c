"""The page in Airflow's UI: what is pending at the destinations, and one job from close by."""

from __future__ import annotations
