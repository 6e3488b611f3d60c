"""The operator that publishes commits to an Iceberg catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_s3commit.operators.base import S3CommitBaseOperator, refusals_are_final
from airflow_s3commit.protocol.model.destination import as_uri

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.xcom import JsonObject


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

    def execute(self, context: Context) -> JsonObject:
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
