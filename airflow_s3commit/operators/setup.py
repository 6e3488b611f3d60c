"""The operator that sets up a job, after it has aborted the jobs of the task's earlier tries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from airflow_s3commit.exceptions import AlreadyCommitted
from airflow_s3commit.hooks.s3_commit import S3CommitHook
from airflow_s3commit.metrics import count_abort
from airflow_s3commit.operators.abort import KILL_WINDOW, abort_until_quiet
from airflow_s3commit.operators.base import S3CommitBaseOperator, refusals_are_final, states_of
from airflow_s3commit.params import CONFLICT_MODE, check_conflict_mode
from airflow_s3commit.protocol.model.destination import Destination, as_uri
from airflow_s3commit.settings import REGISTRY, REGISTRY_CONNECTION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.model.job import JobOptions, JobReference

#: The types of the tasks that follow a job's stages.
_STEPS = frozenset(
    {
        "S3CommitStagesOperator",
        "S3CommitCollectOperator",
        "S3CommitAuditOperator",
        "S3CommitResolveConflictsOperator",
        "S3CommitJobOperator",
        "S3CommitBeginOperator",
        "S3CommitShardOperator",
        "S3CommitFinishOperator",
        "S3CommitAbortOperator",
    }
)

#: Seconds for which a setup tries to register its destination.
_REGISTRY_SECONDS = 5.0

#: The key of the task's jobs in its ``task_state_store``.
REMEMBERED_JOBS = "s3commit.jobs"


class S3CommitSetupOperator(S3CommitBaseOperator):
    """Sets up a job: one refresh of one destination. Returns the job's reference.

    Each try sets up a new job, so that output of a dead try cannot get into it. A retry, or a cleared task,
    first aborts the task's earlier jobs that did not commit. But if no stage was cleared with it, as when
    ``commit`` alone is cleared, it returns the run's job that is sealed, committing or committed: a cleared
    stage computes anew, and the others' output is used. If stages of an earlier job may still run, it
    repeats the abort until it finds no uploads.

    :param destination: The dataset's directory: ``s3://bucket/prefix/`` or a `Destination`. (templated)
    :param conflict_mode: Treatment of existing data: ``fail``, ``append`` or ``replace``. By default the
        param ``conflict_mode``, and ``replace`` in backfills. (templated)
    :param committer: ``partitioned``, which checks each partition for conflicts, or ``directory``, which
        checks the whole destination. (templated)
    :param staging: An ``s3://`` prefix for the job's records; None keeps them below the destination.
        (templated)
    :param track_pending: ``task``, or ``s3`` to record each upload on S3 when it begins. Stores that do not
        list pending uploads by prefix need ``s3``: otherwise an abort misses the uploads of a killed task.
        (templated)
    :param pendingset_format: The Hadoop versions that can read the job's pending uploads: ``hadoop-3.4.2``
        for 3.4.2 and later, or ``hadoop-3.3`` for 3.3 to 3.4.1. (templated)
    :param object_options: Encryption, storage class, ACL, tags and headers of the objects that the job
        writes: a dict with the entries of `ObjectOptions` (``storage_class``, ``sse``, ``sse_kms_key_id``,
        ``sse_bucket_key``, ``acl``, ``tags``, ``headers``). (templated)
    :param retain: How long the files that the commit replaces stay in place, such as ``7d``; ``0s`` deletes
        them at once. For tables that are read by generation. (templated)
    :param partition_success: Whether to write a ``_SUCCESS`` in each partition too, for readers that wait for
        one. From then on every commit to the destination writes them. Cannot be combined with ``retain``.
    :param kill_window: Seconds between two aborts of an earlier job whose tasks may still be running.
    """

    template_fields: Sequence[str] = (
        *S3CommitBaseOperator.template_fields,
        "destination",
        "conflict_mode",
        "committer",
        "staging",
        "track_pending",
        "pendingset_format",
        "object_options",
        "retain",
    )
    ui_color = "#e8f0f7"

    def __init__(
        self,
        *,
        destination: str | Destination,
        conflict_mode: str = CONFLICT_MODE,
        committer: str = "partitioned",
        staging: str | Destination | None = None,
        track_pending: str = "task",
        pendingset_format: str = "hadoop-3.4.2",
        object_options: Mapping[str, Any] | None = None,
        retain: str = "0s",
        partition_success: bool = False,
        kill_window: float = KILL_WINDOW,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destination = as_uri(destination)
        self.conflict_mode = conflict_mode
        self.committer = committer
        self.staging = as_uri(staging)
        self.track_pending = track_pending
        self.pendingset_format = pendingset_format
        self.object_options = object_options
        self.retain = retain
        self.partition_success = partition_success
        self.kill_window = kill_window

    def execute(self, context: Context) -> dict[str, str]:
        """Abort the jobs of earlier tries, then set up a new job and return its reference.

        :param context: The task's context.
        """
        from airflow_s3commit.protocol.job import Job  # noqa: PLC0415 - keeps DAG parsing light

        with refusals_are_final():
            options = self._options()
            taken = self._taken_up(context, options)
            if taken is not None:
                return taken
            self._abort_earlier(context, options)
            reference = self._choose_job()
            self._remember(context, [reference.to_dict()])
            self._register(reference)
            job = Job.setup(
                self.hook.store,
                reference.destination,
                options=options,
                job_id=reference.job_id,
                context=job_context(context),
                signer=self.hook.signer,
                assume="new",
            )
        self.log.info(
            "Job %s is open: %s to %s, conflict mode %s",
            reference.job_id,
            options.committer,
            reference.destination,
            options.conflict_mode,
        )
        return job.reference.to_dict()

    def _options(self) -> JobOptions:
        import msgspec  # noqa: PLC0415 - keeps DAG parsing light
        from airflow.sdk.exceptions import AirflowFailException  # noqa: PLC0415

        from airflow_s3commit.protocol.model.job import JobOptions  # noqa: PLC0415
        from airflow_s3commit.protocol.model.object_options import ObjectOptions  # noqa: PLC0415

        try:
            check_conflict_mode(self.conflict_mode)
            options = {
                "committer": self.committer,
                "conflict_mode": self.conflict_mode,
                "track_pending": self.track_pending,
                "pendingset_format": self.pendingset_format,
                "staging": self.staging,
                "object_options": ObjectOptions.from_dict(self.object_options or {}),
                "retain": self.retain,
                "partition_success": self.partition_success,
            }
            return msgspec.convert(options, JobOptions)
        except (ValueError, msgspec.ValidationError) as error:
            raise AirflowFailException(f"Task {self.task_id}: {error}") from error

    def _choose_job(self) -> JobReference:
        """Choose the new job's id before its setup, so that it can be stored first."""
        from airflow_s3commit.protocol.model.job import JobReference  # noqa: PLC0415
        from airflow_s3commit.protocol.model.layout import Layout  # noqa: PLC0415

        destination = Destination.parse(self.destination)
        root = Destination.parse(self.staging) if self.staging else None
        layout = Layout.of(destination, str(uuid4()), root)
        return JobReference(job_id=layout.job_id, destination=destination.uri, staging=layout.staging.uri)

    def _register(self, reference: JobReference) -> None:
        """Register the destination in the installation's registry, if there is one, with one request."""
        from airflow_s3commit.protocol.metadata.registry import (  # noqa: PLC0415 - keeps DAG parsing light
            failures_logged,
            register_destination,
        )

        if REGISTRY is None:
            return
        with failures_logged(REGISTRY, reference.destination):
            hook = S3CommitHook(
                REGISTRY_CONNECTION, retry_deadline=_REGISTRY_SECONDS, timeout=_REGISTRY_SECONDS
            )
            register_destination(
                hook.store,
                REGISTRY,
                reference.destination,
                staging=self.staging,
                aws_conn_id=self.aws_conn_id,
            )

    def _taken_up(self, context: Context, options: JobOptions) -> dict[str, str] | None:
        """Return the run's earlier job if it can continue and no stage was cleared; otherwise None."""
        state_store = context.get("task_state_store")
        earlier = cast("list[dict[str, str]]", state_store.get(REMEMBERED_JOBS) or []) if state_store else []
        if len(earlier) != 1 or not self._stages_stand(context):
            return None
        job = self.hook.job(earlier[0])
        reference = job.reference
        if reference.destination != Destination.parse(self.destination).uri:
            return None
        state = job.state()
        if job.manifest() is not None:
            self.log.info("Job %s of this run is committed, and no stage was cleared", reference.job_id)
            return reference.to_dict()
        if state is None or state.state not in ("sealed", "committing", "committed"):
            return None
        if job.record().options != options:
            self.log.warning("Job %s has other options than this task; starting over", reference.job_id)
            return None
        self.log.info("Taking up job %s, which is %s: no stage was cleared", reference.job_id, state.state)
        return reference.to_dict()

    def _stages_stand(self, context: Context) -> bool:
        """Return whether every stage after this task has succeeded or was skipped, and none was cleared."""
        if self.get_dag() is None:
            return False
        behind = list(self.get_flat_relatives(upstream=False))
        steps = [task for task in behind if task.task_type in _STEPS]
        after = {name for step in steps for name in step.get_flat_relative_ids(upstream=False)}
        after.update(step.task_id for step in steps)
        stages = sorted({task.task_id for task in behind} - after)
        if not stages:
            return False
        found = states_of(context, task_ids=stages)
        ended = {"success", "skipped"}
        return {*found.values()} <= ended and all(
            any(re.fullmatch(rf"{re.escape(name)}(_\d+)?", known) for known in found) for name in stages
        )

    def _abort_earlier(self, context: Context, options: JobOptions) -> None:
        state_store = context.get("task_state_store")
        if state_store is None:
            return
        for reference in cast("list[dict[str, str]]", state_store.get(REMEMBERED_JOBS) or []):
            try:
                # A job without a record does not say how to encrypt its tombstone; use the new job's options.
                uploads = self._abort(self.hook.job(reference, options.object_options))
            except AlreadyCommitted as error:
                self.log.info("Earlier job %s was not aborted: %s", reference["job_id"], error)
            else:
                count_abort(reference["destination"], uploads)
                self.log.info("Aborted earlier job %s: %d uploads", reference["job_id"], uploads)

    def _abort(self, job: Job) -> int:
        state, reason = job.state(), f"a later try of {self.task_id}"
        try:
            if state is None or state.state == "aborted":
                return job.abort(reason=reason).uploads
            return abort_until_quiet(job, kill_window=self.kill_window, reason=reason, log=self.log)
        except AlreadyCommitted:
            # If the commit was interrupted after the point of no return, this finishes it.
            job.commit()
            raise

    def _remember(self, context: Context, references: list[dict[str, str]]) -> None:
        state_store = context.get("task_state_store")
        if state_store is not None:
            state_store.set(REMEMBERED_JOBS, cast("Any", references))


def job_context(context: Context) -> dict[str, str]:
    """Return the facts of a run for the job's record and manifest, without those that the run lacks.

    :param context: The task's context. A partitioned run has no logical date, other runs no partition key.
    """
    ti, dag_run = context.get("ti"), context.get("dag_run")
    task = context.get("task")
    group = getattr(task, "task_group", None)
    facts = {
        "dag_id": getattr(ti, "dag_id", None),
        "run_id": context.get("run_id") or getattr(dag_run, "run_id", None),
        "run_type": getattr(dag_run, "run_type", None),
        "task_id": getattr(ti, "task_id", None),
        "task_group_id": getattr(group, "group_id", None),
        "map_index": getattr(ti, "map_index", None),
        "try_number": getattr(ti, "try_number", None),
        "partition_key": context.get("partition_key"),
        "logical_date": context.get("logical_date"),
    }
    return {name: _text(value) for name, value in facts.items() if value not in {None, ""}}


def _text(value: Any) -> str:
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    return str(getattr(value, "value", value))
