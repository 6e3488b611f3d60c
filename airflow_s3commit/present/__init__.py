"""What the command line and the page in Airflow both say of a job; knows neither a terminal nor HTML."""

from __future__ import annotations
