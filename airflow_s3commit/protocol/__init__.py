"""The commit protocol: pure Python over an object store, without Airflow and without Spark."""

from __future__ import annotations
