"""One commit as a task group: setup, stages, conflict resolution, commit, teardown."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from airflow.sdk import Asset, TaskGroup, XComArg

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.notifications import AbortUploadsNotifier
from airflow_s3commit.operators.abort import KILL_WINDOW, S3CommitAbortOperator
from airflow_s3commit.operators.commit import S3CommitJobOperator, S3CommitPartOperator
from airflow_s3commit.operators.seal import (
    ON_EMPTY,
    SKIPPED_STAGES,
    OnEmpty,
    S3CommitAuditOperator,
    S3CommitResolveConflictsOperator,
    S3CommitStagesOperator,
    SkippedStages,
    note_try,
)
from airflow_s3commit.operators.setup import S3CommitSetupOperator, options_among
from airflow_s3commit.params import CONFLICT_MODE, SPARKS_CONFLICT_MODE
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import check_id
from airflow_s3commit.templates import at_least, check_value, is_known, mapping

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from airflow_s3commit.operators.spark_submit import S3CommitSparkSubmitOperator
    from airflow_s3commit.protocol.model.destination import Destination

__all__ = ["S3CommitGroup", "SparkStages", "s3_commit_task_group"]

#: A node in a graph of tasks: an operator, a mapped operator, a group, an XComArg.
Stage = TypeVar("Stage", bound="Any")

Arguments: TypeAlias = Mapping[str, Any]

#: Arguments of the audit besides its rules.
_OF_AUDIT = ("on_fail", "response_timeout", "assigned_users", "notifiers")

#: The main class of Spark's own SQL shell, ``spark-sql``.
_SQL_SHELL = "org.apache.spark.sql.hive.thriftserver.SparkSQLCLIDriver"


class S3CommitGroup:
    """A group under construction: Airflow's task group, the task that sets up its job, and its stages."""

    def __init__(self, group: TaskGroup, setup: S3CommitSetupOperator) -> None:
        self.group = group
        self.setup = setup
        self._stages: list[Any] = []
        self._named: list[str] = []
        self._programs: list[str] = []
        self._owner = f"The commit group {group.group_id}"
        self.commit: S3CommitJobOperator | None = None

    @property
    def job(self) -> XComArg:
        """The job reference; pass it to a templated field of a stage of another engine."""
        return self.setup.output

    @property
    def manifest(self) -> XComArg:
        """The summary of the manifest, for tasks downstream of the ``with`` block."""
        if self.commit is None:
            raise RuntimeError(f"{self._owner} has no commit task yet: use manifest after its with block.")
        return self.commit.output

    @property
    def spark_submit(self) -> SparkStages:
        """Adds stages that run with ``spark-submit``.

        ``commit.spark_submit(application=…)`` adds one stage, and
        ``commit.spark_submit.partial(application=…).expand(application_args=…)`` a stage for each value.
        """
        # The Spark provider is an extra.
        from airflow_s3commit.operators.spark_submit import S3CommitSparkSubmitOperator  # noqa: PLC0415

        fixed = {"job": self.job, "aws_conn_id": self.setup.aws_conn_id, "do_xcom_push": True}
        return SparkStages(self, S3CommitSparkSubmitOperator, {"task_id": "spark_submit", **fixed})

    def spark_sql(self, sql: str | list[str] | XComArg, *, task_id: str = "spark_sql", **kwargs: Any) -> Any:
        """Add a stage that runs SQL in Spark's own shell, and return its task.

        What the statements write to the destination waits for the commit, as with ``writer="spark"``. The
        first failed statement fails the task. Spark's shell runs in client mode only, with Hive support.

        :param sql: Statements separated by ``;``; or a list of such strings, or an XCom with one, for a
            mapped task with an instance for each. (templated)
        :param task_id: The id of the task.
        :param kwargs: Further arguments of `S3CommitSparkSubmitOperator`, except those of an application.
        """
        shell = {"application": "spark-internal", "java_class": _SQL_SHELL, "writer": "spark"}
        stages = self.spark_submit.partial(task_id=task_id, **shell, **kwargs)
        if isinstance(sql, str):
            return stages(application_args=["-e", sql])
        if isinstance(sql, list):
            return stages.expand(application_args=[["-e", text] for text in sql])
        return stages.expand(application_args=sql.map(lambda text: ["-e", text]))

    def environment(self, stage: str) -> dict[str, str]:
        """Return the environment of a program that is a stage, for ``s3commit put`` and ``s3commit seal``.

        The values are templates: pass them to a templated argument, such as ``env`` of ``BashOperator`` with
        ``append_env=True``, or ``env_vars`` of a pod. Each try of the task is a separate attempt. Leave
        ``render_template_as_native_obj`` to the DAG: the task must render as its DAG does.

        :param stage: The stage's name.
        """
        self._programs.append(stage)
        # In a mapped group the setup has the map index of the stage; elsewhere it has none.
        index = "ti.map_index" if next(self.group.iter_mapped_task_groups(), None) else "-1"
        pull = f"{{{{ ti.xcom_pull(task_ids='{self.setup.task_id}', map_indexes={index})['%s'] }}}}"
        # Native rendering turns text into a number where it can, unless the text has quotes.
        kept = "'%s'" if getattr(self.setup.get_dag(), "render_template_as_native_obj", False) else "%s"
        return {
            "S3COMMIT_DESTINATION": pull % "destination",
            "S3COMMIT_JOB": pull % "job_id",
            "S3COMMIT_STAGE": kept % stage,
            "S3COMMIT_ATTEMPT": kept % "{{ ti.try_number }}",
        }

    def stage(self, task: Stage, *, name: str | None = None) -> Stage:
        """Add any other task or group, such as a stage of another engine or a check, and return it.

        Unless it is an `S3CommitSparkSubmitOperator`, the commit then takes the newest sealed attempt of each
        stage of the job: attempts are numbered by the task's tries, so the highest number is the last try.
        What an earlier try has sealed stays invisible, and the commit aborts it.

        :param task: The task; create it inside the ``with`` block.
        :param name: The stage that the task seals, each try under its own number. Then only the last try's
            output counts, and the commit is refused if that try sealed nothing and an earlier one did. Leave
            it out if a try may use the application of an earlier one. A mapped task needs a name for each
            instance, such as ``load-{{ ti.map_index }}``. (templated)
        """
        operator: Any = getattr(task, "operator", task)
        if not hasattr(operator, "update_relative"):
            raise ValueError(
                f"{self._owner}: {task!r} is no task: give .stage(...) an operator,"
                " a group, or what a @task function returned"
            )
        if name is not None:
            if not hasattr(operator, "on_execute_callback"):
                raise ValueError(f"{operator} is no task; give the stage's name to the task that seals it")
            check_value(f"Task {operator.task_id}", "name", partial(check_id, what="stage"), name, ["name"])
            given = operator.on_execute_callback
            others = [given] if callable(given) else given
            operator.on_execute_callback = [partial(note_try, stage=name), *others]
            self._named.append(operator.task_id)
        self._stages.append(operator)
        return task

    def wire(
        self, step: Arguments, skips: Arguments, commit: Arguments, audit: Arguments | None, parts: int | None
    ) -> None:
        """Add the tasks downstream of the stages; ``step`` has the arguments that these tasks share."""
        if not self._stages:
            raise ValueError(f"{self._owner} has no stage: call .spark_submit(...) or .stage(task).")
        if self.setup.options["conflict_mode"] == CONFLICT_MODE and self._save_modes_decide():
            self.setup.options["conflict_mode"] = SPARKS_CONFLICT_MODE
        stages = self._stages
        outputs: Any = [stage.output for stage in stages] if all(map(_writer, stages)) else None
        named = self._named if outputs is None else [stage.task_id for stage in stages]
        self.setup >> stages
        if skips != {"skipped_stages": "skip", "on_empty": "skip"}:
            left = S3CommitStagesOperator(
                task_id="stages", stages=outputs, trigger_rule="none_failed", **skips, **step
            )
            stages >> left
            stages, outputs = [left], left.output
        step = {**step, "job": self.job, "aws_conn_id": self.setup.aws_conn_id}
        sealing = {**step, "stages": outputs, "named_stages": named}
        resolved = S3CommitResolveConflictsOperator(
            task_id="resolve_conflicts", on_empty=skips["on_empty"], **sealing
        )
        first: S3CommitAuditOperator | S3CommitResolveConflictsOperator = resolved
        if audit is not None:
            own = {name: audit[name] for name in _OF_AUDIT if name in audit}
            rules = {name: rule for name, rule in audit.items() if name not in own}
            first = S3CommitAuditOperator(task_id="audit", rules=rules, **sealing, **own)
            first >> resolved
        stages >> first
        completing = {**step, "conflicts": resolved.output}
        # Nobody reviews the preview in between, so commits of other jobs meanwhile need not fail the run.
        self.commit = S3CommitJobOperator(task_id="commit", pin_preview=False, **completing, **commit)
        if parts is not None:
            mapped = S3CommitPartOperator.partial(task_id="commit_parts", parts=parts, **completing)
            mapped.expand(part=list(range(parts))) >> self.commit
        # A failed run's teardown has failed too, and the next run's teardown must not wait for it.
        alone = {"depends_on_past": False, "wait_for_downstream": False}
        aborted = S3CommitAbortOperator(task_id="abort", kill_window=self.setup.kill_window, **step, **alone)
        self.commit >> aborted.as_teardown(setups=self.setup, on_failure_fail_dagrun=True)
        self._refuse_strays(first.task_id)
        self._refuse_doubles()
        self._abort_at_timeout()

    def _refuse_strays(self, first: str) -> None:
        """Raise `ValueError` for a task that gets the job, and is neither a stage nor before or after one."""
        above = {self.setup.task_id, *self.setup.get_flat_relative_ids(upstream=True)}
        for task in self.setup.get_direct_relatives():
            before, after = task.get_flat_relative_ids(upstream=True), task.get_flat_relative_ids()
            if before <= above and first not in after:
                raise ValueError(
                    f"{self._owner}: {task.task_id} gets the job, and the commit would not wait for it: call"
                    " .stage(...) with it, or put it before or after a stage"
                )

    def _refuse_doubles(self) -> None:
        """Raise `ValueError` for tasks with one name for their states, or with one stage for their output."""
        is_mapped = {task.task_id: task.is_mapped for task in self.group.iter_tasks()}
        for task_id in is_mapped:
            mapped, _, index = task_id.rpartition("_")
            if index.isdecimal() and is_mapped.get(mapped):
                raise ValueError(
                    f"{self._owner}: Airflow reports the states of {task_id} and of instance {index} of"
                    f" {mapped} under one name: give one of the two tasks another id"
                )
        # A name that comes from a template is known, and checked, only in a run.
        named = Counter[str]()
        for stage in filter(_writer, self._stages):
            own = getattr(stage, "partial_kwargs", vars(stage)).get("stage")
            named.update([own] * (1 + stage.is_mapped) if own and is_known(own) else [])
        if shared := [name for name, tasks in named.items() if tasks > 1]:
            raise ValueError(
                f"{self._owner}: several tasks or mapped instances write stage {shared[0]}, and only one's"
                " output would count: give each a stage of its own, as without the argument stage"
            )

    def _save_modes_decide(self) -> bool:
        """Return whether Spark's save modes decide: whether all that may write have ``writer="spark"``."""
        writers = {task.task_id: _writer(task) for task in self.setup.downstream_list}
        if "spark" not in writers.values():
            return False
        # A task that does not get the job, such as a check, writes nothing.
        getting = sorted({*writers, *self._named}) + self._programs
        if others := [name for name in getting if writers.get(name) != "spark"]:
            raise ValueError(
                f"{self._owner} names no conflict_mode: the save modes of the stages"
                f" with writer='spark' would decide, and {others[0]} has none. Name the mode of all stages:"
                " fail, append, replace, or as-written, for which that stage appends."
            )
        return True

    def _abort_at_timeout(self) -> None:
        """Let the DAG's failure callback abort the job if the DAG has a time limit, unless it does already.

        Airflow runs no teardown when a run exceeds ``dagrun_timeout``: it only calls that callback.
        """
        dag: Any = getattr(self.group, "dag", None)
        if dag is None or dag.dagrun_timeout is None:
            return
        given: Any = dag.on_failure_callback
        callbacks = list(given) if isinstance(given, Sequence) else [] if given is None else [given]
        conn_id, own = self.setup.aws_conn_id, self.setup.task_id
        notifiers = [one for one in callbacks if isinstance(one, AbortUploadsNotifier)]
        others = [one for one in notifiers if one.job is None and one.aws_conn_id == conn_id]
        if any(one.setup_task_ids is None for one in others):
            return
        for one in others:
            # One notifier first aborts the jobs of all groups, and then checks each again.
            if isinstance(one.setup_task_ids, list):
                one.setup_task_ids = [*one.setup_task_ids, own]
                return
        aborting = AbortUploadsNotifier(setup_task_ids=[own], aws_conn_id=conn_id)
        dag.on_failure_callback = [aborting, *callbacks]
        dag.has_on_failure_callback = True


class SparkStages:
    """Adds Spark stages to a group: a single stage by a call, a mapped stage by ``expand``.

    Arguments are `S3CommitSparkSubmitOperator`'s without ``job``; ``task_id`` defaults to ``spark_submit``.
    """

    def __init__(
        self, group: S3CommitGroup, kind: type[S3CommitSparkSubmitOperator], fixed: Arguments
    ) -> None:
        self._group = group
        self._kind = kind
        self._fixed = fixed

    def __call__(self, **kwargs: Any) -> S3CommitSparkSubmitOperator:
        """Add one stage, and return its task."""
        return self._group.stage(self._kind(**{**self._fixed, **kwargs}))

    def partial(self, **kwargs: Any) -> SparkStages:
        """Fix arguments for all instances of a mapped stage; call ``expand`` on the result."""
        return SparkStages(self._group, self._kind, {**self._fixed, **kwargs})

    def expand(self, **kwargs: Any) -> MappedOperator:
        """Add a mapped stage, as Airflow's ``expand`` does, and return its task; each instance is a stage."""
        return self._group.stage(self._kind.partial(**self._fixed).expand(**kwargs))

    def expand_kwargs(self, kwargs: Any) -> MappedOperator:
        """Add a mapped stage, as Airflow's ``expand_kwargs`` does: an instance for each mapping in a list."""
        return self._group.stage(self._kind.partial(**self._fixed).expand_kwargs(kwargs))


@contextmanager
def s3_commit_task_group(
    group_id: str = "s3_commit",
    *,
    destination: str | Destination,
    outlets: Sequence[Asset] | Asset = (),
    partition_asset: Asset | None = None,
    parts: int | None = None,
    audit: Mapping[str, Any] | None = None,
    skipped_stages: SkippedStages = "skip",
    on_empty: OnEmpty = "skip",
    retries: int = 2,
    retry_delay: timedelta = timedelta(seconds=30),
    kill_window: float = KILL_WINDOW,
    aws_conn_id: str | EllipsisType | None = ...,
    **arguments: Any,
) -> Iterator[S3CommitGroup]:
    """Build one commit: ``setup >> stages >> resolve_conflicts >> commit``, with ``abort`` as its teardown.

    Add stages inside the ``with`` block. Their output becomes visible when ``commit`` runs, or never: the
    teardown aborts a job that did not commit, and fails the run. In a DAG with ``dagrun_timeout`` an
    `AbortUploadsNotifier` is added to the DAG's failure callbacks, because Airflow runs no teardown then::

        with s3_commit_task_group("refresh", destination="s3://lake/flights/") as commit:
            commit.spark_submit(application="jobs/flights.py", application_args=["{{ partition_key }}"])

    :param group_id: The group's id, and the prefix of its task ids.
    :param destination: The table's directory: ``s3://bucket/prefix/`` or a `Destination`. (templated)
    :param outlets: Assets of the table, as in `S3CommitJobOperator`.
    :param partition_asset: An asset that gets an event for each partition with new files, as in it.
    :param parts: Number of mapped tasks that complete the uploads before ``commit``; with None, ``commit``
        completes all of them, some thousands of files a second.
    :param audit: Rules for the output, which are checked before any of it becomes visible, together with the
        other arguments of `S3CommitAuditOperator`:
        ``{"min_rows": 1, "max_null_ratio": {"carrier": 0}, "on_fail": "ask"}``. (templated)
    :param skipped_stages: The effect of a skipped stage. ``skip``: it skips the commit, by Airflow's rules.
        If no stage wrote anything, the run succeeds; otherwise it fails, because that output is lost.
        ``ignore``: the commit takes what the other stages wrote.
    :param on_empty: The effect if all stages were skipped, or wrote no files. ``skip``: no commit, and the
        run succeeds. ``commit``: a commit without files, with the assets' events; it fails if it would remove
        data. ``remove``: a commit that removes what the conflict mode replaces, which may be the whole table.
    :param retries: Number of retries of setup, audit, resolve, commit and abort, which are all repeatable.
        ``execution_timeout`` in ``default_args`` applies to stages only: each request has a time limit.
        A refusal is not retried, because the next try would be refused too.
    :param retry_delay: Time between these tries. Stages keep their own retries.
    :param kill_window: Seconds between two aborts, by teardown and retried setup, for uploads of dying tasks.
    :param aws_conn_id: The ``aws`` connection of the store; None means boto3's default chain. By default that
        of ``default_args``, or ``[s3commit] aws_conn_id``. (templated)
    :param arguments: Options of the job, as in `S3CommitSetupOperator`, such as ``conflict_mode="replace"``,
        and further arguments of Airflow's ``TaskGroup``. In a group with ``writer="spark"``, and a DAG
        without the param ``conflict_mode``, its default is ``as-written``: the save modes decide. (templated)
    :raises ValueError: The group has no stage, a task gets the job and is no stage, a task has the name of
        an instance of a mapped one, several Spark tasks have one stage, ``writer`` is mapped, or no mode is
        named and only some of the tasks that get the job have ``writer="spark"``.
    """
    owner = f"The commit group {group_id}"
    check_value(owner, "skipped_stages", SKIPPED_STAGES, skipped_stages)
    check_value(owner, "on_empty", ON_EMPTY, on_empty)
    check_value(owner, "audit", mapping, audit)
    check_value(owner, "parts", at_least(1, int), parts)
    # default_args may set these for the DAG's own tasks: a time limit would end a commit or a teardown
    # half-way, and without XComs no step would know its job.
    own = {"execution_timeout": None, "do_xcom_push": True}
    step: dict[str, Any] = {"retries": retries, "retry_delay": retry_delay, **own}
    skips = {"skipped_stages": skipped_stages, "on_empty": on_empty}
    commit = {"outlets": outlets, "partition_asset": partition_asset}
    options = {"kill_window": kill_window, **options_among(arguments)}
    if aws_conn_id is not ...:
        options["aws_conn_id"] = aws_conn_id
    _check_names(group_id, arguments)
    with TaskGroup(group_id, **arguments) as group:
        setup = S3CommitSetupOperator(task_id="setup", destination=destination, **options, **step)
        building = S3CommitGroup(group, setup)
        yield building
        building.wire(step, skips, commit, audit, parts)


def _check_names(group_id: str, arguments: Arguments) -> None:
    """Raise `InvalidOption` for an argument that neither this group, its job nor Airflow's group takes."""
    of_group = inspect.signature(TaskGroup).parameters
    if unknown := sorted(arguments.keys() - of_group.keys()):
        options = JobOptions.__struct_fields__
        known = [*inspect.signature(s3_commit_task_group).parameters, *options, *of_group]
        near = get_close_matches(unknown[0], known, 1)
        advice = f"did you mean {near[0]}?" if near else f"the options of its job are {', '.join(options)}"
        raise InvalidOption(f"The commit group {group_id} has no argument {unknown[0]}; {advice}")


def _writer(stage: Any) -> str | None:
    """Return the ``writer`` of a Spark stage, mapped or not; None for any other task."""
    kind = getattr(stage, "operator_class", type(stage))
    # By the class's name: importing it takes the Spark provider, which other stages do not need.
    if "S3CommitSparkSubmitOperator" not in {base.__name__ for base in kind.__mro__}:
        return None
    mapped: Any = getattr(stage, "partial_kwargs", None)
    if mapped is None:
        return str(stage.writer)
    given = stage.expand_input.value
    each = given if isinstance(given, list) else [given]
    if any("writer" in one for one in each if isinstance(one, Mapping)):
        raise ValueError(f"Task {stage.task_id}: writer cannot be mapped: add a stage for each writer")
    return str(mapped.get("writer", "python"))
