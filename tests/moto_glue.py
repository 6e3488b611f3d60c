"""A table in moto's Glue, partitioned by a date."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from moto import mock_aws

from airflow_s3commit import GlueTable

FORMAT = {"SerializationLibrary": "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"}


@contextmanager
def glue_client() -> Iterator[Any]:
    """Return a client of an account with the table ``lake.flights``."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        client = boto3.client("glue", "eu-west-1")
        client.create_database(DatabaseInput={"Name": "lake"})
        storage = {
            "Columns": [{"Name": "id", "Type": "bigint"}],
            "Location": "s3://lake/flights",
            "SerdeInfo": FORMAT,
        }
        keys = [{"Name": "dt", "Type": "string"}]
        table = {"Name": "flights", "PartitionKeys": keys, "StorageDescriptor": storage}
        client.create_table(DatabaseName="lake", TableInput=table)
        yield client


def flights(client: Any) -> GlueTable:
    """Return the table as a process sees it that has just been started."""
    return GlueTable(client, "lake", "flights")


def registered(client: Any) -> dict[str, str]:
    """Return the locations of the table's partitions, by their value."""
    found = client.get_partitions(DatabaseName="lake", TableName="flights")["Partitions"]
    return {one["Values"][0]: one["StorageDescriptor"]["Location"] for one in found}
