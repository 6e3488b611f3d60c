"""Compaction as a task."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit import InvalidOption, Job, compact, latest_manifest, write_table
from airflow_s3commit.operators import S3CommitCompactOperator
from airflow_s3commit.operators.setup import job_context
from airflow_s3commit.protocol.model.destination import Destination
from tests.airflow.runs import DAY, FLIGHTS, new_context, pending, rendered, visible, write_stage


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


def test_its_options_count(store, context) -> None:
    """A file ends after the given size, by default 128 MiB, and what is replaced is retained as asked."""
    filled(store)
    asked = {"task_id": "compact", "destination": FLIGHTS, "retain": "7d"}
    assert S3CommitCompactOperator(**asked, target_bytes=1).execute(context)["generation"] is None
    task = S3CommitCompactOperator(**asked)
    assert task.target_bytes == 2**27
    assert task.execute(context)["files"] == 1
    assert len(visible(store)) == 3


def test_only_the_named_partitions_are_compacted(store, context) -> None:
    """The others keep their small files."""
    filled(store)
    for number in range(2):
        rows = pa.table({"id": [number], "dt": ["2013-01-02"]})
        write_table(rows, FLIGHTS, store=store, conflict_mode="append", partition_by=["dt"])
    task = S3CommitCompactOperator(task_id="compact", destination=FLIGHTS, partitions=[DAY])
    assert task.execute(context)["partitions"] == 1
    assert len(visible(store)) == 3


def test_an_empty_list_of_partitions_compacts_none(store, context) -> None:
    """Another task that has found no partition must not have the whole table written anew."""
    filled(store)
    task = rendered(S3CommitCompactOperator, "compact", partitions=[], destination=FLIGHTS)
    assert (task.execute(context)["partitions"], len(visible(store))) == (0, 2)
    assert compact(store, FLIGHTS, partitions=[]).generation is None
    named = S3CommitCompactOperator(task_id="named", destination=FLIGHTS, partitions=[])
    assert named.execute(context)["generation"] is None


def test_a_retry_aborts_what_a_killed_try_has_uploaded(store, monkeypatch) -> None:
    """Uploads of another job are refused, and those of an earlier try of the task are not another job's."""
    monkeypatch.setattr("airflow_s3commit.operators.abort.sleep", lambda _: None)
    filled(store)
    killed = Job.setup(store, FLIGHTS, context=job_context(new_context(1)))
    write_stage(store, killed.reference.to_dict(), seal=False)
    task = S3CommitCompactOperator(task_id="compact", destination=FLIGHTS)
    with pytest.raises(AirflowFailException, match=killed.reference.job_id):
        task.execute(new_context(2, dag_run={"run_id": "another"}))
    assert task.execute(new_context(2))["rows"] == 2
    assert pending(store) == []
