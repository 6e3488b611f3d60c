"""Zero-rename S3 commits that Airflow drives.

A Spark stage uploads its output as multipart uploads that nobody completes; one Airflow task completes
them all. This module stays light: executors and every Airflow process import it.
"""

from __future__ import annotations

__version__ = "0.1.0.dev0"

__all__ = ["__version__"]
