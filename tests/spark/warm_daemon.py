"""PySpark's daemon of Python workers with the libraries loaded that each worker would load anew.

Spark starts several short processes for each write of a data source in Python, and each takes about a second
to import them. A worker is a fork of this process.
"""

from __future__ import annotations

import importlib
import runpy

LIBRARIES = (
    "boto3",
    "pandas",
    "pyarrow.parquet",
    "airflow_s3commit.spark.write",
    "airflow_s3commit.store.s3.store",
)

if __name__ == "__main__":
    for name in (*LIBRARIES, "airflow_s3commit.spark.datasource"):
        importlib.import_module(name)
    # Our code asks by its name whether it runs in Spark's own process.
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
