"""The group: what it wires, what it refuses, and which failures are worth another try."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, TaskGroup, TriggerRule, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.log import mask_secret
from airflow.serialization.serialized_objects import DagSerialization

from airflow_s3commit import exceptions
from airflow_s3commit.notifications import AbortUploadsNotifier
from airflow_s3commit.operators.base import FAILURE, failures_are_noted
from airflow_s3commit.params import CONFLICT_MODE
from airflow_s3commit.task_group import s3_commit_task_group
from tests.cases import ERRORS, each


def build() -> DAG:
    """Return a DAG with one group, and a task behind it."""
    with DAG("nightly", schedule=None) as dag:
        with s3_commit_task_group(
            "refresh", destination="s3://lake/flights/", outlets=[Asset("flights")], aws_conn_id="lake"
        ) as commit:
            commit.spark_submit(application="flights.py")
        EmptyOperator(task_id="after").set_upstream(commit.commit)
    return dag


def test_the_wiring() -> None:
    """Setup, stages, resolve, commit in a row; the abort tears the setup down."""
    tasks = {task.task_id.removeprefix("refresh."): task for task in build().tasks}
    below = {
        name: {each.removeprefix("refresh.") for each in task.upstream_task_ids}
        for name, task in tasks.items()
    }
    assert "setup" in below["spark_submit"]
    assert "spark_submit" in below["resolve_conflicts"]
    assert "resolve_conflicts" in below["commit"]
    assert {"commit", "setup"} <= below["abort"]
    assert tasks["setup"].is_setup
    assert tasks["abort"].is_teardown
    assert tasks["abort"].on_failure_fail_dagrun
    assert tasks["abort"].trigger_rule == TriggerRule.ALL_DONE_SETUP_SUCCESS
    assert tasks["resolve_conflicts"].named_stages == ["refresh.spark_submit"]
    # Nobody looks at the preview in between, so another job's commit is no reason to fail.
    assert not tasks["commit"].pin_preview


@pytest.mark.parametrize("place", ["stage", "before", "after", "stray"])
def test_a_task_that_gets_the_job_is_waited_for(place: str) -> None:
    """The commit would drop what it writes later, so it is a stage, or has another place in the order."""
    refused = pytest.raises(ValueError, match=r"refresh\.write gets the job, and the commit would not wait")
    group = s3_commit_task_group("refresh", destination="s3://lake/flights/")
    with DAG("nightly", schedule=None), refused if place == "stray" else nullcontext(), group as commit:
        EmptyOperator(task_id="wait") >> commit.setup
        other = commit.stage(EmptyOperator(task_id="other"))
        write = BashOperator(task_id="write", bash_command="true", env={"JOB": commit.job})
        if place == "stage":
            commit.stage(write)
        elif place == "before":
            write >> other
        elif place == "after":
            other >> write


def test_every_task_uses_the_groups_connection() -> None:
    """One connection is given once and used by all tasks of the group."""
    tasks = [task for task in build().tasks if task.task_id.startswith("refresh.")]
    assert {task.aws_conn_id for task in tasks} == {task.hook.aws_conn_id for task in tasks} == {"lake"}


def test_the_group_takes_the_job_s_options() -> None:
    """They reach the setup, which renders them; there is one list of them."""
    kept = {"sse": "aws:kms", "tags": {"run": "{{ run_id }}"}}
    options = {"track_pending": "s3", "pendingset_format": "hadoop-3.3", "object_options": kept}
    with DAG("nightly", schedule=None) as dag:
        for name, given in (("named", options), ("neither", {})):
            with s3_commit_task_group(name, destination=f"s3://lake/{name}/", **given) as commit:
                commit.spark_submit(application="flights.py")
    named, neither = (dag.get_task(f"{name}.setup").options for name in ("named", "neither"))
    assert named == {"conflict_mode": CONFLICT_MODE, **options}
    assert neither == {"conflict_mode": CONFLICT_MODE}
    assert "options" in dag.get_task("named.setup").template_fields


@each("wrong", [{"retian": "7d"}, {"retain": "for ever"}, {"committer": "hourly"}])
def test_a_wrong_option_is_refused_when_the_dag_is_parsed(wrong) -> None:
    """A name that neither a job nor Airflow's group has, and a value that no run can render, make no DAG."""
    with (
        pytest.raises((TypeError, exceptions.InvalidOption), match=r"retian|retain|committer"),
        DAG("nightly", schedule=None),
        s3_commit_task_group(destination="s3://lake/t/", **wrong) as commit,
    ):
        commit.spark_submit(application="flights.py")


def test_it_survives_serialization() -> None:
    """The scheduler sees the same tasks, the teardown with its flag among them."""
    dag = build()
    known = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert set(known.task_ids) == set(dag.task_ids)
    assert known.get_task("refresh.abort").is_teardown
    assert known.get_task("refresh.abort").on_failure_fail_dagrun


def test_other_engines_are_stages_too() -> None:
    """A task of another kind is between setup and resolve, and every sealed stage is taken."""
    with DAG("nightly", schedule=None) as dag, s3_commit_task_group(destination="s3://lake/x/") as commit:
        commit.spark_submit(application="flights.py")
        commit.stage(EmptyOperator(task_id="emr"))
    assert "s3_commit.emr" in dag.get_task("s3_commit.resolve_conflicts").upstream_task_ids
    assert "s3_commit.setup" in dag.get_task("s3_commit.emr").upstream_task_ids
    assert dag.get_task("s3_commit.resolve_conflicts").stages is None


def noted_by(task: Any, **facts: Any) -> Any:
    """Return what a task notes when a try of it begins."""
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(task=task, task_id=task.task_id, **{"map_index": -1, **facts})
    ti.xcom_push = lambda key, value: pushed.update({key: value})
    for callback in task.on_execute_callback:
        callback({"ti": ti})
    return pushed.get("stage_try")


def test_a_task_with_a_stage_s_name_notes_its_try() -> None:
    """The task that seals learns of a named stage's last try when that begins, from each mapped instance."""
    own: list[Any] = []
    with DAG("nightly", schedule=None) as dag, s3_commit_task_group(destination="s3://lake/x/") as commit:
        commit.stage(EmptyOperator(task_id="emr", on_execute_callback=own.append), name="load")
        mapped = BashOperator.partial(task_id="glue").expand(bash_command=["a", "b"])
        commit.stage(mapped, name="glue-{{ ti.map_index }}")
    note = noted_by(dag.get_task("s3_commit.emr"), try_number=2)
    assert note == {"stage": "load", "try": 2, "instance": "s3_commit.emr_-1"}
    assert len(own) == 1
    glue = EmptyOperator(task_id="glue", on_execute_callback=mapped.on_execute_callback)
    noted = noted_by(glue, try_number=1, map_index=4)
    assert noted == {"stage": "glue-4", "try": 1, "instance": "glue_4"}
    assert dag.get_task("s3_commit.resolve_conflicts").named_stages == ["s3_commit.emr", "s3_commit.glue"]


@pytest.mark.parametrize("by_default", [False, True])
def test_a_named_mapped_function_keeps_its_own_callback(by_default: bool) -> None:
    """Airflow keeps a mapped function's single callback as it is, not in a list."""

    @task
    def load(number: int) -> None: ...

    calls: list[Any] = []
    given = {"on_execute_callback": calls.append}
    with (
        DAG("nightly", schedule=None, default_args=given if by_default else {}),
        s3_commit_task_group(destination="s3://lake/x/") as commit,
    ):
        mapped = load.override(**{} if by_default else given).expand(number=[1, 2])
        stage = commit.stage(mapped, name="load-{{ ti.map_index }}").operator
    once = EmptyOperator(task_id="once", on_execute_callback=stage.on_execute_callback)
    assert noted_by(once, try_number=1, map_index=1)["stage"] == "load-1"
    assert len(calls) == 1


@pytest.mark.parametrize("native", [False, True])
def test_a_program_s_environment_names_its_job_and_its_try(native) -> None:
    """The templates give what ``s3commit put`` and ``seal`` need, as text, with each try an attempt."""
    dag = DAG("nightly", schedule=None, render_template_as_native_obj=native)
    with dag, s3_commit_task_group("g", destination="s3://lake/x/") as commit:
        load = BashOperator(task_id="load", bash_command="true", env=commit.environment("2013"))
        commit.stage(load)
    reference = {"job_id": "j", "destination": "s3://lake/x/", "staging": "s3://lake/x/__magic_job-j/"}
    pull = lambda **asked: reference if asked == {"task_ids": "g.setup", "map_indexes": -1} else None  # noqa: E731 - a fake's method
    ti = SimpleNamespace(task=load, try_number=3, xcom_pull=pull)
    assert load.render_template(load.env, {"ti": ti}) == {
        "S3COMMIT_DESTINATION": "s3://lake/x/",
        "S3COMMIT_JOB": "j",
        "S3COMMIT_STAGE": "2013",
        "S3COMMIT_ATTEMPT": "3",
    }


def test_only_a_task_can_have_a_stage_s_name() -> None:
    """A group of tasks has no tries."""
    with DAG("nightly", schedule=None), s3_commit_task_group(destination="s3://lake/x/") as commit:
        with TaskGroup("inner") as inner:
            commit.stage(EmptyOperator(task_id="emr"))
        with pytest.raises(ValueError, match="give the stage's name to the task"):
            commit.stage(inner, name="load")


def test_a_mapped_stage_of_another_engine_needs_no_spark(monkeypatch) -> None:
    """The Spark provider is an extra, which a group without Spark stages does not import."""
    monkeypatch.setitem(sys.modules, "airflow_s3commit.operators.spark_submit", None)
    with DAG("nightly", schedule=None), s3_commit_task_group(destination="s3://lake/x/") as commit:
        commit.stage(BashOperator.partial(task_id="glue").expand(bash_command=["a", "b"]))
    assert commit.setup.options["conflict_mode"] == CONFLICT_MODE


@pytest.mark.parametrize(("task_id", "refused"), [("load_1", True), ("load_b", False)])
def test_a_task_named_like_a_mapped_instance_is_refused(task_id: str, refused: bool) -> None:
    """Airflow reports both states under one name, so a skipped instance would be overlooked."""
    said = r"states of refresh\.load_1 and of instance 1 of refresh\.load under one name"
    group = s3_commit_task_group("refresh", destination="s3://lake/x/")
    refusal = pytest.raises(ValueError, match=said) if refused else nullcontext()
    with DAG("nightly", schedule=None), refusal, group as commit:
        commit.stage(EmptyOperator(task_id=task_id))
        commit.stage(BashOperator.partial(task_id="load").expand(bash_command=["a", "b"]))


@pytest.mark.parametrize(
    ("stages", "refused"), [(["load"], True), (["a", "b"], False), (["{{ ti.task_id }}"] * 2, False)]
)
@pytest.mark.parametrize("others", [True, False])
def test_one_stage_of_two_spark_tasks_is_refused(stages: list[str], refused: bool, others: bool) -> None:
    """Only one task's output of a stage counts, so the rows of the other tasks would be missing."""
    group = s3_commit_task_group("refresh", destination="s3://lake/x/")
    said = "group refresh: several tasks or mapped instances write stage load"
    refusal = pytest.raises(ValueError, match=said) if refused else nullcontext()
    with DAG("nightly", schedule=None), refusal, group as commit:
        for number, stage in enumerate(stages):
            commit.spark_submit(task_id=f"spark_{number}x", application="flights.py", stage=stage)
        if refused:
            mapped = commit.spark_submit.partial(application="flights.py", stage=stages[0])
            mapped.expand(application_args=[["a"], ["b"]])
        if others:
            commit.stage(EmptyOperator(task_id="emr"))


def test_two_groups_in_one_dag() -> None:
    """A DAG may refresh two datasets, each with its own job."""
    with DAG("nightly", schedule=None) as dag:
        for name in ("flights", "weather"):
            with s3_commit_task_group(name, destination=f"s3://lake/{name}/") as commit:
                commit.spark_submit(application=f"{name}.py")
    assert len(dag.tasks) == 10


def test_a_group_without_stages_is_refused() -> None:
    """A commit of nothing is a mistake in the DAG."""
    with (
        DAG("nightly", schedule=None),
        pytest.raises(ValueError, match="has no stage"),
        s3_commit_task_group(destination="s3://lake/x/"),
    ):
        pass


def test_the_manifest_is_known_after_the_block() -> None:
    """Tasks behind the group may take the commit's summary, and only they."""
    with DAG("nightly", schedule=None):
        with s3_commit_task_group(destination="s3://lake/x/") as commit:
            commit.spark_submit(application="flights.py")
            with pytest.raises(RuntimeError, match="no commit task yet"):
                _ = commit.manifest
        assert commit.manifest.operator.task_id == "s3_commit.commit"


def test_a_commit_in_parts_has_mapped_tasks_before_it() -> None:
    """Mapped parts are between resolve and commit, with the group's retries and the seal."""
    table, days = Asset("flights"), Asset("flight_days")
    with (
        DAG("nightly", schedule=None) as dag,
        s3_commit_task_group(
            "refresh", destination="s3://lake/x/", outlets=[table], partition_asset=days, parts=4
        ) as commit,
    ):
        commit.spark_submit(application="flights.py")
    parts, committing = dag.get_task("refresh.commit_parts"), dag.get_task("refresh.commit")
    assert "refresh.resolve_conflicts" in parts.upstream_task_ids
    assert "refresh.commit_parts" in committing.upstream_task_ids
    assert "refresh.commit" in dag.get_task("refresh.abort").upstream_task_ids
    assert (parts.expand_input.value, parts.partial_kwargs["parts"], parts.retries) == (
        {"part": [0, 1, 2, 3]},
        4,
        2,
    )
    assert committing.outlets == [table, days]
    assert commit.manifest.operator is committing
    known = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert known.get_task("refresh.commit_parts").is_mapped


@pytest.mark.parametrize("audit", [None, {"min_rows": 1}])
def test_skipped_stages_can_be_left_out(audit) -> None:
    """A task in between runs although a stage was skipped, and Airflow accepts the DAG."""
    with (
        DAG("nightly", schedule=None) as dag,
        s3_commit_task_group(
            "refresh", destination="s3://lake/flights/", audit=audit, skipped_stages="ignore"
        ) as commit,
    ):
        commit.spark_submit(application="a.py")
    dag.validate()
    between = dag.task_dict["refresh.stages"]
    assert between.trigger_rule == TriggerRule.NONE_FAILED
    assert between.upstream_task_ids == {"refresh.spark_submit"}
    assert {"refresh.stages"} == dag.task_dict["refresh.spark_submit"].downstream_task_ids


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"skipped_stages": "ignored"}, "of skip, ignore"),
        ({"on_empty": "delete"}, "skip, commit, remove"),
    ],
)
def test_an_unknown_option_for_skips_is_refused(given: dict[str, Any], message: str) -> None:
    """A typo must not lose output."""
    with (
        DAG("nightly", schedule=None),
        pytest.raises(ValueError, match=message),
        s3_commit_task_group("refresh", destination="s3://lake/flights/", **given),
    ):
        pass


def test_the_group_takes_the_option_for_no_output() -> None:
    """A commit of skipped stages needs a task in between, and the task that seals knows the option."""
    with DAG("nightly", schedule=None) as dag:
        for name, given in (("a", {}), ("b", {"on_empty": "commit"})):
            with s3_commit_task_group(name, destination=f"s3://lake/{name}/", **given) as commit:
                commit.spark_submit(application="a.py")
    dag.validate()
    assert "a.stages" not in dag.task_ids
    between = dag.get_task("b.stages")
    assert (between.skipped_stages, between.on_empty) == ("skip", "commit")
    on_empty = [dag.get_task(f"{name}.resolve_conflicts").on_empty for name in ("a", "b")]
    assert on_empty == ["skip", "commit"]


def with_timeout(callback: Any = None, groups: int = 1, **arguments: Any) -> DAG:
    """Return a DAG with a failure callback and commit groups."""
    with DAG("nightly", schedule=None, on_failure_callback=callback, **arguments) as dag:
        for number in range(groups):
            with s3_commit_task_group(
                f"refresh{number}", destination="s3://lake/a/", aws_conn_id="lake"
            ) as commit:
                commit.spark_submit(application="flights.py")
    return dag


HOUR = {"dagrun_timeout": timedelta(hours=1)}


def note(context: Any) -> None:
    """Stand for a callback of the user's own."""


@pytest.mark.parametrize("given", [None, note, [note]])
def test_a_time_limit_of_the_run_aborts_the_job(given) -> None:
    """No teardown runs after the limit, so a notifier of all groups comes before the user's callbacks."""
    dag = with_timeout(given, groups=2, **HOUR)
    added, *rest = dag.on_failure_callback
    assert added.setup_task_ids == ["refresh0.setup", "refresh1.setup"]
    assert added.aws_conn_id == "lake"
    assert rest == ([] if given is None else [note])
    assert DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag)).has_on_failure_callback


def test_a_notifier_of_the_user_is_enough_if_it_has_the_connection() -> None:
    """One for all setups is there, with the user's limits; one of another store or job aborts no other."""
    own = AbortUploadsNotifier(time_limit=10, aws_conn_id="lake")
    assert with_timeout(own, **HOUR).on_failure_callback == own
    for other in (AbortUploadsNotifier(), AbortUploadsNotifier(job="{{ params.job }}", aws_conn_id="lake")):
        added, *rest = with_timeout(other, **HOUR).on_failure_callback
        assert (added.aws_conn_id, added.setup_task_ids, rest) == ("lake", ["refresh0.setup"], [other])


def test_a_run_without_limit_has_no_further_callback() -> None:
    """The teardown aborts in all other cases."""
    assert with_timeout().on_failure_callback is None


SECONDS = timedelta(seconds=1)

#: What is left of a job reference for its failures.
JOB = {"job_id": "11111111-aaaa-4bbb-8ccc-000000000001"}


def every_error() -> list[type[exceptions.S3CommitError]]:
    """Return every error class of the package."""
    return list(ERRORS.values())


@each("kind", every_error())
def test_the_outcome_decides(kind, context) -> None:
    """A refusal fails a step at once, and what may succeed later keeps the step's retries; each is noted."""
    refused = issubclass(kind, exceptions.Refused | exceptions.JobFailed)
    final = refused and not issubclass(kind, exceptions.PreconditionFailed)
    with pytest.raises(AirflowFailException if final else kind, match="…"), failures_are_noted(context, JOB):
        raise kind("…")
    of_store = exceptions.Unavailable | exceptions.AccessDenied | exceptions.OutcomeUnknown
    by_store = issubclass(kind, of_store)
    assert context["ti"].pushed[FAILURE] == {
        "why": f"{kind.__name__}: …",
        "by_store": by_store,
        "job_id": JOB["job_id"],
        "instance": "refresh.task_-1",
    }


def test_no_secret_of_airflow_s_is_in_the_noted_reason(context) -> None:
    """The reason is repeated in XComs and in the job's end on S3, where nothing masks it any more."""
    mask_secret("hunter2-of-the-lake")
    with pytest.raises(AirflowException), failures_are_noted(context, JOB):
        raise AirflowException("no such table with the key hunter2-of-the-lake")
    assert context["ti"].pushed[FAILURE]["why"] == "no such table with the key ***"


def test_the_noted_reason_is_one_short_line(context) -> None:
    """The page and the log of commits repeat it, and what an application says may be anything."""
    for said, why in (
        ("\x1b[2Jno\nTraceback", "\\x1b[2Jno"),
        ("x" * 160, "x" * 160),
        ("x" * 161, f"{'x' * 159}…"),
    ):
        with pytest.raises(AirflowException), failures_are_noted(context, JOB):
            raise AirflowException(said)
        assert context["ti"].pushed[FAILURE]["why"] == why


def test_the_kill_window_is_that_of_setup_and_teardown() -> None:
    """Both abort while tasks are being killed, for the time that this takes on an installation."""
    with (
        DAG("nightly", schedule=None) as dag,
        s3_commit_task_group("g", destination="s3://lake/x/", kill_window=3) as commit,
    ):
        commit.stage(EmptyOperator(task_id="load"))
    assert [dag.get_task(f"g.{name}").kill_window for name in ("setup", "abort")] == [3, 3]


def test_the_teardown_waits_for_no_earlier_run() -> None:
    """A failed run's teardown has failed, and one that waited for it would leave the next job open."""
    past = {"depends_on_past": True, "wait_for_downstream": True}
    with (
        DAG("nightly", schedule=None, default_args=past) as dag,
        s3_commit_task_group(destination="s3://lake/flights/") as commit,
    ):
        commit.stage(EmptyOperator(task_id="load"))
    waiting = {task.task_id.removeprefix("s3_commit.") for task in dag.tasks if task.depends_on_past}
    assert waiting == {"setup", "load", "resolve_conflicts", "commit"}


def test_retries_are_those_of_the_group_s_steps_only() -> None:
    """Every step of the group tries again after the group's delay; a stage keeps what it was given."""
    given = {"retries": 5, "retry_delay": 7 * SECONDS}
    with (
        DAG("nightly", schedule=None, default_args=given) as dag,
        s3_commit_task_group(
            destination="s3://lake/x/", retry_delay=2 * SECONDS, on_empty="commit", audit={"min_rows": 1}
        ) as commit,
    ):
        commit.stage(EmptyOperator(task_id="emr"))
    tries = {task.task_id.removeprefix("s3_commit."): (task.retries, task.retry_delay) for task in dag.tasks}
    assert tries.pop("emr") == (5, 7 * SECONDS)
    assert tries == dict.fromkeys(
        ("setup", "stages", "audit", "resolve_conflicts", "commit", "abort"), (2, 2 * SECONDS)
    )


def test_the_dag_s_default_connection_is_that_of_the_group() -> None:
    """Its tasks use the store of ``default_args``, unless the group names one; none is without XComs."""
    given = {"aws_conn_id": "lake", "do_xcom_push": False}
    with DAG("nightly", schedule=None, default_args=given) as dag:
        for name, own in {"theirs": {}, "own": {"aws_conn_id": None}}.items():
            with s3_commit_task_group(name, destination="s3://lake/x/", **own) as commit:
                commit.spark_submit(application="x.py")
    assert {task.aws_conn_id for task in dag.tasks if task.task_id.startswith("theirs.")} == {"lake"}
    assert {task.aws_conn_id for task in dag.tasks if task.task_id.startswith("own.")} == {None}
    assert all(task.do_xcom_push for task in dag.tasks)


@pytest.mark.parametrize("parts", [None, 2])
def test_a_time_limit_of_the_dag_s_tasks_is_not_that_of_the_steps(parts: int | None) -> None:
    """``execution_timeout`` in ``default_args`` ends a stage, and never a commit or its teardown."""
    limit = {"execution_timeout": timedelta(seconds=5)}
    with (
        DAG("nightly", schedule=None, default_args=limit) as dag,
        s3_commit_task_group(
            destination="s3://lake/x/", audit={"min_rows": 1}, parts=parts, on_empty="commit"
        ) as commit,
    ):
        commit.stage(EmptyOperator(task_id="emr"))
    limits = {task.task_id.removeprefix("s3_commit."): task.execution_timeout for task in dag.tasks}
    assert limits.pop("emr") == timedelta(seconds=5)
    assert {*limits.values()} == {None}
