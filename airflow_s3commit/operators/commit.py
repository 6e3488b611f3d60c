"""The commit: one task makes the output visible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_s3commit.metrics import commit_counted
from airflow_s3commit.operators.base import refusals_are_final
from airflow_s3commit.operators.committing import CompletingOperator, ManifestOperator, etag_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_s3commit.operators.shards import ShardedCommit
    from airflow_s3commit.xcom import JsonObject

__all__ = ["S3CommitJobOperator"]


class S3CommitJobOperator(CompletingOperator, ManifestOperator):
    """Commits a job and returns a summary of its manifest.

    It may be run again after a crash at any point: it finishes what is left, and on a committed job returns
    the same summary. One task completes some thousands of files a second; `as_shards` deals them out to
    mapped tasks.

    :param job: The job reference. (templated)
    :param conflicts: The output of `S3CommitResolveConflictsOperator`. The commit is refused if seal or plan
        are not the ones it names. None lets the commit plan by itself. (templated)
    :param outlets: Assets of the table. Each gets one event, with the summary and counts by partition as its
        ``extra``.
    :param partition_asset: An asset that gets an event for each partition with new files, keyed by the
        partition, for DAGs scheduled by a ``PartitionedAssetTimetable``. It is another one than the table's:
        events with a key start no ``schedule=[asset]`` DAGs.
    """

    template_fields: Sequence[str] = (*ManifestOperator.template_fields, "conflicts")

    def __init__(self, *, conflicts: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conflicts = conflicts

    @staticmethod
    def as_shards(**arguments: Any) -> ShardedCommit:
        """Add a commit that mapped tasks share, instead of this one task; see `sharded_commit`.

        :param arguments: What `sharded_commit` takes.
        """
        from airflow_s3commit.operators.shards import sharded_commit  # noqa: PLC0415 - rarely wanted

        return sharded_commit(**arguments)

    def execute(self, context: Context) -> JsonObject:
        """Complete every upload of the job, and write its manifest."""
        job = self.opened_job()
        with commit_counted(job.reference.destination) as count, refusals_are_final():
            manifest = job.commit(
                seal_etag=etag_of(self.conflicts, "seal", self.task_id),
                plan_etag=etag_of(self.conflicts, "plan", self.task_id),
                progress=self.report_progress,
            )
            count(manifest)
        return self.committed(context, manifest)
