"""The teardown that leaves nothing pending, and a run whose state tells the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit.exceptions import AlreadyCommitted
from airflow_s3commit.metrics import count_abort
from airflow_s3commit.operators.aborting import KILL_WINDOW, abort_until_quiet
from airflow_s3commit.operators.base import CommitStepOperator, refusals_are_final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.xcom import JsonObject

__all__ = ["S3CommitAbortOperator"]


class S3CommitAbortOperator(CommitStepOperator):
    """Aborts a job that did not commit, and then fails, so that the run fails too.

    Wire it with ``.as_teardown(setups=setup, on_failure_fail_dagrun=True)``; `s3_commit_task_group` does. A
    job that committed is left alone and the task succeeds. Whether it did is asked of the manifest on S3 and
    of nothing else; a commit that was cut off after the point of no return is finished.

    It aborts at least twice: Airflow runs a teardown while a task that was marked failed still has some ten
    seconds to live, and an upload begun in that time is found by the second look. As long as a look finds
    something there is another one, up to six.

    :param job: The job reference. (templated)
    :param kill_window: Seconds between two looks, at least as long as a killed task may live on: one
        heartbeat (5) and the time to SIGKILL (5).
    """

    template_fields: Sequence[str] = CommitStepOperator.template_fields
    ui_color = "#f7e3e0"

    def __init__(self, *, kill_window: float = KILL_WINDOW, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kill_window = kill_window

    def execute(self, context: Context) -> JsonObject:
        """Return if the job is committed; otherwise abort it and fail."""
        job = self.opened_job()
        job_id = job.reference.job_id
        with refusals_are_final():
            uploads = None if job.manifest() is not None else self._abort(job)
            if uploads is None:
                # Committed. If it was cut off after the point of no return, this does what was left.
                job.commit()
                self.log.info("Job %s is committed; there is nothing to abort", job_id)
                return {"job_id": job_id, "state": "committed", "uploads": 0}
        count_abort(job.reference.destination, uploads)
        report: JsonObject = {"job_id": job_id, "state": "aborted", "uploads": uploads}
        context["ti"].xcom_push(key="abort_report", value=report)
        raise AirflowFailException(
            f"Job {job_id} did not commit: {uploads} pending uploads were aborted, and nothing of it is "
            f"visible in {job.reference.destination}. The task that failed first says why."
        )

    def _abort(self, job: Job) -> int | None:
        """Abort the job; return how many uploads that took, None if it is committed."""
        try:
            return abort_until_quiet(
                job, kill_window=self.kill_window, reason=f"teardown {self.task_id}", log=self.log
            )
        except AlreadyCommitted:
            return None
