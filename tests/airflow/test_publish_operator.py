"""The publication to Iceberg as a task, with the catalogs that a connection can name."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyiceberg")

from airflow.sdk.exceptions import AirflowFailException
from moto.server import ThreadedMotoServer
from pyiceberg.catalog import load_catalog

from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.operators import S3CommitPublishIcebergOperator
from tests.iceberg.conftest import NAME, Lake, in_order, properties, rows

pytestmark = [pytest.mark.seaweedfs]


@pytest.fixture
def lake(seaweed, seaweed_store, bucket, prefix, monkeypatch) -> Lake:
    """Return a table on the S3 server, which every hook of the test reaches."""
    monkeypatch.setattr(S3CommitHook, "store", property(lambda self: seaweed_store))
    return Lake(seaweed.config, seaweed_store, f"s3://{bucket}/{prefix}flights/")


@pytest.fixture(params=["sql", "glue"])
def extra(request, seaweed, tmp_path):
    """Return the extra of a connection, by the kind of its catalog."""
    if request.param == "sql":
        yield {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", **properties(seaweed.config)}
        return
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    keys = dict.fromkeys(("glue.access-key-id", "glue.secret-access-key"), "x")
    address = {
        "glue.endpoint": "http://{}:{}".format(*server.get_host_and_port()),
        "glue.region": "eu-west-1",
    }
    yield {"type": "glue", **address, **keys, **properties(seaweed.config)}
    server.stop()


def test_a_commit_is_a_snapshot_in_the_catalog_of_the_connection(lake, extra, context, monkeypatch) -> None:
    """The rows are read by way of the catalog; a retry adds nothing, and the XCom is small."""
    connection = {"conn_type": "iceberg", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_CATALOG", json.dumps(connection))
    load_catalog("catalog", **extra).create_namespace("lake")
    task = S3CommitPublishIcebergOperator(
        task_id="publish", destination=lake.uri, table=NAME, iceberg_conn_id="catalog"
    )
    lake.write(rows(0))
    first, second = task.execute(context), task.execute(context)
    lake.write(rows(100), "replace")
    third = task.execute(context)
    assert [one["published"] for one in (first, second, third)] == [1, 0, 1]
    assert third["generation"] == 3
    json.dumps(third)
    table = load_catalog("catalog", **extra).load_table(NAME)
    assert in_order(table.scan().to_arrow()) == lake.truth()


def test_a_refusal_is_final(lake, context, monkeypatch, tmp_path, seaweed) -> None:
    """A namespace that is not there fails the task for good."""
    extra = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", **properties(seaweed.config)}
    connection = {"conn_type": "iceberg", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(connection))
    lake.write(rows(0))
    task = S3CommitPublishIcebergOperator(task_id="publish", destination=lake.uri, table="none.flights")
    with pytest.raises(AirflowFailException, match="no namespace for none"):
        task.execute(context)
