"""Which failures are worth another try."""

from __future__ import annotations

import json
from datetime import timedelta

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, ExceptionRetryPolicy, RetryAction

from airflow_s3commit import exceptions
from airflow_s3commit.retry_policy import commit_retry_policy
from airflow_s3commit.task_group import s3_commit_task_group
from tests.cases import each

SECONDS = timedelta(seconds=1)


def every_error() -> list[type[exceptions.S3CommitError]]:
    """Return every error class of the package."""
    return [getattr(exceptions, name) for name in exceptions.__all__]


def expected(kind: type[exceptions.S3CommitError]) -> RetryAction:
    """Say what the outcome of an error means for retries."""
    if issubclass(kind, exceptions.LockHeld | exceptions.PreconditionFailed):
        return RetryAction.RETRY
    if issubclass(kind, exceptions.Refused | exceptions.JobFailed):
        return RetryAction.FAIL
    if issubclass(kind, exceptions.Unavailable | exceptions.OutcomeUnknown):
        return RetryAction.RETRY
    return RetryAction.DEFAULT


@each("kind", every_error())
def test_the_outcome_decides(kind) -> None:
    """Refusals fail at once; what may go through later is tried again after a while."""
    decision = commit_retry_policy(delay=7 * SECONDS, lock_delay=9 * SECONDS).evaluate(kind("…"), 1, 3)
    assert decision.action is expected(kind)
    if decision.action is RetryAction.RETRY:
        passing = issubclass(kind, exceptions.Refused)
        assert decision.retry_delay == (9 * SECONDS if passing else 7 * SECONDS)


def test_other_errors_are_the_tasks_own_business() -> None:
    """An error of another kind is retried as the task is configured to."""
    assert commit_retry_policy().evaluate(RuntimeError(), 1, 3).action is RetryAction.DEFAULT


def test_it_survives_json() -> None:
    """Airflow can write it down and read it back: the errors are named, not pickled."""
    policy = commit_retry_policy()
    again = ExceptionRetryPolicy.deserialize(json.loads(json.dumps(policy.serialize())))
    assert again.serialize() == policy.serialize()
    assert again.evaluate(exceptions.AuditFailed("…"), 1, 3).action is RetryAction.FAIL


def test_the_group_gives_it_to_its_steps_only() -> None:
    """Setup, resolve, commit and abort have the policy; a stage keeps what it was given."""
    with DAG("nightly", schedule=None) as dag, s3_commit_task_group(destination="s3://lake/x/") as commit:
        commit.stage(EmptyOperator(task_id="emr"))
    policies = {task.task_id.removeprefix("s3_commit."): task.retry_policy for task in dag.tasks}
    assert policies.pop("emr") is None
    assert all(isinstance(policy, ExceptionRetryPolicy) for policy in policies.values())
    assert len(policies) == 4


def test_a_group_may_have_another() -> None:
    """A policy that is given is used instead."""
    own = ExceptionRetryPolicy(rules=[])
    with (
        DAG("nightly", schedule=None) as dag,
        s3_commit_task_group(destination="s3://lake/x/", retry_policy=own) as commit,
    ):
        commit.stage(EmptyOperator(task_id="emr"))
    assert dag.get_task("s3_commit.commit").retry_policy is own
