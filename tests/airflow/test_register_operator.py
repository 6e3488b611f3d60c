"""Registrations in Glue as tasks, on moto's Glue."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pyarrow as pa
import pytest
from airflow.providers.amazon.aws.hooks import glue_catalog
from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit import JobOptions, write_table
from airflow_s3commit.operators import S3CommitRegisterPartitionsOperator, S3CommitRegisterTableOperator
from tests.airflow.runs import DAY, FLIGHTS, commit
from tests.moto_glue import glue_client, registered


@pytest.fixture(autouse=True)
def in_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let boto3's default chain have the region of the test's catalog."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")


def test_it_registers_what_was_committed(store, context) -> None:
    """The catalog has the partitions of the commit; a retry changes nothing, and the XCom is small."""
    commit(store)
    with glue_client() as client:
        task = S3CommitRegisterPartitionsOperator(
            task_id="register", database="lake", table="flights", aws_conn_id=None
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
            task_id="register", database="lake", table="flat", aws_conn_id=None
        )
        with pytest.raises(AirflowFailException, match=r"lake\.flat has no partition columns"):
            task.execute(context)


def register_table(table: str = "delays") -> S3CommitRegisterTableOperator:
    """Return the task that registers the destination under a name."""
    return S3CommitRegisterTableOperator(
        task_id="register",
        destination=FLIGHTS,
        database="lake",
        table=table,
        aws_conn_id=None,
    )


def publish(store) -> None:
    """Commit a row to the destination, published."""
    rows = pa.table({"dt": ["2013-01-01"], "id": [1]})
    options = JobOptions(conflict_mode="append", publish="delta")
    write_table(rows, FLIGHTS, store=store, partition_by=["dt"], job_options=options)


def test_a_published_table_is_created_once(store, context) -> None:
    """Engines find its place, and that it is a Delta table; a second run finds it there."""
    publish(store)
    with glue_client() as client:
        first, second = register_table().execute(context), register_table().execute(context)
        found = client.get_table(DatabaseName="lake", Name="delays")["Table"]
    assert (first["created"], second["created"]) == (True, False)
    assert found["StorageDescriptor"]["Location"] == FLIGHTS
    assert found["Parameters"]["table_type"] == "DELTA"
    json.dumps(first)


def test_another_table_of_the_name_is_left_alone(store, context) -> None:
    """A table of plain files at the same place is not the Delta table: the task fails for good."""
    publish(store)
    with glue_client(), pytest.raises(AirflowFailException, match=r"another table lake\.flights already"):
        register_table("flights").execute(context)


def test_a_table_that_is_not_published_is_not_registered(store, context) -> None:
    """Engines would find no version there."""
    with glue_client(), pytest.raises(AirflowFailException, match="s3commit publish"):
        register_table().execute(context)
    commit(store)
    with glue_client() as client:
        with pytest.raises(AirflowFailException, match="s3commit publish"):
            register_table().execute(context)
        assert [one["Name"] for one in client.get_tables(DatabaseName="lake")["TableList"]] == ["flights"]


@pytest.mark.parametrize(("glue_conn_id", "used"), [(None, "lake"), ("glue", "glue")])
def test_the_account_and_the_connection_of_the_catalog_are_the_task_s(
    store, context, monkeypatch, glue_conn_id, used
) -> None:
    """Another account than the connection's own is named in every request, by both operators."""
    publish(store)
    accounts, hooks = set(), []
    account = {"catalog_id": "123456789012", "aws_conn_id": "lake", "glue_conn_id": glue_conn_id}
    with glue_client() as client:
        for request in ("Get", "BatchGet", "Create", "BatchCreate", "Update"):
            for name in ("Table", "Partitions", "Partition"):
                event = f"provide-client-params.glue.{request}{name}"
                client.meta.events.register(event, lambda params, **_: accounts.add(params.get("CatalogId")))
        hook = lambda *, aws_conn_id: hooks.append(aws_conn_id) or SimpleNamespace(conn=client)  # noqa: E731
        monkeypatch.setattr(glue_catalog, "GlueCatalogHook", hook)
        for kind, more in (
            (S3CommitRegisterPartitionsOperator, {"table": "flights"}),
            (S3CommitRegisterTableOperator, {"table": "delays", "destination": FLIGHTS}),
        ):
            kind(task_id="register", database="lake", **more, **account).execute(context)
    assert (accounts, hooks) == ({"123456789012"}, [used, used])
