"""Operators that tell a catalog of commits: Iceberg's of snapshots, AWS Glue's of the table or partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.operators.base import S3CommitBaseOperator, refusals_are_final
from airflow_s3commit.protocol.model.destination import Destination, as_uri

if TYPE_CHECKING:
    from airflow.sdk import Context


class S3CommitPublishIcebergOperator(S3CommitBaseOperator):
    """Adds a snapshot to a table of an Iceberg catalog for each commit that it does not have yet.

    Engines that read the catalog's table see each commit whole. It opens and moves no data file, and uses
    only the table's log, so it may be retried, cleared and run in any order. Put it downstream of the commit,
    with a ``retain`` of the jobs that is longer than a query, and than the time from commit to snapshot.
    Returns the generation that the catalog has, and how many snapshots were added.

    :param destination: The dataset's directory: ``s3://bucket/prefix/`` or a `Destination`. (templated)
    :param table: The table in the catalog, with its namespace: ``lake.flights``. It is created if it is
        missing; its namespace exists. (templated)
    :param iceberg_conn_id: The ``iceberg`` connection of the catalog, of any type that pyiceberg has: REST,
        Glue, Hive, SQL. By its extra pyiceberg also writes to the destination's bucket. (templated)
    """

    template_fields: Sequence[str] = (
        *S3CommitBaseOperator.template_fields,
        "destination",
        "table",
        "iceberg_conn_id",
    )
    ui_color = "#e3f1ec"

    def __init__(
        self,
        *,
        destination: str | Destination,
        table: str,
        iceberg_conn_id: str = "iceberg_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destination = as_uri(destination)
        self.table = table
        self.iceberg_conn_id = iceberg_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish what is missing, and return the generation and the number of snapshots.

        :param context: The task's context.
        :raises AirflowFailException: Iceberg cannot have the table, or another program has written to it.
        """
        del context
        self.require_text("destination", "table", "iceberg_conn_id")
        from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook  # noqa: PLC0415

        from airflow_s3commit.iceberg import publish_iceberg  # noqa: PLC0415

        catalog = IcebergHook(self.iceberg_conn_id).catalog
        with refusals_are_final():
            report = publish_iceberg(self.hook.store, self.destination, catalog, self.table)
        self.log.info(
            "%s has generation %d of %s: added snapshots of %s",
            report.table,
            report.generation,
            report.destination,
            report.published or "none",
        )
        return {**report.to_dict(), "published": len(report.published)}


class _GlueOperator(S3CommitBaseOperator):
    """A task that uses a table in the AWS Glue Data Catalog.

    :param database: The database in Glue. (templated)
    :param table: The table. (templated)
    :param catalog_id: The account with the catalog; None for the connection's own. (templated)
    :param glue_conn_id: The ``aws`` connection of Glue; by default ``aws_conn_id``. (templated)
    """

    template_fields: Sequence[str] = (
        *S3CommitBaseOperator.template_fields,
        "database",
        "table",
        "catalog_id",
        "glue_conn_id",
    )
    ui_color = "#e3f1ec"

    def __init__(
        self,
        *,
        database: str,
        table: str,
        catalog_id: str | None = None,
        glue_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.database = database
        self.table = table
        self.catalog_id = catalog_id
        self.glue_conn_id = glue_conn_id

    def client(self) -> Any:
        """Return a client of Glue, by the task's connection."""
        self.require_text("database", "table", "catalog_id", "glue_conn_id")
        from airflow.providers.amazon.aws.hooks.glue_catalog import GlueCatalogHook  # noqa: PLC0415

        from airflow_s3commit.store.s3.config import made_by_boto3  # noqa: PLC0415

        conn_id = self.glue_conn_id or self.aws_conn_id
        hook: Any = GlueCatalogHook(  # type: ignore[no-untyped-call]  # the provider has no types
            aws_conn_id=conn_id, region_name=self.region_name, verify=self.verify
        )
        return made_by_boto3(lambda: hook.conn, f"the connection {conn_id!r}")


class S3CommitRegisterPartitionsOperator(_GlueOperator):
    """Makes the partitions of a table in the AWS Glue Data Catalog those of its newest commit.

    It adds partitions that commits have created, and removes those that a ``replace`` or a roll-back has
    emptied, or that Spark added for a write that was aborted. It does not touch files. It uses only the
    table's log, so it may be retried, cleared and run in any order. Put it downstream of the commit; with
    ``trigger_rule="all_done"`` it runs after a failed commit too. Returns the generation and the numbers of
    partitions. The table's location is the destination.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Register the partitions, and return the generation and how many there are.

        :param context: The task's context.
        :raises AirflowFailException: The table is not partitioned like its directories, or has replaced files
            that are retained.
        """
        del context
        from airflow_s3commit.protocol.publication import register_partitions  # noqa: PLC0415
        from airflow_s3commit.store.s3.glue import GlueTable  # noqa: PLC0415

        table = GlueTable(self.client(), self.database, self.table, catalog_id=self.catalog_id)
        with refusals_are_final():
            report = register_partitions(self.hook.store, table)
        self.log.info(
            "Table %s has the %d partitions of generation %d: added %s, removed %s",
            table.name,
            report.partitions,
            report.generation,
            report.added or "none",
            report.removed or "none",
        )
        return {
            "destination": report.destination,
            "generation": report.generation,
            "partitions": report.partitions,
            "added": len(report.added),
            "removed": len(report.removed),
        }


class S3CommitRegisterTableOperator(_GlueOperator):
    """Creates a table in the AWS Glue Data Catalog, which engines read as the Delta table that jobs publish.

    It is needed once: each query looks for the newest version itself. Where the table is there already, the
    task succeeds. It does not touch files. Returns whether the table was created.

    :param destination: The dataset's directory: ``s3://bucket/prefix/`` or a `Destination`. (templated)
    """

    template_fields: Sequence[str] = (*_GlueOperator.template_fields, "destination")

    def __init__(self, *, destination: str | Destination, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.destination = as_uri(destination)

    def execute(self, context: Context) -> dict[str, Any]:
        """Create the table unless it is there.

        :param context: The task's context.
        :raises AirflowFailException: Glue has another table of this name, or the dataset is not published.
        """
        del context
        self.require_text("destination")
        from airflow_s3commit.protocol.steps.fold import newest_entry  # noqa: PLC0415
        from airflow_s3commit.store.s3.glue import create_delta_table  # noqa: PLC0415

        with refusals_are_final():
            home = Destination.parse(self.destination)
            newest = newest_entry(self.hook.store, home)
            if newest is None or not newest.entry.published:
                raise InvalidOption(f"{home.uri} is not published: run s3commit publish {home.uri}")
            created = create_delta_table(
                self.client(), self.database, self.table, home.uri, catalog_id=self.catalog_id
            )
        return {"destination": home.uri, "table": f"{self.database}.{self.table}", "created": created}
