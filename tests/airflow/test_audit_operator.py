"""The gate between the stages and the commit."""

from __future__ import annotations

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from airflow_s3commit import Job, JobReference
from airflow_s3commit.operators import (
    S3CommitAuditOperator,
    S3CommitJobOperator,
    S3CommitResolveConflictsOperator,
)
from airflow_s3commit.task_group import s3_commit_task_group
from tests.airflow.runs import DAY, commit, cut_commit_off, pending, rendered, set_up, visible, write_stage


def gate(reference: dict[str, str], **arguments: object) -> S3CommitAuditOperator:
    """Return the task; with a rule that one file of one row keeps."""
    return S3CommitAuditOperator(
        **{"task_id": "audit", "job": reference, "rules": {"min_rows": 1}, **arguments}
    )


@pytest.fixture
def written(store) -> dict[str, str]:
    """A job with one sealed stage, of one file and one row."""
    reference = set_up(store)
    write_stage(store, reference)
    return reference


def test_a_seal_that_meets_the_rules_proceeds_to_the_commit(store, context, written) -> None:
    """The report is the XCom, and the steps behind the gate find the seal that was judged."""
    report = gate(written, rules={"min_rows": 1, "partitions": [DAY]}).execute(context)
    assert report["passed"]
    assert [check["check"] for check in report["checks"]] == ["min_rows", "partitions"]
    assert visible(store) == []
    conflicts = S3CommitResolveConflictsOperator(task_id="r", job=written).execute(context)
    S3CommitJobOperator(task_id="c", job=written, conflicts=conflicts).execute(context)
    assert len(visible(store)) == 1


def test_a_seal_that_breaks_them_fails_for_good(store, context, written) -> None:
    """Nothing becomes visible, no retry is made, and the report stays in an XCom."""
    with pytest.raises(AirflowFailException, match=r"AuditFailed.*min_rows"):
        gate(written, rules={"min_rows": 2}).execute(context)
    assert visible(store) == []
    assert len(pending(store)) == 1
    assert context["ti"].pushed["audit_report"]["passed"] is False


def test_a_cleared_audit_of_a_committed_job_succeeds(store, context) -> None:
    """Its output is visible already; the tasks behind the audit, cleared with it, run again."""
    reference = commit(store)
    assert gate(reference, rules={"min_rows": 2}).execute(context) is None
    assert S3CommitResolveConflictsOperator(task_id="r", job=reference).execute(context) is None


def test_it_may_only_warn(store, context, written) -> None:
    """With ``warn``, the report says what failed and the run goes on."""
    assert gate(written, rules={"min_rows": 2}, on_fail="warn").execute(context)["passed"] is False


def test_drift_is_measured_against_the_latest_manifest(store, context) -> None:
    """Twice the rows of the commit before is more than half as many again."""
    earlier = commit(store)
    reference = set_up(store)
    files = {f"dt=2013-01-02/part-{number}.parquet": b"rows" for number in range(2)}
    write_stage(store, reference, files=files)
    report = gate(reference, rules={"max_drift": 0.5}, on_fail="warn").execute(context)
    assert (report["passed"], report["compared_with"]) == (False, earlier["job_id"])
    again = gate(reference, rules={"max_drift": 1}).execute(context)
    assert again["passed"]


@pytest.mark.parametrize("entered", [False, True])
def test_a_commit_under_way_does_not_let_drift_pass(store, context, monkeypatch, entered) -> None:
    """Drift is measured against the last commit in the log, whose ``_SUCCESS`` may not be written yet."""
    earlier = commit(store)
    other = set_up(store)
    write_stage(store, other, files={"dt=2013-01-03/part-00000.parquet": b"rows"})
    job = Job.at(store, JobReference.from_dict(other))
    job.seal()
    cut_commit_off(store, job, monkeypatch, before="_SUCCESS" if entered else "log/")
    reference = set_up(store)
    files = {f"dt=2013-01-02/part-{number}.parquet": b"rows" for number in range(2)}
    write_stage(store, reference, files=files)
    report = gate(reference, rules={"max_drift": 0.5}, on_fail="warn").execute(context)
    last = other if entered else earlier
    assert (report["passed"], report["compared_with"]) == (False, last["job_id"])


def test_a_classic_marker_is_not_compared_with(store, context, written) -> None:
    """A ``_SUCCESS`` of 0 bytes has no rows to drift from."""
    store.put("lake", "flights/_SUCCESS", b"")
    assert gate(written, rules={"max_drift": 0}).execute(context)["compared_with"] is None


@pytest.mark.parametrize(
    "arguments", [{"rules": {}}, {"rules": {"min_row": 1}}, {"on_fail": "shrug"}], ids=str
)
def test_a_typo_fails(store, context, written, arguments) -> None:
    """Invalid rules are refused before anything is sealed."""
    task = rendered(S3CommitAuditOperator, "audit", **{"job": written, "rules": {"min_rows": 1}, **arguments})
    with pytest.raises(AirflowFailException, match=f"audit: {next(iter(arguments))}: "):
        task.execute(context)


def test_a_rule_without_a_value_in_a_run_is_refused(store, context, written) -> None:
    """A task that returned nothing leaves no rule out, as None in the DAG's file does."""
    with DAG("nightly", schedule=None):
        count = EmptyOperator(task_id="count").output
        task = gate({}, rules={"min_rows": count, "max_rows": None, "max_files": 10})
    context["ti"].xcom_pull, context["expanded_ti_count"] = lambda **_: None, None
    task.render_template_fields(context)
    task.job = written
    with pytest.raises(AirflowFailException, match="audit: rules: min_rows has no value in this run"):
        task.execute(context)
    task.rules["min_rows"] = 1
    assert [check["check"] for check in task.execute(context)["checks"]] == ["min_rows", "max_files"]


def test_its_rules_are_templates(context) -> None:
    """The run's own day can be the partition that is expected."""
    task = gate({}, rules={"partitions": ["dt={{ partition_key }}"], "min_rows": "{{ params.least }}"})
    context["params"] = {"least": 5}
    task.render_template_fields(context)
    assert task.rules == {"partitions": [DAY], "min_rows": "5"}


def test_the_group_puts_it_before_everything_else() -> None:
    """Stages, audit, resolve and commit run in this order, and without rules there is no audit task."""
    with (
        DAG("nightly", schedule=None) as dag,
        s3_commit_task_group(
            "refresh", destination="s3://lake/x/", audit={"min_rows": 1, "on_fail": "warn"}
        ) as commit,
    ):
        commit.spark_submit(application="flights.py")
    audit = dag.get_task("refresh.audit")
    assert audit.upstream_task_ids >= {"refresh.spark_submit"}
    assert "refresh.audit" in dag.get_task("refresh.resolve_conflicts").upstream_task_ids
    assert (audit.rules, audit.on_fail) == ({"min_rows": 1}, "warn")
    assert not audit.is_teardown
    known = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert known.get_task("refresh.abort").is_teardown
    with DAG("plain", schedule=None) as plain, s3_commit_task_group(destination="s3://lake/x/") as commit:
        commit.stage(EmptyOperator(task_id="emr"))
    assert "s3_commit.audit" not in plain.task_ids
