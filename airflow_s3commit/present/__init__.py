"""Descriptions of jobs that the command line and the page in Airflow share; no terminal, no HTML."""

from __future__ import annotations
