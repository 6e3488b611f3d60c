"""The retry policy of a commit's tasks, which retries only errors that a retry can resolve."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

__all__ = ["commit_retry_policy"]

_ERRORS: Final = "airflow_s3commit.exceptions"


def commit_retry_policy(
    *,
    delay: timedelta = timedelta(seconds=30),
    lock_delay: timedelta = timedelta(minutes=2),
) -> ExceptionRetryPolicy:
    """Return the retry policy that `s3_commit_task_group` gives to its own tasks.

    Refusals are not retried, because the next try would be refused too. Throttling, lost connections and
    unknown outcomes are retried after ``delay``, because every step of a commit is repeatable. A task that
    finds another job's lock is retried after ``lock_delay``. The task's own ``retries`` and ``retry_delay``
    apply to all other errors, and ``retries`` limits the number of tries.

    :param delay: Time until the next try after throttling, lost connections and unknown outcomes.
    :param lock_delay: Time until the next try if another job holds the destination's lock.
    """
    # The first matching rule applies, and these two errors are refusals too.
    retriable = RetryRule(
        exception=[f"{_ERRORS}.LockHeld", f"{_ERRORS}.PreconditionFailed"],
        action=RetryAction.RETRY,
        retry_delay=lock_delay,
        reason="another writer holds the lock, or wrote the record first",
    )
    final = RetryRule(
        exception=[f"{_ERRORS}.Refused", f"{_ERRORS}.JobFailed"],
        action=RetryAction.FAIL,
        reason="refused, or rolled back: a retry would end the same way",
    )
    unknown = RetryRule(
        exception=[f"{_ERRORS}.Unavailable", f"{_ERRORS}.OutcomeUnknown"],
        action=RetryAction.RETRY,
        retry_delay=delay,
        reason="the store did not respond, or not in time; the step is repeatable",
    )
    return ExceptionRetryPolicy(rules=[retriable, final, unknown])
