"""Spark stages of a group: mapped stages, SQL, and whose save modes decide."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_s3commit.operators import S3CommitSparkSubmitOperator
from airflow_s3commit.params import CONFLICT_MODE, SPARKS_CONFLICT_MODE
from airflow_s3commit.task_group import s3_commit_task_group


def test_a_mapped_stage_is_part_of_the_job() -> None:
    """Each instance is a stage of the one job; setup is before, the commit after all of them."""
    with DAG("nightly", schedule=None) as dag, s3_commit_task_group(destination="s3://lake/x/") as commit:
        commit.spark_submit.partial(task_id="facts", application="facts.py").expand(
            application_args=[["a"], ["b"]]
        )
        commit.spark_submit.partial(task_id="dimensions").expand_kwargs([{"application": "d.py"}])
        commit.spark_submit(application="last.py")
    assert dag.get_task("s3_commit.facts").is_mapped
    resolved = dag.get_task("s3_commit.resolve_conflicts")
    names = {"facts", "dimensions", "spark_submit"}
    assert {f"s3_commit.{name}" for name in names} <= resolved.upstream_task_ids
    assert [stage.operator.task_id for stage in resolved.stages] == [
        "s3_commit.facts",
        "s3_commit.dimensions",
        "s3_commit.spark_submit",
    ]
    for name in names:
        assert "s3_commit.setup" in dag.get_task(f"s3_commit.{name}").upstream_task_ids
    known = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert known.get_task("s3_commit.facts").is_mapped


def test_sql_is_a_stage_that_spark_s_shell_runs() -> None:
    """The statements are an argument of the shell, save modes decide, and the commit takes the stage."""
    with DAG("nightly", schedule=None) as dag, s3_commit_task_group(destination="s3://lake/x/") as commit:
        task = commit.spark_sql("INSERT INTO x SELECT '{{ ds }}'", conn_id="spark")
    assert (task.task_id, task.writer, task.application) == ("s3_commit.spark_sql", "spark", "spark-internal")
    assert task._java_class == "org.apache.spark.sql.hive.thriftserver.SparkSQLCLIDriver"
    assert task.application_args == ["-e", "INSERT INTO x SELECT '{{ ds }}'"]
    assert "application_args" in task.template_fields
    assert commit.setup.options["conflict_mode"] == SPARKS_CONFLICT_MODE
    assert "s3_commit.resolve_conflicts" in dag.get_task("s3_commit.spark_sql").downstream_task_ids


def test_a_list_of_sql_is_a_mapped_stage() -> None:
    """Each text is an instance, from a list or from an XCom."""
    with DAG("nightly", schedule=None) as dag, s3_commit_task_group(destination="s3://lake/x/") as commit:
        commit.spark_sql(["INSERT INTO x SELECT 1", "INSERT INTO x SELECT 2"])
        texts = dag.get_task("s3_commit.spark_sql")
        commit.spark_sql(commit.setup.output, task_id="told")
    assert texts.expand_input.value == {
        "application_args": [["-e", "INSERT INTO x SELECT 1"], ["-e", "INSERT INTO x SELECT 2"]]
    }
    assert texts.partial_kwargs["writer"] == "spark"
    told = dag.get_task("s3_commit.told").expand_input.value["application_args"]
    assert [operator.task_id for operator, _ in told.iter_references()] == ["s3_commit.setup"]


def modes_of(*writers: str | None, mapped: bool = False, **group: Any) -> str:
    """Return the conflict mode of a group whose Spark stages have these writers, and a check."""
    with DAG("nightly", schedule=None), s3_commit_task_group(destination="s3://lake/x/", **group) as commit:
        for number, writer in enumerate(writers):
            given = {"application": "a.py", "task_id": f"s{number}", **({"writer": writer} if writer else {})}
            if mapped:
                commit.spark_submit.partial(**given).expand(application_args=[["1"], ["2"]])
            else:
                commit.spark_submit(**given)
        commit.stage(EmptyOperator(task_id="check"))
    return commit.setup.options["conflict_mode"]


@pytest.mark.parametrize("mapped", [False, True])
def test_spark_s_save_modes_decide_if_no_mode_is_named(mapped: bool) -> None:
    """A group of ``writer="spark"`` carries Spark's meaning over, unless it names a conflict mode."""
    assert modes_of("spark", "spark", mapped=mapped) == SPARKS_CONFLICT_MODE
    assert modes_of("spark", mapped=mapped, conflict_mode="append") == "append"
    assert modes_of("python", None, mapped=mapped) == CONFLICT_MODE


def test_a_subclass_is_a_spark_stage_too() -> None:
    """An installation may have its own, with defaults of its clusters."""

    class Submit(S3CommitSparkSubmitOperator):
        pass

    with DAG("nightly", schedule=None) as dag, s3_commit_task_group(destination="s3://lake/x/") as commit:
        commit.stage(Submit(task_id="own", job=commit.job, application="a.py", writer="spark"))
    assert commit.setup.options["conflict_mode"] == SPARKS_CONFLICT_MODE
    (stage,) = dag.get_task("s3_commit.resolve_conflicts").stages
    assert stage.operator.task_id == "s3_commit.own"


@pytest.mark.parametrize("mapped", [False, True])
def test_stages_of_both_writers_need_a_named_mode(mapped: bool) -> None:
    """Data of a stage without a save mode is not added to others' by default: the group is refused."""
    with pytest.raises(ValueError, match=r"names no conflict_mode.*s1 has none"):
        modes_of("spark", None, mapped=mapped)
    assert modes_of("spark", None, mapped=mapped, conflict_mode="replace") == "replace"


@pytest.mark.parametrize("kind", ["task", "environment", "name"])
def test_a_stage_of_another_engine_needs_a_named_mode_too(kind: str) -> None:
    """With the save modes of a Spark stage it would append, and double its rows in the second run."""

    def mode(**group: Any) -> str:
        with (
            DAG("nightly", schedule=None),
            s3_commit_task_group(destination="s3://lake/x/", **group) as commit,
        ):
            commit.spark_submit(application="a.py", writer="spark")
            given = {"task": {"JOB": commit.job}, "environment": commit.environment("load"), "name": None}
            load = BashOperator(task_id="load", bash_command="true", env=given[kind])
            commit.stage(load, name="load" if kind == "name" else None)
        return commit.setup.options["conflict_mode"]

    with pytest.raises(ValueError, match=r"names no conflict_mode.* and .*load has none"):
        mode()
    assert mode(conflict_mode="replace") == "replace"


@pytest.mark.parametrize(
    ("how", "given"),
    [
        ("expand", {"writer": ["spark", "spark"]}),
        ("expand_kwargs", {"kwargs": [{"application_args": ["1"]}, {"writer": "spark"}]}),
    ],
)
def test_the_writer_cannot_be_mapped(how: str, given: dict[str, Any]) -> None:
    """It decides the group's default mode, which all instances share."""
    with (
        pytest.raises(ValueError, match=r"Task s3_commit\.spark_submit: writer cannot be mapped"),
        DAG("nightly", schedule=None),
        s3_commit_task_group(destination="s3://lake/x/") as commit,
    ):
        getattr(commit.spark_submit.partial(application="a.py"), how)(**given)
