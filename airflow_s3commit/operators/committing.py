"""What the commit does as one task, and what the last task of a sharded commit does too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowException

from airflow_s3commit.links.manifest import ManifestLink
from airflow_s3commit.operators.base import CommitStepOperator

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import BaseOperatorLink, Context

    from airflow_s3commit.protocol.progress import Progress, ProgressLog
    from airflow_s3commit.protocol.records import ManifestRecord
    from airflow_s3commit.xcom import JsonObject

__all__ = ["CompletingOperator", "ManifestOperator", "etag_of"]


class CompletingOperator(CommitStepOperator):
    """A step that completes uploads: it reports how far it is, and stops when it is killed.

    :param job: The job reference. (templated)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._killed = False
        self._told: ProgressLog | None = None

    def on_kill(self) -> None:
        """Stop completing uploads. The teardown, or the next try, settles what is half done.

        The job is not fenced off here. Before the point of no return a retry finishes what was begun (after
        a timeout there may be one), and the teardown rolls it back if there is none. After it the data is
        visible for good: the commit goes on for as long as it is let, and whoever comes next does the rest.
        """
        # Airflow goes on running execute() after this returns, for up to five seconds.
        self._killed = True

    def report_progress(self, progress: Progress) -> None:
        """Log how far the completion is, now and then.

        :param progress: How far it is.
        :raises AirflowException: The task was killed meanwhile.
        """
        if self._killed:
            raise AirflowException(
                f"Task {self.task_id} was killed after {progress.files_done} of {progress.files_total} "
                "files; run it again to finish, or let the teardown roll back."
            )
        if self._told is None:
            from airflow_s3commit.protocol.progress import ProgressLog  # noqa: PLC0415 - keeps parsing light

            self._told = ProgressLog(self.log)
        self._told(progress)


class ManifestOperator(CommitStepOperator):
    """A step that ends with the job's manifest: it returns its summary and tells the assets.

    :param job: The job reference. (templated)
    :param outlets: Assets of the table. Each gets one event, with the summary and counts by partition as its
        ``extra``.
    :param partition_asset: An asset that gets an event for each partition with new files, keyed by the
        partition, for DAGs scheduled by a ``PartitionedAssetTimetable``. Another one than the table's: events
        with a key start no ``schedule=[asset]`` DAGs.
    """

    template_fields: Sequence[str] = CommitStepOperator.template_fields
    operator_extra_links: Collection[BaseOperatorLink] = (ManifestLink(),)
    ui_color = "#d7ead9"

    def __init__(
        self,
        *,
        outlets: Sequence[Any] | None = None,
        partition_asset: Asset | None = None,
        **kwargs: Any,
    ) -> None:
        declared = list(outlets or [])
        if partition_asset is not None:
            if partition_asset in declared:
                raise ValueError(
                    f"partition_asset {partition_asset.name!r} is an outlet already: give the partitions an "
                    "asset of their own, as events with a partition key start no DAGs with schedule=[asset]."
                )
            declared.append(partition_asset)
        super().__init__(outlets=declared, **kwargs)
        self.partition_asset = partition_asset
        self.manifest_uri: str | None = None
        self.endpoint_url: str | None = None
        self._manifest: ManifestRecord | None = None

    def committed(self, context: Context, manifest: ManifestRecord) -> JsonObject:
        """Log what was committed, describe it in the assets' events, and return its summary."""
        from airflow_s3commit.assets import announce  # noqa: PLC0415 - keeps DAG parsing light
        from airflow_s3commit.xcom import manifest_summary  # noqa: PLC0415

        summary = manifest_summary(manifest)
        self._manifest = manifest
        self.manifest_uri = summary["manifest"]
        self.endpoint_url = self.hook.address.endpoint_url
        self.log.info(
            "Job %s is committed: %d files, %d bytes, %d partitions; manifest %s",
            manifest.job_id,
            manifest.counts.files,
            manifest.counts.bytes,
            len(manifest.partitions),
            summary["manifest"],
        )
        events = context.get("outlet_events")
        if events is not None:
            tables = [one for one in self.outlets if isinstance(one, Asset) and one != self.partition_asset]
            announce(events, manifest, tables=tables, partitions=self.partition_asset)
        return summary

    def get_openlineage_facets_on_complete(
        self,
        task_instance: object,  # noqa: ARG002 - Airflow's shape
    ) -> OperatorLineage[Any, Any]:
        """Return what was committed, for OpenLineage's provider; nothing if the task has committed nothing.

        :param task_instance: The task instance; not needed.
        """
        from airflow_s3commit.lineage import lineage_of  # noqa: PLC0415 - keeps DAG parsing light

        return lineage_of(self._manifest)


def etag_of(conflicts: Any, name: str, task_id: str) -> str | None:
    """Return the ETag of the seal or plan that the resolve task named.

    :param conflicts: The rendered output of `S3CommitResolveConflictsOperator`, or None.
    :param name: ``seal`` or ``plan``.
    :param task_id: The task, for the message.
    :raises AirflowException: It is something else.
    """
    if conflicts is None:
        return None
    if isinstance(conflicts, Mapping) and isinstance(conflicts.get(name), Mapping):
        return str(conflicts[name]["etag"])
    raise AirflowException(
        f"Task {task_id}: conflicts is {conflicts!r}; pass the output of the "
        "S3CommitResolveConflictsOperator of this run, or None."
    )
