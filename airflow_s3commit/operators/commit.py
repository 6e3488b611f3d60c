"""The commit: one task makes the output visible."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowException

from airflow_s3commit.links.manifest import ManifestLink
from airflow_s3commit.operators.base import CommitStepOperator, refusals_are_final

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.sdk import BaseOperatorLink, Context

    from airflow_s3commit.protocol.publish import Progress
    from airflow_s3commit.xcom import JsonObject

__all__ = ["S3CommitJobOperator"]

#: Seconds between two lines of progress in the task's log.
_REPORT_EVERY = 10.0


class S3CommitJobOperator(CommitStepOperator):
    """Commits a job and returns a summary of its manifest.

    It may be run again after a crash at any point: it finishes what is left, and on a committed job returns
    the same summary. Each outlet's asset event carries the summary as its ``extra``.

    :param job: The job reference. (templated)
    :param conflicts: The output of `S3CommitResolveConflictsOperator`. The commit is refused if seal or plan
        are not the ones it names. None lets the commit plan by itself. (templated)
    """

    template_fields: Sequence[str] = (*CommitStepOperator.template_fields, "conflicts")
    operator_extra_links: Collection[BaseOperatorLink] = (ManifestLink(),)
    ui_color = "#d7ead9"

    def __init__(self, *, conflicts: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conflicts = conflicts
        self.manifest_uri: str | None = None
        self.endpoint_url: str | None = None
        self._killed = False
        self._reported = 0.0

    def execute(self, context: Context) -> JsonObject:
        """Complete every upload of the job, and write its manifest."""
        from airflow_s3commit.xcom import manifest_summary  # noqa: PLC0415 - keeps DAG parsing light

        with refusals_are_final():
            job = self.opened_job()
            manifest = job.commit(
                seal_etag=self._etag("seal"), plan_etag=self._etag("plan"), progress=self._progress
            )
        summary = manifest_summary(manifest)
        self.manifest_uri = summary["manifest"]
        self.log.info(
            "Job %s is committed: %d files, %d bytes, %d partitions; manifest %s",
            manifest.job_id,
            manifest.counts.files,
            manifest.counts.bytes,
            len(manifest.partitions),
            summary["manifest"],
        )
        self._describe_outlets(context, summary)
        return summary

    def on_kill(self) -> None:
        """Stop completing uploads. The teardown, or the next try, settles what is half done."""
        # Airflow goes on running execute() after this returns, for up to five seconds.
        self._killed = True

    def _etag(self, name: str) -> str | None:
        if self.conflicts is None:
            return None
        if isinstance(self.conflicts, Mapping) and isinstance(self.conflicts.get(name), Mapping):
            return str(self.conflicts[name]["etag"])
        raise AirflowException(
            f"Task {self.task_id}: conflicts is {self.conflicts!r}; pass the output of the "
            "S3CommitResolveConflictsOperator of this run, or None."
        )

    def _progress(self, progress: Progress) -> None:
        if self._killed:
            raise AirflowException(
                f"Task {self.task_id} was killed after {progress.files_done} of {progress.files_total} "
                "files; run it again to finish, or let the teardown roll back."
            )
        now = time.monotonic()
        if now - self._reported >= _REPORT_EVERY or progress.files_done == progress.files_total:
            self._reported = now
            self.log.info("Completed %d of %d files", progress.files_done, progress.files_total)

    def _describe_outlets(self, context: Context, summary: JsonObject) -> None:
        events = context.get("outlet_events")
        if events is None:
            return
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                events[outlet].extra = dict(summary)
