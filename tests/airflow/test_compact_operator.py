"""Compaction as a task."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit import InvalidOption, latest_manifest, write_table
from airflow_s3commit.operators import S3CommitCompactOperator
from airflow_s3commit.protocol.model.destination import Destination
from tests.airflow.runs import DAY, FLIGHTS


def filled(store) -> None:
    """Commit two files of a day."""
    for number in range(2):
        rows = pa.table({"id": [number], "dt": ["2013-01-01"]})
        write_table(rows, FLIGHTS, store=store, conflict_mode="append", partition_by=["dt"])


def test_it_returns_what_it_wrote(store, context) -> None:
    """The XCom has numbers, the commit has the run, and a retry changes nothing."""
    filled(store)
    task = S3CommitCompactOperator(task_id="compact", destination=FLIGHTS, partitions=DAY)
    first, second = task.execute(context), task.execute(context)
    assert (first["generation"], first["partitions"], first["files"], first["rows"]) == (4, 1, 1, 2)
    assert (second["generation"], second["files"]) == (None, 0)
    json.dumps(first)
    manifest = latest_manifest(store, Destination.parse(FLIGHTS))
    assert (manifest.generation, manifest.context["dag_id"]) == (4, "nightly")


def test_a_refusal_is_final(store, context) -> None:
    """A partition that the table lacks fails the task for good; a wrong option fails the DAG's file."""
    filled(store)
    task = S3CommitCompactOperator(task_id="compact", destination=FLIGHTS, partitions=["dt=no"])
    with pytest.raises(AirflowFailException, match="dt=no"):
        task.execute(context)
    with pytest.raises(InvalidOption, match="compact: options: retain"):
        S3CommitCompactOperator(task_id="compact", destination=FLIGHTS, retain="soon")
