"""The audit that asks a human."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowFailException, TaskAwaitingInput
from airflow.sdk.execution_time import hitl

from airflow_s3commit.operators import S3CommitAuditOperator
from airflow_s3commit.operators.base import FAILURE
from tests.airflow.runs import pending, set_up, visible, write_stage


class Bell(BaseNotifier):
    """Remembers that it was rung."""

    rung = 0

    def notify(self, context: Any) -> None:
        Bell.rung += 1


@pytest.fixture
def questions(monkeypatch) -> list[dict[str, Any]]:
    """Return every question that is put to Airflow."""
    put: list[dict[str, Any]] = []
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **asked: put.append(asked))
    return put


@pytest.fixture
def written(store, context) -> dict[str, str]:
    """A job with one sealed stage of one row, and a task instance that has an id."""
    context["ti"].id = "an-id"
    reference = set_up(store)
    write_stage(store, reference)
    return reference


def gate(reference: dict[str, str], least: int, **arguments: object) -> S3CommitAuditOperator:
    """Return an audit that asks if there are fewer rows."""
    return S3CommitAuditOperator(
        task_id="audit", job=reference, rules={"min_rows": least}, on_fail="ask", **arguments
    )


def asked(task: S3CommitAuditOperator, context: dict) -> TaskAwaitingInput:
    """Run the task until it asks, and return what it leaves with."""
    with pytest.raises(TaskAwaitingInput) as parked:
        task.execute(context)
    return parked.value


def answer(task: S3CommitAuditOperator, context: dict, left: TaskAwaitingInput, **event: Any) -> Any:
    """Resume the task as Airflow does, with what it left through JSON."""
    resumed = json.loads(json.dumps(left.kwargs))
    event = {"chosen_options": [], "responded_at": None, "responded_by_user": None, **event}
    return getattr(task, left.method_name)(context, event=event, **resumed)


def test_an_audit_that_passes_asks_no_question(context, written, questions) -> None:
    """Only a failed check is a question."""
    assert gate(written, 1).execute(context)["passed"]
    assert questions == []


def test_the_question_has_the_facts(store, context, written, questions) -> None:
    """Job, destination and the table of checks are in it; nothing is visible while it waits."""
    alice = {"id": "1", "name": "Alice"}
    task = gate(written, 2, response_timeout=timedelta(hours=2), notifiers=[Bell()], assigned_users=[alice])
    Bell.rung = 0
    left = asked(task, context)
    (question,) = questions
    assert (question["ti_id"], question["options"]) == ("an-id", ["Approve", "Reject"])
    assert question["assigned_users"] == [alice]
    assert written["job_id"] in question["subject"]
    assert "1 of 1 checks" in question["subject"]
    assert "s3://lake/flights/" in question["body"]
    assert "FAILED   min_rows  at least 2  1" in question["body"]
    assert (left.timeout, Bell.rung) == (timedelta(hours=2), 1)
    assert context["ti"].pushed["audit_report"]["passed"] is False
    assert (visible(store), len(pending(store))) == ([], 1)


def test_a_notifier_that_fails_gives_no_output_up(context, written, questions) -> None:
    """The question is there when notifiers are called; all are, and the task waits whatever they do."""
    known: list[int] = []

    def broken(_: Any) -> None:
        known.append(len(questions))
        raise ConnectionError("no route to the chat")

    left = asked(gate(written, 2, notifiers=[broken, broken]), context)
    assert known == [1, 1]
    assert left.timeout == timedelta(days=1)


def test_approval_lets_it_pass(context, written, questions) -> None:
    """The report says who approved, and when."""
    task = gate(written, 2)
    left = asked(task, context)
    when = datetime(2013, 1, 2, tzinfo=UTC)
    report = answer(
        task,
        context,
        left,
        chosen_options=["Approve"],
        responded_at=when,
        responded_by_user={"id": "1", "name": "Alice"},
    )
    assert report["decision"] == {"approved_by": "Alice", "at": when.isoformat()}
    assert report["passed"] is False
    assert context["ti"].pushed["audit_report"] == report


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"chosen_options": ["Reject"], "responded_by_user": {"id": "1", "name": "Bob"}}, "Bob rejected it"),
        ({"chosen_options": []}, "somebody rejected it"),
        ({"error": "The timeout has passed", "error_type": "timeout"}, "Nobody answered in time"),
    ],
)
def test_anything_else_is_a_rejection(context, written, questions, event, said) -> None:
    """A rejection, no answer in time, or no choice fails the task for good; the teardown aborts the job."""
    task = gate(written, 2)
    with pytest.raises(AirflowFailException, match=said):
        answer(task, context, asked(task, context), **event)
    assert said in context["ti"].pushed[FAILURE]["why"]
