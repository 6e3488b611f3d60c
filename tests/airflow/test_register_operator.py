"""The registration in Glue as a task, on moto's Glue."""

from __future__ import annotations

import json

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit.operators import S3CommitRegisterPartitionsOperator
from tests.airflow.runs import DAY, commit
from tests.moto_glue import glue_client, registered


def test_it_registers_what_was_committed(store, context) -> None:
    """The catalog has the partitions of the commit; a retry changes nothing, and the XCom is small."""
    commit(store)
    with glue_client() as client:
        task = S3CommitRegisterPartitionsOperator(
            task_id="register", database="lake", table="flights", aws_conn_id=None, region_name="eu-west-1"
        )
        first, second = task.execute(context), task.execute(context)
        assert registered(client) == {DAY.removeprefix("dt="): f"s3://lake/flights/{DAY}"}
    assert (first["generation"], first["partitions"], first["added"], first["removed"]) == (2, 1, 1, 0)
    assert (second["generation"], second["added"]) == (2, 0)
    json.dumps(first)


def test_a_refusal_is_final(store, context) -> None:
    """A table without partitions fails the task for good."""
    with glue_client() as client:
        storage = {"Columns": [], "Location": "s3://lake/flights/"}
        client.create_table(DatabaseName="lake", TableInput={"Name": "flat", "StorageDescriptor": storage})
        task = S3CommitRegisterPartitionsOperator(
            task_id="register", database="lake", table="flat", aws_conn_id=None, region_name="eu-west-1"
        )
        with pytest.raises(AirflowFailException, match=r"lake\.flat has no partition columns"):
            task.execute(context)
