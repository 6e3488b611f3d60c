"""The teardown: aborts a job that did not commit, and fails the run."""

from __future__ import annotations

from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Any

from airflow_s3commit.airflow_version import AirflowFailException
from airflow_s3commit.exceptions import AlreadyCommitted
from airflow_s3commit.metrics import count_abort
from airflow_s3commit.operators.base import (
    FAILURE,
    NO_OUTPUT,
    CommitStepOperator,
    pulled,
    refusals_are_final,
    states_of,
)
from airflow_s3commit.templates import at_least

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.model.job import JobState

#: Seconds that a task may still run after Airflow ends it: one heartbeat (5) and the time to SIGKILL (5).
KILL_WINDOW = 10.0

#: The state of a kept job in the XCom ``abort_report``.
KEPT = "kept"

#: The limit on further aborts while each finds uploads. A task that writes longer is not being killed.
MORE_ABORTS = 5


class S3CommitAbortOperator(CommitStepOperator):
    """Aborts a job that did not commit, and then fails, so that the run fails too.

    Wire it with ``.as_teardown(setups=setup, on_failure_fail_dagrun=True)``, as `s3_commit_task_group` does.
    If the job has committed, which only the log on S3 decides, the task finishes what the commit has left,
    and succeeds. It may be retried at any point.

    If nothing failed, but stages were skipped or wrote no files because there was nothing to do, it ends the
    job and succeeds. It fails if other stages have written output, because that output is lost.

    If only the store made resolve_conflicts or commit fail, it keeps a sealed job, and fails with a message
    on how to continue: clear ``commit``, which takes up the kept job, or end it with ``s3commit`` or on the
    page. A sweep ends a kept job after ``[s3commit] sweep_age_days``. This needs the
    task group, because the states of its tasks show what failed.

    The message names the task that failed first, and why. The job's end in the log on S3 has the same reason.

    It aborts at least twice, because Airflow runs a teardown while a task that was marked failed may still
    run for ten seconds. It repeats the abort as long as it finds uploads, up to six times. The XCom
    ``abort_report`` has the number of aborted uploads.

    :param kill_window: Seconds between two aborts. A killed task must end within them: one heartbeat (5) and
        the time to SIGKILL (5).
    """

    ui_color = "#f7e3e0"

    def __init__(self, *, kill_window: float = KILL_WINDOW, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kill_window = kill_window
        self.check(kill_window=at_least(0))

    def execute(self, context: Context) -> dict[str, Any]:
        """Return if the job is committed; otherwise abort it, and fail unless there was nothing to do.

        :param context: The task's context.
        :raises AirflowFailException: The job did not commit, or the store or the protocol refused a request.
        """
        job = self.opened_job()
        job_id = job.reference.job_id
        with refusals_are_final():
            uploads, first, state = None, "", job.state()
            if state is None or state.state != "committed":
                states = self._states(context)
                self._keep(context, job, state, states)
                first = self._first_failure(context, states)
                why = first or "a task was skipped, or did not run"
                with suppress(AlreadyCommitted):
                    uploads = abort_until_quiet(job, kill_window=self.kill_window, reason=why, log=self.log)
            if uploads is None:
                is_finished = state is not None and state.state == "committed" and state.finished
                if not is_finished or job.has_leftovers():
                    # This finishes what is left, and aborts uploads of attempts that came late.
                    job.commit()
                self.log.info("Job %s is committed; there is nothing to abort", job_id)
                return {"job_id": job_id, "state": "committed", "uploads": 0}
        count_abort(job.reference.destination, uploads)
        report: dict[str, Any] = {"job_id": job_id, "state": "aborted", "uploads": uploads}
        context["ti"].xcom_push(key="abort_report", value=report)
        skipped, succeeded = self._only_skipped(context)
        if skipped and self._has_no_output(context, skipped, succeeded, uploads):
            self.log.info("Job %s has nothing to commit: %s skipped", job_id, ", ".join(skipped))
            return {**report, "state": "skipped"}
        if skipped:
            raise AirflowFailException(
                f"Job {job_id} did not commit, because {', '.join(skipped)} was skipped. {uploads} pending"
                f" uploads of {', '.join(succeeded) or 'others'} were aborted. To commit what the others"
                ' write, give the group skipped_stages="ignore".'
            )
        raise AirflowFailException(
            f"{first or 'No commit ran'}. Job {job_id} was aborted with {uploads} pending uploads; none of"
            f" its output is visible in {job.reference.destination}."
        )

    def _keep(self, context: Context, job: Job, state: JobState | None, states: Mapping[str, str]) -> None:
        """Fail without an abort if only the store prevented the commit of a sealed job."""
        if state is None or state.state != "sealed" or not (failed := self._failed_by_store(context, states)):
            return
        reference = job.reference
        context["ti"].xcom_push(key="abort_report", value={"job_id": reference.job_id, "state": KEPT})
        raise AirflowFailException(
            f"Job {reference.job_id} is sealed and was kept, because the store failed"
            f" {', '.join(failed)}: clear that task to continue, or run `s3commit commit"
            f" {reference.destination} {reference.job_id}`. To give it up, run `s3commit abort` instead,"
            " or use Abort on its page in Airflow. A sweep ends it after [s3commit] sweep_age_days."
        )

    def _failed_by_store(self, context: Context, states: Mapping[str, str]) -> list[str]:
        """Return the group's tasks that the store made fail; none if another task failed or has not ended."""
        failed = self._failed(states)
        if not failed or not set(states.values()) <= {"failed", "upstream_failed", "success", "skipped"}:
            return []
        notes = pulled(context, sorted({*failed.values()}), FAILURE)
        return sorted(failed) if sum(one["by_store"] for one in notes) == len(failed) else []

    def _first_failure(self, context: Context, states: Mapping[str, str]) -> str:
        """Return which task of the group failed first, and why if it said so; empty if none has failed."""
        failed, dag = self._failed(states), self.get_dag()
        if not failed or dag is None:
            return ""
        before = {
            name: len(task.get_flat_relative_ids(upstream=True)) for name, task in dag.task_dict.items()
        }
        first = min(failed, key=lambda name: (before.get(failed[name], len(before)), name))
        said = pulled(context, [failed[first]], FAILURE)
        return f"{first} failed: {said[0]['why']}" if said else f"{first} failed, see its log"

    def _failed(self, states: Mapping[str, str]) -> dict[str, str]:
        """Return the ids of failed tasks by their names, which for a mapped instance end with its index."""
        known = getattr(self.get_dag(), "task_dict", {})
        return {
            name: name if name in known else name.rpartition("_")[0] or name
            for name, state in states.items()
            if state == "failed"
        }

    def _states(self, context: Context) -> dict[str, str]:
        """Return the states of the other tasks in this task's group; nothing without a group."""
        group = self.task_group
        if group is None or group.group_id is None:
            return {}
        states = states_of(context, task_group_id=group.group_id)
        states.pop(self.task_id, None)
        return states

    def _only_skipped(self, context: Context) -> tuple[list[str], list[str]]:
        """Return the group's tasks that were skipped, and those besides setup that succeeded.

        Both are empty if a task of the group failed, or has not ended.
        """
        states = self._states(context)
        if not states or not set(states.values()) <= {"skipped", "success"}:
            return [], []
        setups = {task.task_id for task in self.upstream_list if task.is_setup}
        skipped = [name for name, state in states.items() if state == "skipped"]
        return skipped, [name for name in states if name not in skipped and name not in setups]

    def _has_no_output(
        self, context: Context, skipped: list[str], succeeded: list[str], uploads: int
    ) -> bool:
        """Return whether no task that succeeded has written files."""
        # Uploads may be those of an earlier try of a stage, and an earlier try of this task may have aborted
        # those of the others.
        if not succeeded or (not uploads and context["ti"].try_number == 1):
            return True
        return bool(pulled(context, skipped, NO_OUTPUT))


def abort_until_quiet(job: Job, *, kill_window: float, reason: str, log: Logger) -> int:
    """Abort a job, and repeat until an abort finds no uploads; return the number of aborted uploads.

    Airflow continues a run while a task that was marked failed, or cleared, is still being killed. The next
    abort finds uploads that the task has started since the previous one. It may be called again.

    :param job: The job.
    :param kill_window: Seconds between two aborts.
    :param reason: The reason, for the job's record.
    :param log: The task's log.
    :raises AlreadyCommitted: The job is committed.
    """
    uploads = job.abort(reason=reason).uploads
    for _ in range(MORE_ABORTS):
        log.info("Aborting again in %g s, for uploads of tasks that are being killed", kill_window)
        sleep(kill_window)
        found = job.abort(reason=reason).uploads
        uploads += found
        if not found:
            return uploads
    log.warning(
        "A task still uploads for job %s, which is aborted; a sweep aborts those uploads",
        job.reference.job_id,
    )
    return uploads
