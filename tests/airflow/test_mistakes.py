"""Mistakes in a DAG's file: the import of the DAG fails, by task and argument."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.notifications import AbortUploadsNotifier
from airflow_s3commit.operators import (
    S3CommitAbortOperator,
    S3CommitAuditOperator,
    S3CommitCompactOperator,
    S3CommitJobOperator,
    S3CommitPartOperator,
    S3CommitPublishIcebergOperator,
    S3CommitRegisterPartitionsOperator,
    S3CommitRegisterTableOperator,
    S3CommitResolveConflictsOperator,
    S3CommitSetupOperator,
    S3CommitSparkSubmitOperator,
    S3CommitStagesOperator,
    S3CommitSweepOperator,
)
from airflow_s3commit.sensors import S3SuccessManifestSensor
from airflow_s3commit.task_group import s3_commit_task_group
from airflow_s3commit.triggers import S3SuccessManifestEventTrigger
from tests.airflow.runs import FLIGHTS

PLACE = {"destination": FLIGHTS}


def group(**arguments: Any) -> None:
    """Make a group with one stage."""
    with s3_commit_task_group("refresh", **{**PLACE, **arguments}) as commit:
        commit.stage(EmptyOperator(task_id="load"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"conflict_mod": "replace"}, "group refresh has no argument conflict_mod; did you mean"),
        ({"xyz": 1}, "group refresh has no argument xyz; the options of its job are committer"),
        ({"conflict_mode": "overwrite"}, "refresh.setup: options: conflict_mode='overwrite'"),
        ({"retain": 7}, "refresh.setup: options: retain=7 is not text"),
        ({"retain": "7"}, "refresh.setup: options: retain: '7' is not a duration; write 7d"),
        ({"object_options": "sse=aws:kms"}, "refresh.setup: options: .*'sse=aws:kms'"),
        ({"object_options": {"storage": "GLACIER"}}, "refresh.setup: options: .*no entry 'storage'"),
        ({"destination": "/data/flights"}, "refresh.setup: destination: '/data/flights' is not an S3 URI"),
        ({"destination": 20130105}, "refresh.setup: destination: 20130105 is not text"),
        ({"destination": None}, "refresh.setup: destination: None is not text"),
        ({"aws_conn_id": 5}, "refresh.setup: aws_conn_id: 5 is not text"),
        ({"staging": "lake/tmp"}, "refresh.setup: options: staging: 'lake/tmp' is not an S3 URI"),
        ({"kill_window": "10s"}, "refresh.setup: kill_window: '10s' is not a number"),
        ({"parts": "4"}, "group refresh: parts: '4' is not a whole number"),
        ({"parts": 4.0}, "group refresh: parts: 4.0 is not a whole number"),
        # Airflow would skip a task that is mapped over nothing, and the commit behind it.
        ({"parts": 0}, "group refresh: parts: 0 is less than 1"),
        ({"skipped_stages": "keep"}, "group refresh: skipped_stages: 'keep' is not one of skip, ignore"),
        ({"on_empty": "fail"}, "group refresh: on_empty: 'fail' is not one of skip, commit, remove"),
        # None matched no word, which had the effect of remove.
        ({"on_empty": None}, "group refresh: on_empty: None is not one of skip, commit, remove"),
        ({"on_empty": "{{ params.it }}"}, "group refresh: on_empty: '{{ params.it }}' is not one of"),
        ({"skipped_stages": None}, "group refresh: skipped_stages: None is not one of"),
        ({"skipped_stages": "{{ params.it }}"}, "group refresh: skipped_stages: '{{ params.it }}' is not"),
        ({"kill_window": None}, "refresh.setup: kill_window: None is not a number"),
        ({"kill_window": "{{ params.it }}"}, "refresh.setup: kill_window: '{{ params.it }}' is not a number"),
        ({"parts": "{{ params.it }}"}, "group refresh: parts: '{{ params.it }}' is not a whole number"),
        ({"audit": "{{ params.it }}"}, "group refresh: audit: '{{ params.it }}' has no values by name"),
        ({"audit": {"min_rows": 1, "on_fail": None}}, "refresh.audit: on_fail: None is not one of"),
        ({"audit": {"min_rows": 1, "notifiers": None}}, "refresh.audit: notifiers: "),
        ({"audit": "min_rows=1"}, "group refresh: audit: 'min_rows=1'"),
        ({"audit": {"min_row": 1}}, "refresh.audit: rules: .*min_row"),
        ({"audit": {"min_rows": "many"}}, "refresh.audit: rules: .*min_rows"),
        (
            {"audit": {"min_rows": 1, "on_fail": "panic"}},
            "refresh.audit: on_fail: 'panic' is not one of",
        ),
        ({"audit": {}}, "refresh.audit: rules: the audit has no rules"),
        (
            {"audit": {"min_rows": 1, "response_timeout": 60}},
            "refresh.audit: response_timeout: 60 is no time",
        ),
        ({"audit": {"min_rows": 1, "assigned_users": ["alice"]}}, "refresh.audit: assigned_users: 'alice'"),
        ({"audit": {"min_rows": 1, "notifiers": AbortUploadsNotifier()}}, "refresh.audit: notifiers: "),
        ({"outlets": [Asset("t")], "partition_asset": Asset("t")}, "refresh.commit: partition_asset 't'"),
        ({"outlets": "flights"}, "refresh.commit: 'flights' is no asset"),
        ({"partition_asset": "days"}, "refresh.commit: 'days' is no asset"),
    ],
)
def test_a_mistake_in_a_group_is_named(arguments: dict[str, Any], named: str) -> None:
    """The message has the group or its task, the argument, and what it should be."""
    with DAG("lake", schedule=None), pytest.raises(InvalidOption, match=named):
        group(**arguments)


@pytest.mark.parametrize(
    ("kind", "arguments", "named"),
    [
        (S3CommitSetupOperator, {"destination": "lake/flights"}, "destination: 'lake/flights' is not"),
        (S3CommitSparkSubmitOperator, {"job": {}, "writer": "jar"}, "writer: 'jar' is not one of"),
        (S3CommitSparkSubmitOperator, {"job": {}, "writer": None}, "writer: None is not one of"),
        (S3CommitSparkSubmitOperator, {"job": {}, "writer": "{{ params.it }}"}, "writer: .* is not one of"),
        (S3CommitSparkSubmitOperator, {"job": {}, "stage": "a/b"}, "stage: stage 'a/b'"),
        (S3CommitSparkSubmitOperator, {"job": {}, "application_args": "--day x"}, "application_args: it"),
        (S3CommitSparkSubmitOperator, {"job": {}, "application_args": [["a"]]}, "application_args: it"),
        (S3CommitSparkSubmitOperator, {"job": {}, "conf": "spark.x=y"}, "conf: 'spark.x=y'"),
        (S3CommitSparkSubmitOperator, {"job": FLIGHTS}, f"job: '{FLIGHTS}'"),
        (S3CommitJobOperator, {"job": {}, "conflicts": "resolve"}, "conflicts: 'resolve'"),
        (S3CommitPartOperator, {"job": {}, "part": "0", "parts": 2}, "part: '0' is not a whole number"),
        (S3CommitAuditOperator, {"job": {}, "rules": {"max_rows": -1}}, "rules: .*max_rows"),
        (S3CommitResolveConflictsOperator, {"job": {}, "on_empty": "fail"}, "on_empty: 'fail' is not one of"),
        (S3CommitResolveConflictsOperator, {"job": {}, "on_empty": None}, "on_empty: None is not one of"),
        (S3CommitStagesOperator, {"on_empty": "{{ params.it }}"}, "on_empty: .* is not one of"),
        (S3CommitStagesOperator, {"skipped_stages": "keep"}, "skipped_stages: 'keep' is not one of"),
        (S3CommitCompactOperator, {**PLACE, "target_bytes": "many"}, "target_bytes: .*'many'"),
        (S3CommitCompactOperator, {**PLACE, "partitions": [5]}, "partitions: 5 is not text"),
        (S3CommitAbortOperator, {"job": {}, "kill_window": -1}, "kill_window: -1 is less than 0"),
        (S3CommitSweepOperator, {"destination": "lake/flights"}, "destination: 'lake/flights' is not"),
        (S3CommitSweepOperator, {**PLACE, "staging": "lake/tmp"}, "staging: 'lake/tmp' is not"),
        (S3CommitSweepOperator, {**PLACE, "older_than": "a week"}, "older_than: 'a week'"),
        (S3CommitSweepOperator, {**PLACE, "older_than": -1}, "older_than: -1 is not 0 seconds"),
        (S3CommitSweepOperator, {**PLACE, "older_than": None}, "older_than: 'None'"),
        (S3CommitSweepOperator, {**PLACE, "apply": None}, "apply: None is neither true nor"),
        (S3CommitSweepOperator, {**PLACE, "apply": "sure"}, "apply: 'sure' is neither true nor"),
        (S3CommitSweepOperator, {**PLACE, "object_options": {"ss": 1}}, "object_options: .*'ss'"),
        (S3SuccessManifestSensor, {**PLACE, "newer_than": "soon"}, "newer_than: 'soon'"),
        (S3SuccessManifestSensor, {**PLACE, "newer_than": "999999999999d"}, "newer_than: '9+d' is neither"),
        (S3SuccessManifestSensor, {**PLACE, "newer_than": "9999999d"}, "newer_than: "),
        (S3SuccessManifestSensor, {**PLACE, "run_id": "r", "min_files": "many"}, "min_files: .*many"),
        (S3SuccessManifestSensor, {**PLACE, "context": "dag"}, "context: "),
        (S3SuccessManifestSensor, {**PLACE, "run_id": "r", "search_depth": 0}, "search_depth: 0 is"),
        (S3SuccessManifestSensor, {**PLACE, "run_id": "r", "search_depth": None}, "search_depth: None is"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_task_is_named(kind: type, arguments: dict[str, Any], named: str) -> None:
    """The message has the task, the argument, and what it should be."""
    with pytest.raises(InvalidOption, match=f"Task nightly: {named}"):
        kind(task_id="nightly", **arguments)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"job": "a job"}, "job: 'a job'"),
        ({"job": ["a job"]}, "job: 'a job'"),
        ({"setup_task_ids": ["setup", 5]}, "setup_task_ids: 5 is not text"),
        ({"time_limit": "35s"}, "time_limit: '35s' is not a number"),
        ({"time_limit": None}, "time_limit: None is not a number"),
        ({"kill_window": "{{ params.it }}"}, "kill_window: '{{ params.it }}' is not a number"),
        ({"kill_window": -1}, "kill_window: -1 is less than 0"),
        ({"kill_window": True}, "kill_window: True is not a number"),
        ({"aws_conn_id": 5}, "aws_conn_id: 5 is not text"),
    ],
)
def test_a_mistake_in_a_notifier_is_named(arguments: dict[str, Any], named: str) -> None:
    """The message has the notifier, the argument, and what it should be; templates are left for the run."""
    with pytest.raises(InvalidOption, match=f"AbortUploadsNotifier: {named}"):
        AbortUploadsNotifier(**arguments)
    rendered = arguments.keys() & {*AbortUploadsNotifier.template_fields}
    AbortUploadsNotifier(**dict.fromkeys(rendered, TEMPLATE))
    AbortUploadsNotifier(**{name: [TEMPLATE] for name in rendered})


@pytest.mark.parametrize(
    "wrong",
    [
        {"newer_than": "soon"},
        {"min_files": "many"},
        {"destination": "lake/flights"},
        {"poke_interval": "a minute"},
        {"aws_conn_id": 5},
    ],
)
def test_a_watcher_is_refused_in_the_dags_file(wrong: dict[str, Any]) -> None:
    """In the triggerer its error would only be logged, for ever."""
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        S3SuccessManifestEventTrigger(**{**PLACE, **wrong})


@pytest.mark.parametrize("stage", ["load", None])
def test_what_is_no_task_is_no_stage(stage: Any) -> None:
    """The message has the group and what was given."""
    with DAG("lake", schedule=None), pytest.raises(ValueError, match=f"group refresh: {stage!r} is no task"):  # noqa: SIM117
        with s3_commit_task_group("refresh", destination=FLIGHTS) as commit:
            commit.stage(stage)


@pytest.mark.parametrize("name", ["", "load of today", 5])
def test_a_stage_s_name_can_be_one(name: Any) -> None:
    """No seal would ever have another, so an earlier try's output would count."""
    with DAG("lake", schedule=None), pytest.raises(InvalidOption, match=r"Task refresh\.load: name: "):  # noqa: SIM117
        with s3_commit_task_group("refresh", destination=FLIGHTS) as commit:
            commit.stage(EmptyOperator(task_id="load"), name=name)


TEMPLATE = "{{ params.it }}"


def test_templates_and_results_are_not_checked_before_they_have_a_value() -> None:
    """A template, a task's output and a mapped argument are checked when the task runs."""
    with DAG("lake", schedule=None):
        setup = S3CommitSetupOperator(task_id="setup", destination=TEMPLATE, conflict_mode=TEMPLATE)
        rules = {"min_rows": TEMPLATE}
        S3CommitSetupOperator(task_id="one", destination="{% if params.it %}s3://lake/x/{% endif %}")
        S3CommitAuditOperator(task_id="audit", job=setup.output, rules=rules, on_fail=TEMPLATE)
        S3CommitSweepOperator(task_id="sweep", destination=TEMPLATE, older_than=TEMPLATE, apply=TEMPLATE)
        S3SuccessManifestSensor(task_id="wait", destination=TEMPLATE, job=setup.output, min_files=TEMPLATE)
        S3CommitSetupOperator.partial(task_id="each").expand(destination=["s3://lake/a/", "s3://lake/b/"])
        group(outlets=Asset("flights"), retain=TEMPLATE, object_options={"sse": TEMPLATE})


@pytest.mark.parametrize("kind", [S3CommitSetupOperator, S3CommitCompactOperator])
def test_the_options_of_a_mapped_job_are_known(kind: Any) -> None:
    """Airflow takes those of all instances, those of each, and defaults of the DAG; and no other names."""
    with DAG("lake", schedule=None, default_args={"publish": "delta"}):
        each = kind.partial(task_id="each", **PLACE, retain="7d").expand(conflict_mode=["append", "replace"])
        with pytest.raises(TypeError, match="unexpected keyword argument 'retained'"):
            kind.partial(task_id="other", retained="7d")
        options = each.unmap({**PLACE, "conflict_mode": "replace"}).options
    assert options == {"retain": "7d", "conflict_mode": "replace", "publish": "delta"}


@pytest.mark.parametrize(
    ("kind", "arguments", "named"),
    [
        (S3CommitSetupOperator, {"destination": None}, "destination has no value in this run"),
        (S3CommitCompactOperator, {**PLACE, "target_bytes": "many"}, "target_bytes: .*'many'"),
        (S3CommitCompactOperator, {**PLACE, "partitions": None}, "partitions: .*None"),
        (S3CommitCompactOperator, {"destination": 5}, "destination has 5 where text is meant"),
        (S3CommitPublishIcebergOperator, {**PLACE, "table": None}, "table has no value"),
        (
            S3CommitPublishIcebergOperator,
            {**PLACE, "table": "t", "iceberg_conn_id": None},
            "iceberg_conn_id has no value",
        ),
        (
            S3CommitRegisterTableOperator,
            {"destination": None, "database": "lake", "table": "t"},
            "destination has no value",
        ),
        (S3CommitSweepOperator, {"destination": 5}, "destination has 5 where text is meant"),
        (S3CommitSetupOperator, {"destination": [FLIGHTS]}, r"destination has \[.* where text is meant"),
        (S3CommitSweepOperator, {**PLACE, "staging": 5}, "staging has 5 where text is meant"),
        (S3CommitSweepOperator, {**PLACE, "aws_conn_id": 5}, "aws_conn_id has 5 where text is meant"),
        (S3CommitRegisterPartitionsOperator, {"database": "lake", "table": None}, "table has no value"),
        (S3CommitRegisterPartitionsOperator, {"database": None, "table": "t"}, "database has no value"),
        (S3SuccessManifestSensor, {**PLACE, "job": "{'job_id': 'x'}"}, "the condition job is .*neither"),
        (S3SuccessManifestSensor, {"destination": 5, "run_id": "r"}, "destination has 5 where text is meant"),
    ],
)
def test_a_missing_or_wrong_result_is_final(
    context, kind: type, arguments: dict[str, Any], named: str
) -> None:
    """Another task's result, as text or not there, fails the task without retries, by task and argument."""
    task = kind(task_id="nightly", **dict.fromkeys(arguments, TEMPLATE))
    for name, value in arguments.items():
        setattr(task, name, value)
    with pytest.raises(AirflowFailException, match=f"Task nightly: {named}"):
        task.execute(context)


def test_a_rendered_mistake_is_final(context) -> None:
    """A value that turns out to be wrong in a run fails the task without retries, by task and argument."""
    sweep = S3CommitSweepOperator(task_id="sweep", destination=FLIGHTS, apply=TEMPLATE)
    sweep.apply = "sure"
    with pytest.raises(AirflowFailException, match="Task sweep: apply: 'sure' is neither true nor false"):
        sweep.execute(context)
