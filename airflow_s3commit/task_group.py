"""One commit as a task group: setup, stages, conflict resolution, commit, and the teardown wired right."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import TaskGroup

from airflow_s3commit.hooks.s3_commit import S3CommitHook
from airflow_s3commit.operators.abort import S3CommitAbortOperator
from airflow_s3commit.operators.audit import S3CommitAuditOperator
from airflow_s3commit.operators.commit import S3CommitJobOperator
from airflow_s3commit.operators.resolve import S3CommitResolveConflictsOperator
from airflow_s3commit.operators.setup import S3CommitSetupOperator
from airflow_s3commit.params import CONFLICT_MODE
from airflow_s3commit.retry_policy import commit_retry_policy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow.sdk import Asset, RetryPolicy, XComArg

    from airflow_s3commit.operators.spark_submit import S3CommitSparkSubmitOperator

__all__ = ["S3CommitGroup", "s3_commit_task_group"]

#: Anything that takes a place in a graph of tasks: an operator, a mapped one, a group, an XComArg.
Stage = TypeVar("Stage", bound="Any")


class S3CommitGroup:
    """The group while it is being built: what stages need, and where they are added.

    :param group: The Airflow task group.
    :param setup: The task that sets the job up.
    :param connection: ``aws_conn_id``, ``region_name`` and ``verify`` of every task of the group.
    """

    def __init__(self, group: TaskGroup, setup: S3CommitSetupOperator, connection: dict[str, Any]) -> None:
        self.group = group
        self.setup = setup
        self._connection = connection
        self._stages: list[Any] = []
        self._outputs: list[XComArg] | None = []
        self.commit: S3CommitJobOperator | None = None

    @property
    def job(self) -> XComArg:
        """The job reference, for stages of other engines: pass it to a templated field of theirs."""
        return self.setup.output

    @property
    def manifest(self) -> XComArg:
        """The summary of the manifest, for tasks behind the group.

        :raises RuntimeError: The ``with`` block has not ended, so there is no commit task yet.
        """
        if self.commit is None:
            raise RuntimeError("The commit task is added when the with block of the group ends.")
        return self.commit.output

    def spark_submit(self, *, task_id: str = "spark_submit", **kwargs: Any) -> S3CommitSparkSubmitOperator:
        """Add a stage that ``spark-submit`` runs.

        :param task_id: Its task id within the group; the stage is named after it.
        :param kwargs: What `S3CommitSparkSubmitOperator` takes, but for ``job``.
        """
        from airflow_s3commit.operators.spark_submit import (  # noqa: PLC0415 - the Spark provider is an extra
            S3CommitSparkSubmitOperator,
        )

        arguments = {**self._connection, **kwargs}
        stage = S3CommitSparkSubmitOperator(task_id=task_id, job=self.job, **arguments)
        if self._outputs is not None:
            self._outputs.append(stage.output)
        self._stages.append(stage)
        return stage

    def stage(self, task: Stage) -> Stage:
        """Add a task, or a group, of any other kind: a stage of another engine, a check before the commit.

        With such a stage in the group, the commit takes every stage attempt that the job has sealed.

        :param task: The task; create it inside the ``with`` block.
        """
        self._outputs = None
        self._stages.append(task)
        return task

    def wire(
        self,
        resolve: dict[str, Any],
        commit: dict[str, Any],
        abort: dict[str, Any],
        audit: dict[str, Any] | None = None,
    ) -> None:
        """Add the tasks behind the stages.

        :param resolve: Arguments of the resolve task.
        :param commit: Arguments of the commit task.
        :param abort: Arguments of the teardown.
        :param audit: Arguments of the audit task; None leaves it out.
        :raises ValueError: The group has no stage.
        """
        if not self._stages:
            raise ValueError(
                f"The commit group {self.group.group_id} has no stage: call .spark_submit(...) or "
                ".stage(task)."
            )
        resolved = S3CommitResolveConflictsOperator(
            task_id="resolve_conflicts", job=self.job, stages=self._outputs, **self._connection, **resolve
        )
        self.commit = S3CommitJobOperator(
            task_id="commit", job=self.job, conflicts=resolved.output, **self._connection, **commit
        )
        aborted = S3CommitAbortOperator(task_id="abort", job=self.job, **self._connection, **abort)
        gate: S3CommitAuditOperator | S3CommitResolveConflictsOperator = resolved
        if audit is not None:
            gate = S3CommitAuditOperator(
                task_id="audit", job=self.job, stages=self._outputs, **self._connection, **audit
            )
            gate >> resolved
        for stage in self._stages:
            self.setup >> stage >> gate
        resolved >> self.commit >> aborted.as_teardown(setups=self.setup, on_failure_fail_dagrun=True)


@contextmanager
def s3_commit_task_group(
    group_id: str = "s3_commit",
    *,
    destination: str,
    conflict_mode: str = CONFLICT_MODE,
    committer: str = "partitioned",
    staging: str | None = None,
    outlets: Sequence[Asset] = (),
    audit: Mapping[str, Any] | None = None,
    retries: int = 2,
    retry_policy: RetryPolicy | None = None,
    kill_window: float = 10.0,
    aws_conn_id: str | None = S3CommitHook.default_conn_name,
    region_name: str | None = None,
    verify: bool | str | None = None,
    **group_arguments: Any,
) -> Iterator[S3CommitGroup]:
    """Build one commit: ``setup >> stages >> resolve_conflicts >> commit``, with ``abort`` as its teardown.

    Stages are added inside the ``with`` block. What they upload becomes visible when ``commit`` runs, or not
    at all: the teardown aborts a job that did not commit and fails the run::

        with s3_commit_task_group("refresh", destination="s3://lake/flights/") as commit:
            commit.spark_submit(application="jobs/flights.py", application_args=["{{ partition_key }}"])

    :param group_id: The group's id, and the prefix of its task ids.
    :param destination: The dataset's directory, ``s3://bucket/prefix/``. (templated)
    :param conflict_mode: ``fail``, ``append`` or ``replace``; by default the param ``conflict_mode``, and
        ``replace`` in backfills. (templated)
    :param committer: ``partitioned`` or ``directory``. (templated)
    :param staging: An ``s3://`` prefix for the job's records; None keeps them below the destination.
        (templated)
    :param outlets: Assets whose events the commit emits, with the manifest's summary as their ``extra``.
    :param audit: Rules that the output must keep before any of it becomes visible, as
        `S3CommitAuditOperator` takes them, and its ``on_fail`` if it is not ``fail``:
        ``{"min_rows": 1, "max_null_ratio": {"carrier": 0}}``. (templated)
    :param retries: Retries of setup, resolve, commit and abort. All of them may be run again at any point.
    :param retry_policy: Which errors of these tasks are worth a retry, and when; None means
        `commit_retry_policy`. Stages keep their own ways.
    :param kill_window: Seconds between the teardown's two looks for uploads of tasks being killed.
    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain. (templated)
    :param region_name: Overrides the connection's region. (templated)
    :param verify: Overrides the connection's check of TLS certificates. (templated)
    :param group_arguments: What Airflow's ``TaskGroup`` takes.
    """
    connection: dict[str, Any] = {"aws_conn_id": aws_conn_id, "region_name": region_name, "verify": verify}
    step: dict[str, Any] = {"retries": retries, "retry_policy": retry_policy or commit_retry_policy()}
    with TaskGroup(group_id, **group_arguments) as group:
        setup = S3CommitSetupOperator(
            task_id="setup",
            destination=destination,
            conflict_mode=conflict_mode,
            committer=committer,
            staging=staging,
            **connection,
            **step,
        )
        building = S3CommitGroup(group, setup, connection)
        yield building
        building.wire(
            resolve=dict(step),
            commit={**step, "outlets": list(outlets)},
            abort={**step, "kill_window": kill_window},
            audit={**step, **_audit_arguments(audit)} if audit is not None else None,
        )


def _audit_arguments(audit: Mapping[str, Any]) -> dict[str, Any]:
    rules = dict(audit)
    on_fail = rules.pop("on_fail", "fail")
    return {"rules": rules, "on_fail": on_fail}
