"""One commit as a task group: setup, stages, conflict resolution, commit, teardown."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from airflow.sdk import TaskGroup

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.notifications import AbortUploadsNotifier
from airflow_s3commit.operators.abort import S3CommitAbortOperator
from airflow_s3commit.operators.audit import S3CommitAuditOperator
from airflow_s3commit.operators.commit import S3CommitJobOperator, commit_in_parts
from airflow_s3commit.operators.seal import (
    ON_EMPTY,
    SKIPPED_STAGES,
    OnEmpty,
    S3CommitResolveConflictsOperator,
    S3CommitStagesOperator,
    SkippedStages,
    note_try,
)
from airflow_s3commit.operators.setup import S3CommitSetupOperator, options_among
from airflow_s3commit.operators.spark_stages import SparkStages, add_sql, save_modes_decide
from airflow_s3commit.params import CONFLICT_MODE, SPARKS_CONFLICT_MODE
from airflow_s3commit.templates import check_value, mapping

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow.sdk import Asset, XComArg
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from airflow_s3commit.operators.spark_submit import S3CommitSparkSubmitOperator
    from airflow_s3commit.protocol.model.destination import Destination

__all__ = ["S3CommitGroup", "SparkStages", "s3_commit_task_group"]

#: A node in a graph of tasks: an operator, a mapped operator, a group, an XComArg.
Stage = TypeVar("Stage", bound="Any")


class S3CommitGroup:
    """A group under construction: its job, its connection, and its stages.

    :param group: The Airflow task group.
    :param setup: The task that sets up the job.
    :param connection: ``aws_conn_id``, ``region_name`` and ``verify`` of every task in the group.
    :param skips: ``skipped_stages`` and ``on_empty``.
    """

    def __init__(
        self,
        group: TaskGroup,
        setup: S3CommitSetupOperator,
        connection: dict[str, Any],
        skips: dict[str, Any],
    ) -> None:
        self.group = group
        self.setup = setup
        self.connection = connection
        self._skips = skips
        self._stages: list[Any] = []
        self._named: list[str] = []
        self._outputs: list[XComArg] | None = []
        self.commit: S3CommitJobOperator | None = None

    @property
    def job(self) -> XComArg:
        """The job reference; pass it to a templated field of a stage of another engine."""
        return self.setup.output

    @property
    def manifest(self) -> XComArg:
        """The summary of the manifest, for downstream tasks.

        :raises RuntimeError: The ``with`` block has not ended, so there is no commit task yet.
        """
        if self.commit is None:
            raise RuntimeError(
                f"The commit group {self.group.group_id} has no commit task yet: use manifest after the with "
                "block of the group."
            )
        return self.commit.output

    @property
    def spark_submit(self) -> SparkStages:
        """Adds stages that run with ``spark-submit``.

        ``commit.spark_submit(application=…)`` adds one stage, and
        ``commit.spark_submit.partial(application=…).expand(application_args=…)`` a stage for each value.
        """
        return SparkStages(self.job, self.connection, self.add)

    @overload
    def spark_sql(self, sql: str, **kwargs: Any) -> S3CommitSparkSubmitOperator: ...

    @overload
    def spark_sql(self, sql: Sequence[str] | XComArg, **kwargs: Any) -> MappedOperator: ...

    def spark_sql(
        self, sql: str | Sequence[str] | XComArg, **kwargs: Any
    ) -> S3CommitSparkSubmitOperator | MappedOperator:
        """Add a stage that runs SQL in Spark's own shell, and return its task.

        What the statements write to the destination waits for the commit, as with ``writer="spark"``. The
        first statement that fails makes the task fail. Spark's shell runs in client mode only, with Hive
        support.

        :param sql: Statements separated by ``;``; or a list of such strings, or an XCom with one, for a
            mapped task with an instance for each. (templated)
        :param kwargs: Arguments of `S3CommitSparkSubmitOperator` without ``job``, ``writer`` and those of an
            application; the default of ``task_id`` is ``spark_sql``.
        :raises ValueError: There is no SQL, or an argument is not one of the shell's.
        """
        return add_sql(self.spark_submit, sql, **kwargs)

    def environment(self, stage: str) -> dict[str, str]:
        """Return the environment of a program that is a stage, for ``s3commit put`` and ``s3commit seal``.

        The values are templates: give it to a templated argument, such as ``env`` of ``BashOperator`` with
        ``append_env=True``, or ``env_vars`` of a pod. Each try of the task is a separate attempt.

        :param stage: The stage's name.
        """
        # The setup of a mapped group has the map index of the stage, any other has none.
        index = "ti.map_index" if next(self.group.iter_mapped_task_groups(), None) else "-1"
        pull = f"{{{{ ti.xcom_pull(task_ids='{self.setup.task_id}', map_indexes={index})['%s'] }}}}"
        return {
            "S3COMMIT_DESTINATION": pull % "destination",
            "S3COMMIT_JOB": pull % "job_id",
            "S3COMMIT_STAGE": stage,
            "S3COMMIT_ATTEMPT": "{{ ti.try_number }}",
        }

    def add(self, stage: Stage, output: Any = None) -> Stage:
        """Add a task as a stage, and return it.

        :param stage: The task.
        :param output: The task's XComs with stage attempts; None if it has none, and then the commit takes
            the newest sealed attempt of each stage.
        """
        if output is None:
            self._outputs = None
        elif self._outputs is not None:
            self._outputs.append(output)
        self._stages.append(stage)
        return stage

    def stage(self, task: Stage, *, name: str | None = None) -> Stage:
        """Add any other task or group, such as a stage of another engine or a check, and return it.

        With such a stage in the group, the commit takes the newest sealed attempt of each stage of the job:
        attempts are numbered by the task's tries, so the highest number is the last try. What an earlier try
        has sealed stays invisible, and the commit aborts it.

        :param task: The task; create it inside the ``with`` block.
        :param name: The stage that the task seals, each try under its own number. Then only the last try's
            output counts, and the commit is refused if that try sealed nothing and an earlier one did. Leave
            it out if a try may use the application of an earlier one. A mapped task needs a name for each
            instance, such as ``load-{{ ti.map_index }}``. (templated)
        :raises ValueError: It is no task, or a group of tasks was given a name.
        """
        operator: Any = getattr(task, "operator", task)
        if not hasattr(operator, "update_relative"):
            raise ValueError(
                f"The commit group {self.group.group_id}: {task!r} is no task: give .stage(...) an operator,"
                " a group, or what a @task function returned"
            )
        if name is not None:
            if not hasattr(operator, "on_execute_callback"):
                raise ValueError(f"{operator} is no task; give the stage's name to the task that seals it")
            given = operator.on_execute_callback or []
            others = list(given) if isinstance(given, Sequence) else [given]
            operator.on_execute_callback = [partial(note_try, stage=name), *others]
            self._named.append(operator.task_id)
        return self.add(task)

    def wire(
        self,
        *,
        step: dict[str, Any],
        resolve: dict[str, Any],
        commit: dict[str, Any],
        abort: dict[str, Any],
        audit: dict[str, Any] | None = None,
        parts: int | None = None,
    ) -> None:
        """Add the tasks downstream of the stages, each with its arguments.

        :param step: Arguments of all these tasks.
        :param audit: Those of the audit task; None leaves it out.
        :param parts: Number of mapped tasks that complete the uploads; None leaves that to the commit task.
        :raises ValueError: The group has no stage, or needs a conflict mode and names none.
        """
        if not self._stages:
            raise ValueError(
                f"The commit group {self.group.group_id} has no stage: call .spark_submit(...) or "
                ".stage(task)."
            )
        undecided = self.setup.options["conflict_mode"] == CONFLICT_MODE
        if undecided and save_modes_decide(self.group.group_id, self._stages):
            self.setup.options["conflict_mode"] = SPARKS_CONFLICT_MODE
        stages = self._stages
        outputs: XComArg | list[XComArg] | None = self._outputs
        for stage in stages:
            self.setup >> stage
        if self._skips != {"skipped_stages": "skip", "on_empty": "skip"}:
            left = S3CommitStagesOperator(
                task_id="stages", stages=outputs, trigger_rule="none_failed", **self._skips, **step
            )
            for stage in stages:
                stage >> left
            stages, outputs = [left], left.output
        sealing = {
            **step,
            "job": self.job,
            "stages": outputs,
            "named_stages": self._named,
            **self.connection,
        }
        resolved = S3CommitResolveConflictsOperator(task_id="resolve_conflicts", **sealing, **resolve)
        self.commit = self._commit(resolved, {**step, **commit}, parts)
        # A failed run's teardown has failed, and the clean-up after the next one must not wait for it.
        alone = {"depends_on_past": False, "wait_for_downstream": False}
        aborted = S3CommitAbortOperator(
            task_id="abort", job=self.job, **self.connection, **step, **alone, **abort
        )
        first: S3CommitAuditOperator | S3CommitResolveConflictsOperator = resolved
        if audit is not None:
            first = S3CommitAuditOperator(task_id="audit", **sealing, **audit)
            first >> resolved
        for stage in stages:
            stage >> first
        self.commit >> aborted.as_teardown(setups=self.setup, on_failure_fail_dagrun=True)
        self._abort_at_timeout()

    def _commit(
        self, resolved: S3CommitResolveConflictsOperator, commit: dict[str, Any], parts: int | None
    ) -> S3CommitJobOperator:
        # Nobody reviews the preview in between, so commits of other jobs meanwhile need not fail the run.
        pinned = {"conflicts": resolved.output, "pin_preview": False}
        arguments = {"job": self.job, **pinned, **self.connection, **commit}
        if parts is None:
            committing = S3CommitJobOperator(task_id="commit", **arguments)
            resolved >> committing
            return committing
        mapped, committing = commit_in_parts(parts=parts, **arguments)
        resolved >> mapped
        return committing

    def _abort_at_timeout(self) -> None:
        """Let the DAG's failure callback abort the job if the DAG has a time limit, unless one does already.

        Airflow runs no teardown when a run exceeds ``dagrun_timeout``: it only calls that callback.
        """
        dag: Any = getattr(self.group, "dag", None)
        if dag is None or dag.dagrun_timeout is None:
            return
        given: Any = dag.on_failure_callback
        callbacks = list(given) if isinstance(given, Sequence) else [] if given is None else [given]
        others = [one for one in callbacks if isinstance(one, AbortUploadsNotifier)]
        if any(one.job is None and one.setup_task_ids is None for one in others):
            return
        for one in others:
            # One notifier first aborts the jobs of all groups, and then checks each again.
            connection = {name: getattr(one, name) for name in self.connection}
            if one.job is None and connection == self.connection:
                named = one.setup_task_ids
                known = [named] if isinstance(named, str) else list(named or ())
                one.setup_task_ids = [*known, self.setup.task_id]
                return
        aborting = AbortUploadsNotifier(setup_task_ids=self.setup.task_id, **self.connection)
        dag.on_failure_callback = [aborting, *callbacks]
        dag.has_on_failure_callback = True


@contextmanager
def s3_commit_task_group(
    group_id: str = "s3_commit",
    *,
    destination: str | Destination,
    options: Mapping[str, Any] | None = None,
    outlets: Sequence[Asset] | Asset = (),
    partition_asset: Asset | None = None,
    parts: int | None = None,
    audit: Mapping[str, Any] | None = None,
    skipped_stages: SkippedStages = "skip",
    on_empty: OnEmpty = "skip",
    retries: int = 2,
    retry_delay: timedelta = timedelta(seconds=30),
    kill_window: float = 10.0,
    aws_conn_id: str | None = S3CommitHook.default_conn_name,
    region_name: str | None = None,
    verify: bool | str | None = None,
    **arguments: Any,
) -> Iterator[S3CommitGroup]:
    """Build one commit: ``setup >> stages >> resolve_conflicts >> commit``, with ``abort`` as its teardown.

    Add stages inside the ``with`` block. Their output becomes visible when ``commit`` runs, or never: the
    teardown aborts a job that did not commit, and fails the run. In a DAG with ``dagrun_timeout`` an
    `AbortUploadsNotifier` is added to the DAG's failure callbacks, because Airflow runs no teardown then::

        with s3_commit_task_group("refresh", destination="s3://lake/flights/") as commit:
            commit.spark_submit(application="jobs/flights.py", application_args=["{{ partition_key }}"])

    :param group_id: The group's id, and the prefix of its task ids.
    :param destination: The dataset's directory: ``s3://bucket/prefix/`` or a `Destination`. (templated)
    :param options: The job's options, by the names of `JobOptions`, as in `S3CommitSetupOperator`. In a group
        with ``writer="spark"``, and a DAG without the param ``conflict_mode``, that option's default is
        ``as-written``: the save modes decide. (templated)
    :param outlets: Assets of the table. Each gets one event, with the manifest's summary as its ``extra``.
    :param partition_asset: An asset that gets an event for each partition with new files, as in
        `S3CommitJobOperator`.
    :param parts: Number of mapped tasks that complete the uploads before ``commit``; None leaves that to the
        one task, which completes some thousands of files a second.
    :param audit: Rules for the output, which are checked before any of it becomes visible, as in
        `S3CommitAuditOperator`, together with its ``on_fail`` (``fail``, ``warn`` or ``ask``),
        ``response_timeout``, ``assigned_users`` and ``notifiers``:
        ``{"min_rows": 1, "max_null_ratio": {"carrier": 0}, "on_fail": "ask"}``. (templated)
    :param skipped_stages: The effect of a skipped stage. ``skip``: it skips the commit, by Airflow's rules.
        If no stage wrote anything, the run succeeds; otherwise it fails, because that output is lost.
        ``ignore``: the commit takes what the other stages wrote.
    :param on_empty: The effect if all stages were skipped, or wrote no files. ``skip``: no commit, and the
        run succeeds. ``commit``: a commit without files, with the assets' events; it fails if it would remove
        data. ``remove``: a commit that removes what the conflict mode replaces; with committer ``directory``
        and conflict mode ``replace`` that is the whole table.
    :param retries: Number of retries of setup, audit, resolve, commit and abort, which are all repeatable.
        ``execution_timeout`` in ``default_args`` applies to stages only: each request has a time limit.
        A refusal is not retried, because the next try would be refused too.
    :param retry_delay: Time between these tries. Stages keep their own retries.
    :param kill_window: Seconds between two aborts, by the teardown and by a retried setup, for uploads of
        tasks that are being killed.
    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain. (templated)
    :param region_name: Overrides the connection's region. (templated)
    :param verify: Overrides the connection's check of TLS certificates. (templated)
    :param arguments: Options of the job as arguments of their own, such as ``conflict_mode="replace"``, and
        further arguments of Airflow's ``TaskGroup``.
    :raises InvalidOption: There is no such option, or its value is invalid.
    :raises ValueError: The group has no stage, ``skipped_stages`` or ``on_empty`` has another value, or no
        mode is named and only some Spark stages have ``writer="spark"``.
    """
    owner = f"The commit group {group_id}"
    check_value(owner, "skipped_stages", SKIPPED_STAGES, skipped_stages)
    check_value(owner, "on_empty", ON_EMPTY, on_empty)
    check_value(owner, "audit", mapping, audit)
    check_value(owner, "options", mapping, options)
    connection: dict[str, Any] = {"aws_conn_id": aws_conn_id, "region_name": region_name, "verify": verify}
    # A limit for the DAG's own tasks, from default_args, would end a commit or a teardown half-way.
    step: dict[str, Any] = {
        "retries": retries,
        "retry_delay": retry_delay,
        "execution_timeout": None,
    }
    of_job = options_among(arguments)
    options = {**(options or {}), **of_job}
    _check_names(group_id, arguments)
    with TaskGroup(group_id, **arguments) as group:
        setup = S3CommitSetupOperator(
            task_id="setup",
            destination=destination,
            options=options,
            kill_window=kill_window,
            **connection,
            **step,
        )
        skips = {"skipped_stages": skipped_stages, "on_empty": on_empty}
        building = S3CommitGroup(group, setup, connection, skips)
        yield building
        building.wire(
            step=step,
            resolve={"on_empty": on_empty},
            commit={"outlets": outlets, "partition_asset": partition_asset},
            abort={"kill_window": kill_window},
            audit=_audit_arguments(audit) if audit is not None else None,
            parts=parts,
        )


def _audit_arguments(audit: Mapping[str, Any]) -> dict[str, Any]:
    """Separate the audit operator's own arguments from the rules."""
    own = ("on_fail", "response_timeout", "assigned_users", "notifiers")
    rules = {name: value for name, value in audit.items() if name not in own}
    return {"rules": rules, **{name: audit[name] for name in own if name in audit}}


def _check_names(group_id: str, arguments: Mapping[str, Any]) -> None:
    """Raise `InvalidOption` for an argument that neither the group, its job nor Airflow's group has."""
    of_group = inspect.signature(TaskGroup).parameters
    if unknown := sorted(arguments.keys() - of_group.keys()):
        from airflow_s3commit.protocol.model.job import JobOptions  # noqa: PLC0415 - importing needs none

        options = JobOptions.__struct_fields__
        known = [*inspect.signature(s3_commit_task_group).parameters, *options, *of_group]
        near = get_close_matches(unknown[0], known, 1)
        advice = f"did you mean {near[0]}?" if near else f"the options of its job are {', '.join(options)}"
        raise InvalidOption(f"The commit group {group_id} has no argument {unknown[0]}; {advice}")
