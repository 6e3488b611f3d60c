"""Stages of a task group that run with ``spark-submit``: single, mapped, and SQL stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow.sdk import XComArg
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from airflow_s3commit.operators.spark_submit import S3CommitSparkSubmitOperator

#: The main class of Spark's own SQL shell, ``spark-sql``.
_SQL_SHELL = "org.apache.spark.sql.hive.thriftserver.SparkSQLCLIDriver"

_NO_SQL = "there is no SQL to run: give commit.spark_sql statements separated by ;"

#: Arguments for an application, which the shell does not take.
_NOT_THE_SHELLS = {"application", "application_args", "deploy_mode", "java_class", "writer"}


class SparkStages:
    """Adds Spark stages to a group: a single stage by a call, a mapped stage by ``expand``.

    :param job: The reference of the group's job.
    :param connection: ``aws_conn_id``, ``region_name`` and ``verify`` of the group.
    :param add: Adds a task and its XComs to the group as a stage, and returns the task.
    :param fixed: Arguments for all instances of a mapped stage.
    """

    def __init__(
        self,
        job: XComArg,
        connection: Mapping[str, Any],
        add: Callable[[Any, Any], Any],
        fixed: Mapping[str, Any] | None = None,
    ) -> None:
        self._job = job
        self._connection = connection
        self._add = add
        self._fixed = dict(fixed or {})

    def __call__(self, **kwargs: Any) -> S3CommitSparkSubmitOperator:
        """Add one stage, and return its task.

        :param kwargs: Arguments of `S3CommitSparkSubmitOperator` without ``job``; the default of ``task_id``
            is ``spark_submit``.
        """
        stage = _operator()(**self._arguments(kwargs))
        self._add(stage, stage.output)
        return stage

    def partial(self, **kwargs: Any) -> SparkStages:
        """Fix arguments for all instances of a mapped stage; call ``expand`` on the result.

        :param kwargs: Arguments of `S3CommitSparkSubmitOperator` without ``job``.
        """
        return SparkStages(self._job, self._connection, self._add, {**self._fixed, **kwargs})

    def expand(self, **kwargs: Any) -> MappedOperator:
        """Add a mapped stage, and return its task; each instance is a stage of the job.

        :param kwargs: As in Airflow's ``expand``: lists, mappings or XComs, one instance for each value.
        """
        return self._mapped(_operator().partial(**self._arguments()).expand(**kwargs))

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedOperator:
        """Add a mapped stage with one instance for each mapping of arguments, and return its task.

        :param kwargs: As in Airflow's ``expand_kwargs``: a list of mappings, or an XCom.
        :param strict: As in Airflow's ``expand_kwargs``: refuse arguments that are set in ``partial`` too.
        """
        return self._mapped(_operator().partial(**self._arguments()).expand_kwargs(kwargs, strict=strict))

    def _mapped(self, stage: MappedOperator) -> MappedOperator:
        self._add(stage, stage.output)
        return stage

    def _arguments(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        own = {"task_id": "spark_submit", "job": self._job, **self._connection}
        return {**own, **self._fixed, **(given or {})}


def add_sql(
    stages: SparkStages, sql: str | Sequence[str] | XComArg, **kwargs: Any
) -> S3CommitSparkSubmitOperator | MappedOperator:
    """Add a SQL stage, and return its task; see `S3CommitGroup.spark_sql`.

    :param stages: Adds the stage.
    :param sql: One or several texts of statements, or an XCom with them.
    :param kwargs: Arguments of `S3CommitSparkSubmitOperator`.
    :raises ValueError: There is no SQL, or an argument is not one of the shell's.
    """
    if wrong := sorted(_NOT_THE_SHELLS & kwargs.keys()):
        raise ValueError(
            f"commit.spark_sql runs Spark's SQL shell, in client mode: it takes no {', '.join(wrong)}; "
            "use commit.spark_submit for an application"
        )
    arguments = {"task_id": "spark_sql", **kwargs, "application": "spark-internal", "writer": "spark"}
    stages = stages.partial(**arguments, java_class=_SQL_SHELL)
    if isinstance(sql, str):
        return stages(application_args=_shell_arguments(sql))
    if isinstance(sql, Sequence):
        return stages.expand(application_args=[_shell_arguments(text) for text in sql])
    if not hasattr(sql, "map"):
        raise ValueError(_NO_SQL)
    return stages.expand(application_args=sql.map(_shell_arguments))


def save_modes_decide(group_id: str | None, stages: Iterable[Any]) -> bool:
    """Return whether Spark's save modes decide in a group that names no conflict mode.

    They do if its Spark stages have ``writer="spark"``.

    :param group_id: The group's id, for the message of the error.
    :param stages: The group's stages: tasks, mapped tasks and groups.
    :raises ValueError: Other Spark stages write with this package's writer, which has no save mode.
    """
    writers = {stage.task_id: writer for stage in stages if (writer := _writer(stage))}
    if "spark" not in writers.values():
        return False
    others = [task_id for task_id, writer in writers.items() if writer != "spark"]
    if others:
        raise ValueError(
            f"The commit group {group_id} names no conflict_mode: the save modes of the stages with"
            f" writer='spark' would decide, and {others[0]} has none. Name the mode of all stages: fail,"
            " append, replace, or as-written, for which that stage appends."
        )
    return True


def _writer(stage: Any) -> str | None:
    """Return who writes a Spark stage, mapped or not; None for any other task."""
    mapped: Any = getattr(stage, "partial_kwargs", None)
    if mapped is None:
        return getattr(stage, "writer", None)
    return mapped.get("writer", "python") if issubclass(stage.operator_class, _operator()) else None


def _operator() -> type[S3CommitSparkSubmitOperator]:
    from airflow_s3commit.operators.spark_submit import (  # noqa: PLC0415 - the Spark provider is an extra
        S3CommitSparkSubmitOperator,
    )

    return S3CommitSparkSubmitOperator


def _shell_arguments(sql: Any) -> list[str]:
    """Return the arguments of Spark's SQL shell for statements."""
    if not isinstance(sql, str) or not sql.strip():
        raise ValueError(_NO_SQL)
    return ["-e", sql]
