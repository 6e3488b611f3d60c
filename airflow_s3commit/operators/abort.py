"""The teardown: aborts a job that did not commit, and fails the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from airflow_s3commit.airflow_version import AirflowFailException
from airflow_s3commit.exceptions import AlreadyCommitted, InvalidRecord
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
    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from airflow_s3commit.protocol.job import Job

#: Seconds that a task may still run after Airflow ends it: one heartbeat (5) and the time to SIGKILL (5).
KILL_WINDOW = 10.0

#: The state of a kept job in the XCom ``abort_report``.
KEPT = "kept"

#: The limit on further aborts while each finds uploads. A task that writes longer is not being killed.
_MORE_ABORTS = 5


class S3CommitAbortOperator(CommitStepOperator):
    """Aborts a job that did not commit, and then fails, so that the run fails too. It may be retried.

    Wire it with ``.as_teardown(setups=setup, on_failure_fail_dagrun=True)``, as `s3_commit_task_group` does.
    If the job has committed, which only the log on S3 decides, it finishes what the commit left undone, and
    succeeds. If nothing failed, but stages were skipped or wrote no files, it ends the job and succeeds,
    unless other stages have written output, which is lost.

    In a task group the states of the tasks above it show what failed: if tasks failed only because of the
    store, it keeps a sealed job, and fails with a message on how to continue or end the job. A sweep ends a
    kept job after ``[s3commit] sweep_age_days``. Otherwise the message, and the job's entry in the log on S3,
    name the task that failed first, and why.

    It aborts at least twice, because Airflow runs a teardown while a task that was marked failed may still
    run for ten seconds. It repeats the abort as long as it finds uploads, up to six times. The XCom
    ``abort_report`` has the number of aborted uploads.

    :param kill_window: Seconds between two aborts, within which a killed task must end; 0 aborts once.
    """

    ui_color = "#f7e3e0"

    def __init__(self, *, kill_window: float = KILL_WINDOW, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kill_window = kill_window
        self.check(kill_window=at_least(0))

    @refusals_are_final()
    def execute(self, context: Context) -> dict[str, Any]:
        """Return if the job is committed; otherwise abort it, and fail unless there was nothing to do."""
        job = self.opened_job()
        place, job_id = job.reference.destination, job.reference.job_id
        uploads, first, states, state, has_files = None, "", dict[str, str](), job.state(), False
        if state is None or state.state != "committed":
            group = self.task_group
            if group is not None and group.group_id is not None:
                # Others, such as a cluster's own teardown, may run at this time, whatever became of the job.
                own = {self.task_id, *self.get_flat_relative_ids(upstream=True)}
                states = states_of(context, [one.task_id for one in group.iter_tasks() if one.task_id in own])
            states.pop(self.task_id, None)
            failed, said = self._failed(context, states, job_id)
            is_sealed = state is not None and state.state == "sealed"
            if is_sealed and self._only_store_failed(states, failed, said):
                context["ti"].xcom_push(key="abort_report", value={"job_id": job_id, "state": KEPT})
                raise AirflowFailException(
                    f"Job {job_id} is sealed and was kept, because the store failed"
                    f" {', '.join(sorted(failed))}: clear that task to continue, or run `s3commit commit"
                    f" {place} {job_id}`; to give it up, `s3commit abort`, or wait for a sweep."
                )
            first = self._first_failure(failed, said)
            if not first and states and "skipped" not in states.values():
                # Stages were cleared alone, or a user has marked tasks as successful.
                first = "No commit ran: clear all stages together with the tasks after them"
            why = first or "a task was skipped, or did not run"
            if "skipped" in states.values() and not first:
                # In this order: nobody removes what the stages have sealed before the job has ended.
                has_files, state = _has_files(job), job.state()
            with suppress(AlreadyCommitted):
                uploads = abort_until_quiet(
                    lambda: job.abort(reason=why).uploads, kill_window=self.kill_window, log=self.log
                )
        if uploads is None:
            is_finished = state is not None and state.state == "committed" and state.finished
            if not is_finished or job.has_leftovers():
                # This finishes what is left, and aborts uploads of attempts that came late.
                job.commit()
            self.log.info("Job %s is committed; there is nothing to abort", job_id)
            return {"job_id": job_id, "state": "committed", "uploads": 0}
        count_abort(place, uploads)
        report = {"job_id": job_id, "state": "aborted", "uploads": uploads}
        context["ti"].xcom_push(key="abort_report", value=report)
        skipped = [name for name, ended in states.items() if ended == "skipped"]
        is_old = state is not None and state.state == "aborted"
        if not skipped or not {*states.values()} <= {"skipped", "success"}:
            advice = " It had ended before: clear setup too, with all that is downstream." if is_old else ""
            raise AirflowFailException(
                f"{first or 'No commit ran'}. Job {job_id} was aborted with {uploads} pending uploads; none"
                f" of its output is visible in {place}.{advice}"
            )
        setups = {task.task_id for task in self.upstream_list if task.is_setup}
        succeeded = [name for name in states if name not in skipped and name not in setups]
        # The uploads may come from an earlier try of a stage. An earlier try of this task, which may still
        # run, or a user may have aborted those of stages that succeeded.
        may_have_written = succeeded and (uploads or has_files or is_old)
        if may_have_written and job_id not in pulled(context, skipped, NO_OUTPUT):
            raise AirflowFailException(
                f"Job {job_id} did not commit, because {', '.join(skipped)} was skipped. {uploads} pending"
                f" uploads of {', '.join(succeeded)} were aborted. To commit what the others write, give the"
                ' group skipped_stages="ignore", and do not pass a branch or short circuit to its stage(); if'
                " they were cleared alone, clear them with the tasks after them."
            )
        self.log.info("Job %s has nothing to commit: %s skipped", job_id, ", ".join(skipped))
        return {**report, "state": "skipped"}

    def _only_store_failed(
        self, states: Mapping[str, str], failed: Mapping[str, str], said: Mapping[str, list[Any]]
    ) -> bool:
        """Return whether tasks of the group failed, all because of the store, and the others have ended."""
        if not failed or not {*states.values()} <= {"failed", "upstream_failed", "success", "skipped"}:
            return False
        notes = (one for task in {*failed.values()} for one in said[task])
        return sum(bool(one["by_store"]) for one in notes) == len(failed)

    def _first_failure(self, failed: Mapping[str, str], said: Mapping[str, list[Any]]) -> str:
        """Return which task of the group failed first, and why if it noted that; empty if none has failed."""
        if not failed:
            return ""
        known = getattr(self.get_dag(), "task_dict", {})
        before = {name: len(task.get_flat_relative_ids(upstream=True)) for name, task in known.items()}
        first = min(failed, key=lambda name: (before.get(failed[name], len(before)), len(name), name))
        notes = [one for one in said[failed[first]] if first in (failed[first], one.get("instance", first))]
        return f"{first} failed: {notes[0]['why']}" if notes else f"{first} failed, see its log"

    def _failed(
        self, context: Context, states: Mapping[str, str], job_id: str
    ) -> tuple[dict[str, str], dict[str, list[Any]]]:
        """Return the task ids of failed instances by name, and by task id the failures that the tasks noted.

        A mapped instance's name ends with its index. Tasks that failed only for an earlier job are left out.
        """
        known = getattr(self.get_dag(), "task_dict", {})
        names = (name for name, state in states.items() if state == "failed")
        failed = {name: name if name in known else name.rpartition("_")[0] or name for name in names}
        said = {task: pulled(context, [task], FAILURE) for task in {*failed.values()}}
        own = {task: [one for one in said[task] if one.get("job_id", job_id) == job_id] for task in said}
        return {name: task for name, task in failed.items() if own[task] or not said[task]}, own


def _has_files(job: Job) -> bool:
    """Return whether a stage of the job has sealed files, or a damaged seal. Reads only."""
    try:
        seals = [job.stage_seal(*attempt) for attempt in job.sealed_stages()]
    except InvalidRecord:
        return True
    return any(seal is not None and seal.counts.files for seal in seals)


def abort_until_quiet(
    abort: Callable[[], int], *, kill_window: float, log: Logger, until: float = inf
) -> int:
    """Abort, and repeat until an abort finds no uploads; return how many uploads were found.

    Airflow continues a run while a task that was marked failed, or cleared, is still being killed. The next
    abort finds uploads that the task has started since the previous one. No abort but the first begins after
    ``until``, by the monotonic clock. It may be called again.
    """
    uploads = abort()
    for _ in range(_MORE_ABORTS if kill_window else 0):
        if monotonic() + kill_window > until:
            log.warning("There is no time for another abort; a later teardown or a sweep aborts late uploads")
            return uploads
        log.info("Aborting again in %g s, for uploads of tasks that are being killed", kill_window)
        sleep(kill_window)
        uploads += (found := abort())
        if not found:
            return uploads
    if kill_window:
        log.warning("A task still uploads for a job that is aborted; a sweep aborts those uploads")
    return uploads
