"""A table in the AWS Glue Data Catalog, and its partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from botocore import xform_name

from airflow_s3commit.exceptions import InvalidOption, OutcomeUnknown, Unavailable
from airflow_s3commit.store.execute import in_batches
from airflow_s3commit.store.s3.request import Request, translate

#: Glue's limits on the partitions of one request.
_MOST_CREATED = 100
_MOST_DELETED = 25

#: Number of times to send partitions that failed in a request.
_TRIES = 3

#: Errors which mean that an earlier try, or another registration, has done it already.
_DONE = frozenset({"AlreadyExistsException", "EntityNotFoundException"})


class _TableRequest(Request, frozen=True):
    """A request on a Glue table, whose name takes the place of the bucket."""

    def __str__(self) -> str:
        return f"{self.operation} of the table {self.bucket}"

    @property
    def permission(self) -> str:
        return f"glue:{self.operation}"

    def unconfirmed(self, why: str) -> OutcomeUnknown | Unavailable:
        kind = Unavailable if self.operation.startswith("Get") else OutcomeUnknown
        return kind(f"{self}: {why}; register it again")


def create_delta_table(
    client: Any, database: str, table: str, location: str, *, catalog_id: str | None = None
) -> bool:
    """Create a Glue table that engines read as the Delta table at a location, unless it exists.

    It has no columns: engines read those of the Delta log at each query. Returns whether it was missing.
    Repeatable. The database must exist; ``catalog_id`` is the catalog's account, by default the caller's.

    Raises `InvalidOption` if Glue has another table of this name; `S3CommitError` if it refused the request.
    """
    account = {} if catalog_id is None else {"CatalogId": catalog_id}
    formats = {"table_type": "DELTA", "classification": "delta", "spark.sql.sources.provider": "delta"}
    made = {
        "Name": table,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {**formats, "EXTERNAL": "TRUE"},
        "StorageDescriptor": {"Location": location, "Columns": []},
    }
    try:
        client.create_table(DatabaseName=database, TableInput=made, **account)
        return True
    except client.exceptions.AlreadyExistsException:
        found = GlueTable(client, database, table, catalog_id=catalog_id).described
    except Exception as error:
        raise translate(error, _TableRequest("CreateTable", f"{database}.{table}")) from error
    there = found.get("StorageDescriptor", {}).get("Location", "")
    kind = found.get("Parameters", {}).get("table_type", "")
    if there.rstrip("/") != location.rstrip("/") or kind.upper() != "DELTA":
        raise InvalidOption(
            f"Glue has another table {database}.{table} already, {kind or 'of files'} at"
            f" {there or 'no place'}: drop it, or choose another name"
        )
    return False


class GlueTable:
    """A table of Glue, for `airflow_s3commit.register_partitions`.

    New partitions get the table's format, and a location below the table's. Nothing is deleted on S3.

    Args:
        client: A boto3 client for ``glue``.
        database: The database.
        catalog_id: The account with the catalog; None for the caller's own.
    """

    def __init__(self, client: Any, database: str, table: str, *, catalog_id: str | None = None) -> None:
        self._client = client
        self.name = f"{database}.{table}"
        self._table = {"DatabaseName": database, "TableName": table}
        if catalog_id is not None:
            self._table["CatalogId"] = catalog_id
        self._locations: dict[tuple[str, ...], str] = {}
        self._described: Mapping[str, Any] | None = None

    @property
    def location(self) -> str:
        """URI of the table's directory.

        Raises:
            S3CommitError: Glue does not return the table; `StoreRejected` if there is none.
        """
        return str(self.described["StorageDescriptor"]["Location"])

    @property
    def columns(self) -> Sequence[str]:
        """The partition columns, outermost first."""
        return [column["Name"] for column in self.described.get("PartitionKeys", ())]

    def partitions(self) -> Collection[tuple[str, ...]]:
        """Return the values of the table's partitions."""
        pages = self._client.get_paginator("get_partitions").paginate(**self._table, ExcludeColumnSchema=True)
        read = self._call("GetPartitions", lambda: list(pages))
        self._locations = {
            tuple(partition["Values"]): partition.get("StorageDescriptor", {}).get("Location", "")
            for page in read
            for partition in page["Partitions"]
        }
        return self._locations.keys()

    def location_of(self, partition: tuple[str, ...]) -> str:
        """Return the URI of the directory of a partition that `partitions` has returned."""
        return self._locations[partition]

    def add(self, partitions: Sequence[tuple[str, ...]], directories: Sequence[str]) -> None:
        """Add partitions, with directories relative to the table's. Existing ones are not changed.

        Raises:
            OutcomeUnknown: Glue has not added some of them.
            S3CommitError: Glue refused the request.
        """
        storage, home = self.described["StorageDescriptor"], self.location.rstrip("/")
        inputs = {
            values: {
                "Values": list(values),
                "StorageDescriptor": {**storage, "Location": f"{home}/{directory}"},
            }
            for values, directory in zip(partitions, directories, strict=True)
        }
        self._all("BatchCreatePartition", "PartitionInputList", inputs, _MOST_CREATED)

    def remove(self, partitions: Sequence[tuple[str, ...]]) -> None:
        """Remove partitions; their files stay.

        Raises:
            OutcomeUnknown: Glue has not removed some of them.
            S3CommitError: Glue refused the request.
        """
        inputs = {values: {"Values": list(values)} for values in partitions}
        self._all("BatchDeletePartition", "PartitionsToDelete", inputs, _MOST_DELETED)

    @property
    def described(self) -> Mapping[str, Any]:
        """The table, as Glue described it at the first use. Raises what `location` raises."""
        if self._described is None:
            name = {key.replace("TableName", "Name"): value for key, value in self._table.items()}
            self._described = dict(self._call("GetTable", lambda: self._client.get_table(**name))["Table"])
        return self._described

    def _all(
        self, operation: str, name: str, inputs: Mapping[tuple[str, ...], Mapping[str, Any]], most: int
    ) -> None:
        """Send partitions in the parameter ``name``, at most ``most`` per request; resend those that fail."""
        send = getattr(self._client, xform_name(operation))
        left, why = list(inputs), ""
        for _ in range(_TRIES):
            failed = []
            for batch in in_batches(left, most):
                chosen = {name: [inputs[values] for values in batch]}
                answer = self._call(operation, partial(send, **self._table, **chosen))
                for error in answer.get("Errors", ()):
                    detail = error.get("ErrorDetail", {})
                    if detail.get("ErrorCode") not in _DONE:
                        failed.append(tuple(error["PartitionValues"]))
                        why = f"{detail.get('ErrorCode')} {detail.get('ErrorMessage', '')}".strip()
            left = failed
            if not left:
                return
        raise OutcomeUnknown(
            f"{operation} of the table {self.name}: {len(left)} of {len(inputs)} partitions failed, such"
            f" as {'/'.join(left[0])}: {why}; register them again"
        )

    def _call(self, operation: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise translate(error, _TableRequest(operation, self.name)) from error
