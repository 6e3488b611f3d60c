"""The engines at the demo's end, on a table of two days."""

from __future__ import annotations

import io
from datetime import date

import pyarrow as pa
import pytest
from rich.console import Console

from airflow_s3commit import Destination, write_table
from dev.demo.engines import ask_engines

pytestmark = [pytest.mark.seaweedfs, pytest.mark.all]


def test_each_engine_says_what_it_sees(seaweed, seaweed_store, bucket, prefix, tmp_path_factory) -> None:
    """All see the rows of each day, and what is wrong is called so."""
    home = Destination.parse(f"s3://{bucket}/{prefix}flights/")
    days = [date(2013, 1, 1), date(2013, 1, 2)]
    rows = pa.table({"dt": [days[0], days[1], days[1]], "flight": [1, 2, 3]})
    write_table(rows, home, store=seaweed_store, partition_by=["dt"], conflict_mode="append")
    told = io.StringIO()
    console = Console(file=told, width=100)
    kept = tmp_path_factory.getbasetemp()
    assert ask_engines(console, seaweed.config, home, {"2013-01-01": 1, "2013-01-02": 2}, kept)
    assert not ask_engines(console, seaweed.config, home, {"2013-01-01": 1, "2013-01-02": 3}, kept)
    assert "plain Spark sees 3 rows of 2 days: right" in told.getvalue()
    assert "polars sees 3 rows of 2 days: right" in told.getvalue()
    assert "DuckDB sees 3 rows of 2 days: wrong" in told.getvalue()
